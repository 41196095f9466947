"""Whom messages went to: the SuperLink answers in place of a node that is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flwr.app import Message, Metadata


class Letters:
    """Remembers the addresses of what was sent, without its content."""

    def __init__(self) -> None:
        self._sent: dict[int, list[Metadata]] = {}  # by round; ids are set when they are pushed

    def note(self, round: int, messages: Iterable[Message]) -> None:
        """These messages are about to be sent."""
        self._sent.setdefault(round, []).extend(message.metadata for message in messages)

    def node_of(self, reply: Message) -> int:
        """The node that a reply comes from; of an error of the SuperLink, the node it is about."""
        answers_to = reply.metadata.reply_to_message_id
        for letter in (letter for sent in self._sent.values() for letter in sent):
            if answers_to and letter.message_id == answers_to:
                return int(letter.dst_node_id)
        return int(reply.metadata.src_node_id)

    def keep(self, rounds: Collection[int]) -> None:
        """Forgets all other rounds."""
        self._sent = {round: sent for round, sent in self._sent.items() if round in rounds}
