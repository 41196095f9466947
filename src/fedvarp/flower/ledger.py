"""Who was asked what in which round, and whose answer is still to come."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from flwr.app import ArrayRecord, Message, Metadata
from flwr.serverapp import Grid
from torch import Tensor

from fedvarp.flower.replies import RefusedReplyError

_FIRST_PAUSE: Final = 0.02  # seconds between two looks for replies
_LONGEST_PAUSE: Final = 3.0  # what Flower's own loop waits in a deployment


@dataclass(eq=False)
class Question:
    """What was asked of whom in one round of training."""

    round: int  # counted from 1
    w: Tensor  # (d,) float32, the model that was sent
    rows: dict[int, int | None]  # node: its client's row; None if that was not known
    heard: set[int | str] = field(default_factory=set)  # nodes and names whose answer was taken
    sent_lr: float | None = None  # the rate that clients were told to use
    client_lr: float | None = None  # the rate of the round, once it is settled
    weights: dict[int, float] = field(default_factory=dict)  # by node; empty: all the same
    models: dict[int, Tensor] = field(default_factory=dict)  # node: the model, if it was another
    unread: tuple[Sequence[Message], ArrayRecord] | None = None  # messages as they were made, and
    # the model in them: somebody may change them before they are sent
    is_open: bool = False  # whether nobody saw who was asked, so that any node may answer

    def model_of(self, node: int) -> Tensor:
        """The model that a node was sent, (d,) float32."""
        return self.models.get(node, self.w)


class Ledger:
    """Remembers what was sent, since a reply does not say which model it was trained from.

    Args:
        late_rounds: The number of rounds for which a late reply is still of use.
    """

    def __init__(self, late_rounds: int) -> None:
        self._late_rounds = late_rounds
        self._questions: dict[str, Question] = {}  # by the group id of their messages
        self._sent: dict[int, list[Metadata]] = {}  # by round; ids are set when they are pushed
        self._unanswered: dict[str, int] = {}  # message id: the round it was sent in
        self._spare: Tensor | None = None

    def spare_memory(self) -> Tensor | None:  # (d,)
        """Hands over the memory of a model that nobody answers to any more; None: there is none."""
        spare, self._spare = self._spare, None
        return spare

    def ask(
        self,
        round: int,
        w: Tensor,
        rows: Mapping[int, int | None],
        weights: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """Notes which model goes to whom.

        Args:
            round: The round, counted from 1.
            w: (d,) float32, the model; kept, so it must not change any more.
            rows: The row of the client at each node that is asked; None if it is not known.
            weights: What each counts for, by node; none: all the same.
        """
        earlier = self._questions.get(str(round)) or Question(round, w, {})
        self._questions[str(round)] = replace(
            earlier,
            w=w,
            rows={**earlier.rows, **rows},
            weights={**earlier.weights, **weights},
        )

    def weights_of(self, round: int, nodes: Sequence[int]) -> list[float] | None:
        """What those who answered count for, so that v does not depend on how many did.

        A sum over all who were drawn is unbiased. Where some do not answer, and all are equally
        likely not to, it is so once it is made larger by their number over that of the others.

        Args:
            round: The round, counted from 1.
            nodes: Those whose replies can be used.

        Returns:
            Their weights; None: all the same.
        """
        question = self._questions[str(round)]
        if not question.weights:
            return None
        drawn_for_each = len(question.weights) / len(nodes)
        return [question.weights[node] * drawn_for_each for node in nodes]

    def asked_in(self, round: int) -> Question | None:
        """What was asked in a round.

        Args:
            round: The round, counted from 1.

        Returns:
            The question; None if nobody has been asked so far.
        """
        return self._questions.get(str(round))

    def ask_anybody(self, round: int, w: Tensor) -> None:
        """Notes that others have sent the model of a round, nobody knows to whom.

        Args:
            round: The round, counted from 1.
            w: (d,) float32, the model; kept, so it must not change any more.
        """
        self._questions[str(round)] = Question(round, w, {}, is_open=True)

    @property
    def has_asked(self) -> bool:
        """Whether anybody was asked anything yet."""
        return bool(self._sent)

    def has_addressed(self, round: int, message: Message) -> bool:
        """Whether a message is one of those that were noted.

        Args:
            round: The round, counted from 1.
            message: Of that round.

        Returns:
            True if it is.
        """
        return any(message.metadata is sent for sent in self._sent.get(round, ()))

    def address(self, round: int, messages: Iterable[Message]) -> None:
        """Notes to which nodes these messages are about to be sent.

        Args:
            round: The round, counted from 1.
            messages: Of training or evaluation.
        """
        self._sent.setdefault(round, []).extend(message.metadata for message in messages)

    def will_be_read(self, round: int, messages: Sequence[Message], sent: ArrayRecord) -> None:
        """Keeps messages until what is sent in the end can be read from them.

        Args:
            round: The round, counted from 1; somebody was asked in it.
            messages: Those of the server.
            sent: The model in them.
        """
        self._questions[str(round)].unread = messages, sent

    def node_of(self, reply: Message) -> int:
        """The node that a reply comes from, or is about.

        Args:
            reply: Any reply; the SuperLink answers with an error in place of a node that is gone.

        Returns:
            Its id.
        """
        answers_to = reply.metadata.reply_to_message_id
        for sent in (sent for round in self._sent.values() for sent in round):
            if answers_to and sent.message_id == answers_to:
                return int(sent.dst_node_id)
        return int(reply.metadata.src_node_id)

    def question(self, reply: Message, round: int) -> Question:
        """Finds what a reply answers to.

        Args:
            reply: A reply to a message of training.
            round: The present round, counted from 1.

        Returns:
            The question.

        Raises:
            RefusedReplyError: Its node was not asked, or has answered already.
        """
        node, question = reply.metadata.src_node_id, self._questions.get(reply.metadata.group_id)
        present = self._questions.get(str(round))
        if question is None and present is not None and present.is_open:
            question = present
        if question is None or not (question.is_open or node in question.rows):
            raise RefusedReplyError("nothing was asked of it, or too long ago")
        if node in question.heard:
            raise RefusedReplyError("it has answered already")
        return question

    def note_rate(self, round: int, client_lr: float) -> None:
        """Notes the rate of a round, for replies to it that are still to come.

        Args:
            round: The round, counted from 1.
            client_lr: η_c of its clients.
        """
        self._questions[str(round)].client_lr = client_lr

    def expected_row(self, reply: Message) -> tuple[int, int]:
        """A key to sort replies by: the rows of known clients first, ascending.

        Args:
            reply: Any reply.

        Returns:
            The key.
        """
        question = self._questions.get(reply.metadata.group_id)
        row = None if question is None else question.rows.get(reply.metadata.src_node_id)
        return (1, 0) if row is None else (0, row)

    def ask_no_more(self, node: int) -> None:
        """Forgets what a node was asked: its replies are not used any more.

        Args:
            node: Its id.
        """
        for question in self._questions.values():
            question.rows.pop(node, None)

    def forget(self, round: int) -> None:
        """Lets go of the questions that no reply can belong to any more.

        Args:
            round: The round that has just ended.
        """
        kept = {
            group: question
            for group, question in self._questions.items()
            if round - question.round < self._late_rounds and question.rows.keys() - question.heard
        }
        for over in self._questions.keys() - kept.keys():
            self._spare = self._questions[over].w
        self._questions = kept
        addressed = {question.round for question in kept.values()}
        addressed.add(round)  # whose evaluation is still to come
        self._sent = {asked: sent for asked, sent in self._sent.items() if asked in addressed}

    def send_and_receive(
        self, grid: Grid, messages: Iterable[Message], timeout: float | None, round: int
    ) -> list[Message]:
        """Sends messages of training; replies to earlier ones that are late come with these.

        Args:
            grid: Flower's connection to the nodes.
            messages: Those of this round.
            timeout: The deadline in seconds; None: there is none.
            round: The round, counted from 1.

        Returns:
            The replies to these messages, and those to earlier ones that came in meanwhile.
        """
        late = {id_: t for id_, t in self._unanswered.items() if round - t <= self._late_rounds}
        replies, silent = send_and_receive(grid, messages, timeout, late.keys())
        self._unanswered = {id_: late.get(id_, round) for id_ in silent}
        return replies


def send_and_receive(
    grid: Grid, messages: Iterable[Message], timeout: float | None, late: Collection[str] = ()
) -> tuple[list[Message], set[str]]:
    """Sends messages, and waits until all are answered or the deadline has passed.

    Flower's own `send_and_receive` forgets what is late.

    Args:
        grid: Flower's connection to the nodes.
        messages: Those to send.
        timeout: The deadline in seconds; None: there is none.
        late: Ids of earlier messages; replies to them are taken along, but not waited for.

    Returns:
        The replies, and the ids of all messages that have not been answered.
    """
    batch = list(messages)
    # A message that could not be pushed has None in place of an id.
    waiting = {id_ for id_ in grid.push_messages(batch) if id_} if batch else set()
    unanswered = waiting | set(late)
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    pause = _FIRST_PAUSE
    replies: list[Message] = []
    while waiting:
        arrived = list(grid.pull_messages(unanswered))
        answered = {reply.metadata.reply_to_message_id for reply in arrived}
        replies += arrived
        waiting -= answered
        unanswered -= answered
        left = deadline - time.monotonic()
        if left <= 0:
            break
        if waiting:
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
    return replies, unanswered
