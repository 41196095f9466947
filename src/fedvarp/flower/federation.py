"""The core server of a federation: who its clients are, what they were sent, what came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.flower.arrays import Layout
from fedvarp.flower.clusters import Clusters
from fedvarp.flower.identity import Client, Identities, name_of_node, name_order, told_name
from fedvarp.flower.letters import Letters
from fedvarp.flower.replies import RefusedReplyError, ReplyReader, Update, refuse_error
from fedvarp.flower.sampling import Candidate
from fedvarp.flower.units import Units
from fedvarp.server.checkpoint import Checkpoint
from fedvarp.server.flat_model import average_buffers
from fedvarp.server.server import Broadcast, Server
from fedvarp.tables import ClusteredTable, RowTable
from fedvarp.tables.largest_entries import LargestEntries


@dataclass(eq=False)
class Outcome:
    """What became of the replies of a round."""

    accepted: list[Update] = field(default_factory=list)
    refreshed: list[tuple[str, int]] = field(default_factory=list)  # a late client, its staleness
    refused: list[tuple[str, str]] = field(default_factory=list)  # who, why
    nameless: list[str] = field(default_factory=list)  # clients that go by their node id


@dataclass(eq=False)
class Federation:
    """Between Flower's messages and `fedvarp.Server`, which it never goes round."""

    layout: Layout
    server: Server
    clients: Identities
    units: Units
    reader: ReplyReader
    buffers: dict[str, Tensor]
    identity: str
    unchanging: Mapping[str, Any]  # settings that are noted in the checkpoint
    least_clients: int  # N if fewer have turned up
    clusters: Clusters | None
    checkpoint: Checkpoint | None
    weighted_by_examples: bool
    rounds_kept: int  # for which late replies are of use
    letters: Letters = field(default_factory=Letters)
    _memory: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # for updates, (M, d)
    _models: dict[int, Tensor] = field(default_factory=dict)  # round: w as it was sent
    _spare: Tensor | None = None  # (d,), memory of a model that nobody answers to any more
    _asked: dict[tuple[int, int], int | None] = field(default_factory=dict)  # (round, node): row
    _heard: set[tuple[int, int | str]] = field(default_factory=set)  # (round, node or name)

    @property
    def record(self) -> ArrayRecord:
        """The model as Flower sends it."""
        return self.layout.record(self.server.w, self.buffers)

    @property
    def num_clients(self) -> int:
        """N."""
        states = self.server.aggregator.table
        return len(self.clients) if states is None else states.num_clients

    def count(self, num_online: int) -> None:
        """Makes N the number of those who may be drawn.

        Whoever has a name counts for ever, and a node without one while it is online: a SuperNode
        that was killed is listed for a while, and must not count once it is not.
        """
        wanted = max(self.least_clients, num_online, len(self.clients))
        self.grow(wanted)
        states = self.server.aggregator.table
        if isinstance(states, ClusteredTable | RowTable) and wanted < states.num_clients:
            states.drop_clients(states.num_clients - wanted)

    def grow(self, num_clients: int) -> None:
        """Makes N at least this; the new rows are zero. O(1), or O(N) for shared rows."""
        states = self.server.aggregator.table
        if states is None or num_clients <= states.num_clients:
            return
        more = num_clients - states.num_clients
        if isinstance(states, ClusteredTable):
            states.add_clients(torch.zeros(more, dtype=torch.int64))
        elif isinstance(states, RowTable):
            states.add_clients(more)

    def place(self, client: Client, label: str | None) -> None:
        """Gives a client its row, and its cluster if there are any."""
        self.grow(client.row + 1)
        states = self.server.aggregator.table
        if self.clusters is None or label is None or client.cluster == label:
            return
        assert isinstance(states, ClusteredTable)
        number = self.clusters.number_of(label)
        states.move(torch.tensor([client.row]), torch.tensor([number]))
        client.cluster = label
        self.clients.note(client)

    def send(self, round: int, cohort: Sequence[Candidate]) -> Broadcast:
        """What these clients are sent; remembered, since a reply does not say it.

        A node whose client is not known has no row yet; SCAFFOLD sends it the correction of a row
        never written.
        """
        rows = [client.row for client in cohort if client.row is not None]
        if self.reader.steps_needed and len(rows) < len(cohort):
            unwritten = len(self.clients)
            self.grow(unwritten + 1)
            rows = [unwritten if client.row is None else client.row for client in cohort]
        broadcast = self.server.broadcast(torch.tensor(rows, dtype=torch.int64), out=self._spare)
        self._models[round], self._spare = broadcast.w, None
        for client in cohort:
            assert client.node is not None
            self._asked[round, client.node] = client.row
        return broadcast

    def who(self, reply: Message) -> str:
        """The client that a reply comes from, or is about, for the log."""
        node = self.letters.node_of(reply)
        client = self.clients.at(node)
        return f"{client.name!r} (node {node})" if client else f"node {node}"

    def receive(self, round: int, replies: Sequence[Message], min_replies: int) -> Outcome:
        """One round of the server from whatever came back."""
        outcome = Outcome()
        updates = self._read(round, replies, outcome)
        late = [(u, c) for u, c in updates if u.round != round]
        current = [(u, c) for u, c in updates if u.round == round]
        if late:
            self._refresh(round, late, outcome)
        if len(current) < max(1, min_replies):
            self.server.skip()
            outcome.refused += [
                (
                    repr(client.name),
                    f"only {len(current)} of at least {min_replies} replies can be used",
                )
                for _, client in current
            ]
        else:
            self._step(round, current, outcome)
        self._forget(round)
        return outcome

    def learn(self, replies: Sequence[Message]) -> None:
        """Meets the clients that say who they are in a reply."""
        names = {
            reply.metadata.src_node_id: name
            for reply in replies
            if (name := told_name(reply.content, self.identity)) is not None
        }
        for node in sorted(names, key=lambda node: name_order(names[node])):
            self.place(self.clients.meet(names[node], node), None)

    @property
    def is_saved(self) -> bool:
        """Whether the checkpoint holds this run already."""
        return self.checkpoint is not None and self.checkpoint.round is not None

    def commit(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Saves the round in one transaction, with these entries."""
        if self.checkpoint is None:
            return
        self.checkpoint.commit(
            self.server,
            tensors=self.buffers,
            notes={
                **self.unchanging,
                "layout": self.layout.digest,
                "left": self.clients.left,
                "missing": self.clients.missing,
                "units": self.units.notes(),
                "clusters": None if self.clusters is None else self.clusters.labels,
            },
            entries={**self.clients.changes(), **entries},
        )
        self.clients.saved()

    def close(self) -> None:
        """Gives the folder back."""
        states = self.server.aggregator.table
        for table in () if states is None else states.tables():
            table.close()
        if self.checkpoint is not None:
            self.checkpoint.close()

    # Reading

    def _read(
        self, round: int, replies: Sequence[Message], outcome: Outcome
    ) -> list[tuple[Update, Client]]:
        """The replies that can be used, each with its client, in the order of their rows."""
        memory = self._memory_for(len(replies))
        found: list[tuple[Update, str, str | None]] = []
        for reply in sorted(replies, key=self._expected_row):
            try:
                found.append(self._read_one(round, reply, memory[len(found)]))
            except RefusedReplyError as why:
                outcome.refused.append((self.who(reply), str(why)))
        updates = []
        for update, name, label in sorted(found, key=lambda f: name_order(f[1])):
            if name == name_of_node(update.node):
                outcome.nameless.append(name)
            client = self._meet(round, update, name)
            self.place(client, label)
            updates.append((update, client))
        return sorted(updates, key=lambda pair: pair[1].row)

    def _memory_for(self, size: int) -> Tensor:  # (size, d)
        """The same memory every round: fresh pages would cost more than the subtraction."""
        if len(self._memory) < size:
            self._memory = torch.empty(size, self.layout.dim)
        return self._memory[:size]

    def _read_one(self, round: int, reply: Message, out: Tensor) -> tuple[Update, str, str | None]:
        refuse_error(reply)
        node, sent_in = reply.metadata.src_node_id, _round_of(reply)
        if (sent_in, node) not in self._asked:
            raise RefusedReplyError("nothing was asked of it, or too long ago")
        if (sent_in, node) in self._heard:
            raise RefusedReplyError("it has answered already")
        update = self.reader.read(reply, sent_in, self._models[sent_in], out)
        name = self._name(update)
        if (sent_in, name) in self._heard:
            raise RefusedReplyError(f"client {name!r} has answered already")
        label = None if self.clusters is None else self.clusters.label_of(name, update.content)
        self._refuse_foreign_correction(round, update, name)
        self._heard |= {(sent_in, node), (sent_in, name)}
        return update, name, label

    def _name(self, update: Update) -> str:
        said = told_name(update.content, self.identity)
        known = self.clients.at(update.node)
        return said or (known.name if known else name_of_node(update.node))

    def _meet(self, round: int, update: Update, name: str) -> Client:
        """A late reply says where its client was, which is no news of one that was seen since."""
        client = self.clients.named(name)
        is_seen = client is not None and client.node is not None
        taken = self.clients.at(update.node) is not None or update.node in self.clients.left
        is_news = update.round == round or not (is_seen or taken)
        return self.clients.meet(name, update.node if is_news else None)

    def _refuse_foreign_correction(self, round: int, update: Update, name: str) -> None:
        """SCAFFOLD's rows fit only the correction that was sent."""
        client, sent_row = self.clients.named(name), self._asked[update.round, update.node]
        own_row = client.row if client and client.last_round else None
        if self.reader.steps_needed and sent_row != own_row and own_row is not None:
            self._meet(round, update, name)  # so that it is sent its own next time
            raise RefusedReplyError(f"it is {name!r}, but was sent another client's correction")

    def _expected_row(self, reply: Message) -> tuple[int, int]:
        row = self._asked.get((_round_of(reply), reply.metadata.src_node_id))
        return (1, 0) if row is None else (0, row)

    # Learning

    def _stack(self, updates: Sequence[tuple[Update, Client]]) -> RoundUpdates:
        measured = self.units.measure([update for update, _ in updates])
        magnitudes = []
        for (update, _), (_, walk) in zip(updates, measured, strict=True):
            magnitude = torch.tensor(update.magnitude)
            if walk != 1.0:
                update.difference.div_(walk)  # Algorithm 1, line 6
                magnitude.div_(walk)  # rounded as the largest number was
            magnitudes.append(float(magnitude))
        deltas = _stacked([update.difference for update, _ in updates])
        examples = torch.tensor([update.num_examples for update, _ in updates])
        return RoundUpdates(
            clients=torch.tensor([client.row for _, client in updates]),
            deltas=deltas,
            num_steps=torch.tensor([steps for steps, _ in measured]),
            num_examples=examples,
            scale=sum(walk for _, walk in measured) / len(measured),
            weights=examples.double() / examples.sum() if self.weighted_by_examples else None,
            measured=LargestEntries.known(magnitudes, deltas),
        )

    def _step(self, round: int, current: Sequence[tuple[Update, Client]], outcome: Outcome) -> None:
        report = self.server.receive(self._stack(current))
        if not report.accepted:
            self.server.skip()
        for update, client in current:
            if client.row in report.accepted:
                self.clients.note(client, last_round=round)
                outcome.accepted.append(update)
            else:
                outcome.refused.append((repr(client.name), report.refused[client.row]))
        if self.buffers and outcome.accepted:
            self.buffers = average_buffers([update.buffers for update in outcome.accepted])

    def _refresh(self, round: int, late: Sequence[tuple[Update, Client]], outcome: Outcome) -> None:
        newest: dict[int, tuple[Update, Client]] = {}
        for update, client in sorted(late, key=lambda pair: pair[0].round):
            if client.last_round < update.round:
                newest[client.row] = (update, client)
        refreshed: tuple[int, ...] = ()
        if newest and self.units.are_settled:
            stacked = self._stack([newest[row] for row in sorted(newest)])
            refreshed = self.server.receive_late(stacked).accepted
        for update, client in late:
            staleness = round - update.round
            if client.row in refreshed and newest[client.row][0] is update:
                self.clients.note(client, last_round=update.round)
                outcome.refreshed.append((client.name, staleness))
            else:
                outcome.refused.append((repr(client.name), f"it comes {staleness} round(s) late"))

    def _forget(self, round: int) -> None:
        """Lets go of rounds that no reply can belong to any more."""
        silent = {sent_in for sent_in, node in self._asked if (sent_in, node) not in self._heard}
        kept = {sent_in for sent_in in silent if round - sent_in < self.rounds_kept}
        for over in self._models.keys() - kept:
            self._spare = self._models.pop(over)
        self.letters.keep(kept | {round})  # its evaluation is still to come
        self._asked = {key: row for key, row in self._asked.items() if key[0] in kept}
        self._heard = {key for key in self._heard if key[0] in kept}


def _round_of(reply: Message) -> int:
    group = reply.metadata.group_id
    return int(group) if group.isascii() and group.isdecimal() else -1


def _stacked(rows: Sequence[Tensor]) -> Tensor:  # (M, d)
    """Without a copy where the rows lie one after the other in memory, as they usually do."""
    first, size = rows[0], rows[0].numel()
    start = first.storage_offset()
    whole = first.untyped_storage().data_ptr()
    in_order = all(
        row.untyped_storage().data_ptr() == whole and row.storage_offset() == start + m * size
        for m, row in enumerate(rows)
    )
    return (
        torch.as_strided(first, (len(rows), size), (size, 1))
        if in_order
        else torch.stack(list(rows))
    )
