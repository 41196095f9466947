"""Messages out, replies in until a deadline; what comes later comes with a later round."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

_FIRST_PAUSE: Final = 0.02  # seconds between two looks for replies
_LONGEST_PAUSE: Final = 3.0  # what Flower's own loop waits in a deployment


class Exchange:
    """Flower's `send_and_receive`, which forgets what is late, with a memory for it.

    Args:
        rounds_kept: For how many rounds a message that was not answered is still looked for.
    """

    def __init__(self, rounds_kept: int) -> None:
        self._rounds_kept = rounds_kept
        self._unanswered: dict[str, int] = {}  # message id: the round it was sent in

    def send_and_receive(
        self, grid: Grid, messages: Iterable[Message], timeout: float, round: int
    ) -> list[Message]:
        """The replies to these messages, and those to earlier ones that come in meanwhile."""
        batch = list(messages)
        if not batch:
            return []
        # A message that could not be pushed has None in place of an id.
        waiting = {id_ for id_ in grid.push_messages(batch) if id_}
        self._unanswered = {
            id_: sent for id_, sent in self._unanswered.items() if round - sent <= self._rounds_kept
        }
        late = set(self._unanswered)
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        replies: list[Message] = []
        while waiting:
            arrived = list(grid.pull_messages(waiting | late))
            answered = {reply.metadata.reply_to_message_id for reply in arrived}
            replies += arrived
            waiting -= answered
            late -= answered
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if waiting:
                time.sleep(min(pause, left))
                pause = min(pause * 1.5, _LONGEST_PAUSE)
        self._unanswered = {id_: self._unanswered[id_] for id_ in late}
        if self._rounds_kept:
            self._unanswered.update(dict.fromkeys(waiting, round))
        return replies
