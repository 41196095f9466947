"""From replies to updates of clients that are known: nobody is who it says without a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedvarp.flower.identity import Client
from fedvarp.flower.ledger import Ledger, Question
from fedvarp.flower.names import is_given_by_flower, name_in, name_of_node, name_order
from fedvarp.flower.replies import RefusedReplyError, ReplyReader, Update, refuse_error, shown
from fedvarp.flower.rows import ClientRows


@dataclass(eq=False)
class Outcome:
    """What became of the replies of a round."""

    accepted: list[Update] = field(default_factory=list)
    refreshed: list[tuple[str, int]] = field(default_factory=list)  # a late client, its staleness
    refused: list[tuple[str, str]] = field(default_factory=list)  # who, why
    clipped: list[str] = field(default_factory=list)  # whose updates were shortened and used
    doubted: list[str] = field(default_factory=list)  # what clients said and was not believed
    nameless: list[str] = field(default_factory=list)  # clients that go by their node id

    def refuse(self, who: str, why: object) -> None:
        """Notes that a reply is not used.

        Args:
            who: Whose it is.
            why: The reason, which may hold what the client has written.
        """
        self.refused.append((who, shown(str(why))))


@dataclass(eq=False)
class Reception:
    """Reads replies, and finds out whose they are.

    Attributes:
        rows: Which client has which row.
        reader: Checks replies.
        ledger: Who was asked what.
        identity: What clients are known by.
        sends_corrections: See `TrainingRounds`.
    """

    rows: ClientRows
    reader: ReplyReader
    ledger: Ledger
    identity: str
    sends_corrections: bool
    _memory: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # for updates, (M, d)

    def read(
        self, round: int, replies: Sequence[Message], outcome: Outcome
    ) -> list[tuple[Update, Client]]:
        """The replies that can be used, each with its client.

        Args:
            round: The present round, counted from 1.
            replies: Whatever came back.
            outcome: Where refusals are noted.

        Returns:
            In the order of the clients' rows.
        """
        memory = self._memory_for(len(replies))
        found: list[tuple[Update, str, str | None]] = []
        for reply in sorted(replies, key=self.ledger.expected_row):
            try:
                found.append(self._read_one(round, reply, memory[len(found)]))
            except RefusedReplyError as why:
                outcome.refuse(self.who(reply), why)
        updates = []
        for update, name, label in sorted(found, key=lambda f: (name_order(f[1]), f[0].round)):
            try:
                client = self._meet(round, update, name)
            except RefusedReplyError as why:
                outcome.refuse(f"node {update.node}", why)
                continue
            if client.is_nameless:
                outcome.nameless.append(name)
            is_newest = update.round > client.last_round  # a client may have moved on since
            self.rows.place(client, label if is_newest else None)
            updates.append((update, client))
        return sorted(updates, key=lambda pair: pair[1].row)

    def learn(self, replies: Sequence[Message]) -> None:
        """Meets the clients that say who they are in a reply.

        Args:
            replies: With content, such as those of an evaluation.
        """
        said = {r.metadata.src_node_id: r.content for r in replies}
        names = {node: self._name_said(node, content) for node, content in said.items()}
        self.rows.meet_all({node: name for node, name in names.items() if name is not None})

    def who(self, reply: Message) -> str:
        """Names the client that a reply comes from, or is about, for the log.

        Args:
            reply: Any reply.

        Returns:
            Its name, if it has one, and its node.
        """
        node = self.ledger.node_of(reply)
        client = self.rows.clients.at(node)
        return f"{client.name!r} (node {node})" if client else f"node {node}"

    def stacked(self, updates: Sequence[Update]) -> Tensor:  # (M, d)
        """Differences as one tensor.

        Args:
            updates: Of the last `read`.

        Returns:
            Their own memory, without a copy if they lie one after the other, as they mostly do.
        """
        dim = self.reader.layout.dim
        positions = [update.difference.storage_offset() // dim for update in updates]
        first, stop = positions[0], positions[0] + len(updates)
        in_order = positions == list(range(first, stop))
        return self._memory[first:stop] if in_order else self._memory[positions]

    def _memory_for(self, size: int) -> Tensor:  # (size, d)
        """The same memory every round: fresh pages would cost more than the subtraction."""
        if len(self._memory) < size:
            self._memory = torch.empty(size, self.reader.layout.dim)
        return self._memory[:size]

    def _read_one(self, round: int, reply: Message, out: Tensor) -> tuple[Update, str, str | None]:
        refuse_error(reply)
        question = self.ledger.question(reply, round)
        w = question.model_of(reply.metadata.src_node_id)
        update = self.reader.read(reply, question.round, w, out)
        name = self._name(update)
        if name in question.heard:
            raise RefusedReplyError(f"client {name!r} has answered already")
        clusters, most = self.rows.clusters, self.rows.num_clients
        label = None if clusters is None else clusters.label_of(name, update.content, most)
        self._refuse_foreign_correction(round, question, update, name)
        question.heard |= {update.node, name}
        return update, name, label

    def _name(self, update: Update) -> str:
        said = self._name_said(update.node, update.content)
        known = self.rows.clients.at(update.node)
        return said or (known.name if known else name_of_node(update.node))

    def _name_said(self, node: int, content: RecordDict) -> str | None:
        """The name that a client gives itself, unless Flower vouches for another."""
        known = self.rows.clients.at(node)
        if known is not None and is_given_by_flower(known.name):
            return None
        return name_in(content, self.identity)

    def _meet(self, round: int, update: Update, name: str) -> Client:
        """A late reply says where its client was, which is no news of one that was seen since."""
        clients = self.rows.clients
        client = clients.named(name)
        is_seen = client is not None and client.node is not None
        taken = clients.at(update.node) is not None or clients.has_left(update.node)
        if client is None and taken and update.round != round:
            raise RefusedReplyError(f"{name!r} comes late, from a node that has another client now")
        is_news = update.round == round or not (is_seen or taken)
        return self.rows.meet(name, update.node if is_news else None)

    def _refuse_foreign_correction(
        self, round: int, question: Question, update: Update, name: str
    ) -> None:
        """SCAFFOLD's and FedDyn's rows fit only the correction that was sent."""
        if not self.sends_corrections:
            return
        if question.is_open:
            raise RefusedReplyError("it was not sent a correction: leave messages to the server")
        clients = self.rows.clients
        sent, own = clients.at_row(question.rows.get(update.node)), clients.named(name)
        if own is None and sent is not None and sent.is_nameless:
            own = sent  # it has only told its true name
        if _written(sent) != _written(own):
            self._meet(round, update, name)  # so that it is sent its own next time
            raise RefusedReplyError(f"it is {name!r}, but was sent another client's correction")


def _written(client: Client | None) -> int | None:
    """The row of a client, if there is anything in it."""
    return client.row if client is not None and client.last_round else None
