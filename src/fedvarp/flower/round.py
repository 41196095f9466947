"""One round of training: the model out, replies in, one step of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.flower.client import CORRECTION_RECORD
from fedvarp.flower.cohort import Candidate
from fedvarp.flower.identity import Client
from fedvarp.flower.ledger import Ledger, Question
from fedvarp.flower.names import is_given_by_flower, name_in, name_of_node, name_order
from fedvarp.flower.replies import RefusedReplyError, ReplyReader, Update, refuse_error
from fedvarp.flower.rows import ClientRows
from fedvarp.flower.units import UpdateUnits, rate_sent
from fedvarp.server.flat_model import average_buffers
from fedvarp.server.server import Broadcast, Server
from fedvarp.tables.largest_entries import DIVERGED_ABOVE, LargestEntries


@dataclass(eq=False)
class Outcome:
    """What became of the replies of a round."""

    accepted: list[Update] = field(default_factory=list)
    refreshed: list[tuple[str, int]] = field(default_factory=list)  # a late client, its staleness
    refused: list[tuple[str, str]] = field(default_factory=list)  # who, why
    clipped: list[str] = field(default_factory=list)  # whose updates were shortened and used
    nameless: list[str] = field(default_factory=list)  # clients that go by their node id


@dataclass(eq=False)
class TrainingRounds:
    """Between Flower's messages and `fedvarp.Server`, which it never goes round.

    Attributes:
        server: The model, the algorithm and the optimiser.
        buffers: The model's buffers, by name.
        rows: Which client has which row.
        reader: Checks replies.
        units: What updates are measured in.
        ledger: Who was asked what.
        identity: What clients are known by.
        sends_corrections: Whether clients correct their gradients by what they are sent (SCAFFOLD,
            FedDyn).
        weighted_by_examples: Whether clients count by their examples, or all the same.
    """

    server: Server
    buffers: dict[str, Tensor]
    rows: ClientRows
    reader: ReplyReader
    units: UpdateUnits
    ledger: Ledger
    identity: str
    sends_corrections: bool
    weighted_by_examples: bool
    _memory: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # for updates, (M, d)

    @property
    def record(self) -> ArrayRecord:
        """The model as Flower sends it."""
        return self.reader.layout.record(self.server.w, self.buffers)

    def send(
        self, round: int, cohort: Sequence[Candidate], sent_lr: float | None = None
    ) -> Broadcast:
        """Prepares what these clients are sent, and notes it in the ledger.

        A node whose client is not known has no row yet; SCAFFOLD sends it the correction of a row
        never written.

        Args:
            round: The round, counted from 1.
            cohort: Who is asked; all online.
            sent_lr: The rate that they are told to use; None: none.

        Returns:
            The model, and a correction for each client if the algorithm has any.
        """
        rows = [client.row for client in cohort if client.row is not None]
        if self.sends_corrections and len(rows) < len(cohort):
            unwritten = self.rows.clients.next_row
            self.rows.grow(unwritten + 1)
            rows = [unwritten if client.row is None else client.row for client in cohort]
        broadcast = self.server.broadcast(
            torch.tensor(rows, dtype=torch.int64), out=self.ledger.spare_memory()
        )
        asked = {client.node: client for client in cohort if client.node is not None}
        weights = {node: one.weight for node, one in asked.items() if one.weight is not None}
        rows_of = {node: one.row for node, one in asked.items()}
        self.ledger.ask(round, broadcast.w, rows_of, sent_lr, weights)
        return broadcast

    def adopt(self, arrays: ArrayRecord) -> None:
        """Goes on from a model that somebody has changed since: noise for privacy, for instance.

        Args:
            arrays: The model.

        Raises:
            ValueError: It is another kind of model, or holds NaN or infinity.
        """
        layout = self.reader.layout
        layout.check(arrays)
        w, buffers = layout.vector(arrays), layout.read_buffers(arrays)
        if not bool(w.isfinite().all()):
            raise ValueError("The model to be sent holds NaN or infinity. Somebody has changed it.")
        self.server.w.copy_(w)
        self.buffers = buffers

    def note_sent(
        self, round: int, messages: Sequence[Message], sent: ArrayRecord, lr_key: str | None
    ) -> None:
        """Notes what messages say that were made by others: a strategy's own `configure_train`.

        Args:
            round: The round, counted from 1.
            messages: All of the round; those that are known already are left alone.
            sent: The model as the server would send it.
            lr_key: Where configurations have the rate; None: under one of the usual names.
        """
        others = [m for m in messages if not self.ledger.has_addressed(round, m)]
        if not others:
            return
        asked = self.ledger.asked_in(round)
        w = self.server.w.clone() if asked is None else asked.w
        rates = [asked.sent_lr if asked else None]
        for message in others:
            node, content = message.metadata.dst_node_id, message.content
            if self.sends_corrections and CORRECTION_RECORD not in content.config_records:
                continue  # its reply will be refused
            client, arrays = self.rows.clients.at(node), self.reader.arrays_in(content)
            rates += [rate_sent(config, lr_key) for config in content.config_records.values()]
            rate = next((rate for rate in rates if rate is not None), None)
            self.ledger.ask(round, w, {node: client.row if client else None}, rate)
            if arrays is not sent:
                question = self.ledger.asked_in(round)
                assert question is not None
                question.models[node] = self.reader.layout.vector(arrays)
            message.metadata.group_id = str(round)
        self.ledger.address(round, others)

    def receive(self, round: int, replies: Sequence[Message], min_replies: int) -> Outcome:
        """Makes one step of the server from whatever came back.

        Args:
            round: The round, counted from 1.
            replies: Those that came in its time, late ones to earlier rounds among them.
            min_replies: With fewer good replies to this round, nothing changes but its number.

        Returns:
            What became of each reply.
        """
        outcome = Outcome()
        if replies and self.ledger.asked_in(round) is None:
            self.ledger.ask_anybody(round, self.server.w.clone())
            nodes = {reply.metadata.src_node_id for reply in replies}
            self.rows.count(nodes | {c.node for c in self.rows.clients if c.node is not None})
        updates = self._read(round, replies, outcome)
        late = [(u, c) for u, c in updates if u.round != round]
        current = [(u, c) for u, c in updates if u.round == round]
        if late:
            self._refresh(round, late, outcome)
        if len(current) < max(1, min_replies):
            self.server.skip()
            why = f"only {len(current)} of at least {min_replies} replies can be used"
            outcome.refused += [(repr(client.name), why) for _, client in current]
        else:
            self._step(round, current, outcome)
        self.ledger.forget(round)
        return outcome

    def learn(self, replies: Sequence[Message]) -> None:
        """Meets the clients that say who they are in a reply.

        Args:
            replies: With content, such as those of an evaluation.
        """
        names = {
            reply.metadata.src_node_id: name
            for reply in replies
            if (name := self._name_said(reply.metadata.src_node_id, reply.content)) is not None
        }
        for node in sorted(names, key=lambda node: name_order(names[node])):
            self.rows.place(self.rows.clients.meet(names[node], node), None)

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

    # From replies to updates

    def _read(
        self, round: int, replies: Sequence[Message], outcome: Outcome
    ) -> list[tuple[Update, Client]]:
        """The replies that can be used, each with its client, in the order of their rows."""
        memory = self._memory_for(len(replies))
        found: list[tuple[Update, str, str | None]] = []
        for reply in sorted(replies, key=self.ledger.expected_row):
            try:
                found.append(self._read_one(round, reply, memory[len(found)]))
            except RefusedReplyError as why:
                outcome.refused.append((self.who(reply), str(why)))
        updates = []
        for update, name, label in sorted(found, key=lambda f: (name_order(f[1]), f[0].round)):
            if name == name_of_node(update.node):
                outcome.nameless.append(name)
            client = self._meet(round, update, name)
            is_newest = update.round > client.last_round  # a client may have moved on since
            self.rows.place(client, label if is_newest else None)
            updates.append((update, client))
        return sorted(updates, key=lambda pair: pair[1].row)

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
        clusters = self.rows.clusters
        label = None if clusters is None else clusters.label_of(name, update.content)
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
        is_news = update.round == round or not (is_seen or taken)
        return clients.meet(name, update.node if is_news else None)

    def _refuse_foreign_correction(
        self, round: int, question: Question, update: Update, name: str
    ) -> None:
        """SCAFFOLD's and FedDyn's rows fit only the correction that was sent."""
        if self.sends_corrections and question.is_open:
            raise RefusedReplyError("it was not sent a correction: leave messages to the server")
        client, sent_row = self.rows.clients.named(name), question.rows.get(update.node)
        own_row = client.row if client and client.last_round else None
        if self.sends_corrections and sent_row != own_row and own_row is not None:
            self._meet(round, update, name)  # so that it is sent its own next time
            raise RefusedReplyError(f"it is {name!r}, but was sent another client's correction")

    # From updates to a step

    def _step(self, round: int, current: Sequence[tuple[Update, Client]], outcome: Outcome) -> None:
        asked = self.ledger.asked_in(round)
        sent_lr = None if asked is None else asked.sent_lr
        rate = self.units.rate_of([update for update, _ in current], sent_lr)
        self.ledger.note_rate(round, rate)
        current = self._not_diverged(current, rate, outcome)
        if not current:
            self.server.skip()
            return
        updates = [update for update, _ in current]
        scale = self.units.scale(updates, rate)
        if not self.sends_corrections:
            self._weigh(current)
        drawn = self.ledger.weights_of(round, [update.node for update in updates])
        stacked = self._round_updates(current, [rate] * len(current), scale, drawn)
        residuals = None if drawn is None else self.server.residuals(stacked).tolist()
        report = self.server.receive(stacked)
        if self.sends_corrections:  # which belong to the mean as it was when they were sent
            self._weigh(current)
        if not report.stepped:
            self.server.skip()
        for m, (update, client) in enumerate(current):
            if client.row in report.accepted:
                self.rows.refreshed(client, round)
                if residuals is not None:
                    self.rows.clients.observed(client, residuals[m])
                outcome.accepted.append(update)
                outcome.clipped += [client.name] * (client.row in report.clipped)
            else:
                outcome.refused.append((repr(client.name), report.refused[client.row]))
        self.units.count(outcome.accepted)
        if self.buffers and outcome.accepted:
            self.buffers = average_buffers([update.buffers for update in outcome.accepted])

    def _refresh(self, round: int, late: Sequence[tuple[Update, Client]], outcome: Outcome) -> None:
        """A row takes only what is newer than all it has, from clients that share it too."""
        newest: dict[int | str | None, int] = {}  # row: the round it can be brought up to
        for update, client in late:
            row = self.rows.row_of(client)
            if update.round > newest.get(row, self.rows.last_round(client)):
                newest[row] = update.round
        fresh = [(u, c) for u, c in late if newest.get(self.rows.row_of(c)) == u.round]
        used: list[Update] = []
        if fresh and self.units.are_settled:
            latest = self.units.latest_rate
            rates = [self._rate_of_late(update.round, late) for update, _ in fresh]
            if not self.sends_corrections:
                self._weigh(fresh)
            report = self.server.receive_late(self._round_updates(fresh, rates, latest))
            used = [update for update, client in fresh if client.row in report.accepted]
            outcome.clipped += [c.name for _, c in fresh if c.row in report.clipped]
        for update, client in late:
            staleness = round - update.round
            if update in used:
                self.rows.refreshed(client, update.round)
                outcome.refreshed.append((client.name, staleness))
            else:
                why = f"it comes {staleness} round(s) late"
                if (update, client) not in fresh:
                    why += ", and its row holds a newer update"
                outcome.refused.append((repr(client.name), why))
        self.units.count(used)

    def _not_diverged(
        self, current: Sequence[tuple[Update, Client]], rate: float, outcome: Outcome
    ) -> list[tuple[Update, Client]]:
        """Leaves out what the server would refuse: weights are shares among those that it uses."""
        usable = []
        for update, client in current:
            reach = update.magnitude / self.units.divisor(update, rate)
            if reach <= DIVERGED_ABOVE:
                usable.append((update, client))
            else:
                why = f"its update reaches {reach:.1e}: training diverged"
                outcome.refused.append((repr(client.name), why))
        return usable

    def _weigh(self, updates: Sequence[tuple[Update, Client]]) -> None:
        """Rows count by what their clients say now: in full participation ȳ is then Σ a_i y_i."""
        for update, client in updates:
            self.rows.clients.counted(client, update.num_examples)
        self.rows.weigh()

    def forget(self, client: Client) -> None:
        """Lets go of all that is known of a client, and of its row.

        Args:
            client: The client.
        """
        if client.node is not None:
            self.ledger.ask_no_more(client.node)
        self.rows.forget(client, in_shared_rows=True)

    def _rate_of_late(self, round: int, late: Sequence[tuple[Update, Client]]) -> float:
        """η of an earlier round: as its replies in time told it, else as those that come now do."""
        asked = self.ledger.asked_in(round)
        assert asked is not None  # a reply to it has just been read
        if asked.client_lr is None:
            updates = [update for update, _ in late if update.round == round]
            self.ledger.note_rate(round, self.units.rate_of_late(updates, asked.sent_lr))
        assert asked.client_lr is not None
        return asked.client_lr

    def _round_updates(
        self,
        updates: Sequence[tuple[Update, Client]],
        rates: Sequence[float],
        scale: float,
        drawn: Sequence[float] | None = None,
    ) -> RoundUpdates:
        """What the core server takes; in the replies' own memory, which `from_replies` copies.

        Args:
            updates: In the order of their rows.
            rates: η(t) of the round of each of them.
            scale: How far the server's model moves per unit of Δ.
            drawn: Weights that make up for how likely each was to be drawn; None: all the same.

        Returns:
            The updates; their differences w − w_i have become Δ_i.
        """
        magnitudes = []
        for (update, _), rate in zip(updates, rates, strict=True):
            magnitude, divisor = torch.tensor(update.magnitude), self.units.divisor(update, rate)
            if divisor != 1.0:
                update.difference.div_(divisor)  # Algorithm 1, line 6
                magnitude.div_(divisor)  # rounded as the largest number was
            magnitudes.append(float(magnitude))
        deltas = self._stacked([update.difference for update, _ in updates])
        examples = torch.tensor([update.num_examples for update, _ in updates]).double()
        gradients = [self.units.gradients_in_row(update) for update, _ in updates]
        weights = examples / examples.sum() if self.weighted_by_examples else None
        if drawn is not None:
            weights = torch.tensor(drawn, dtype=torch.float64)
        return RoundUpdates(
            clients=torch.tensor([client.row for _, client in updates]),
            deltas=deltas,
            num_steps=torch.tensor([update.num_steps for update, _ in updates]),
            num_examples=examples.ceil().long(),
            num_gradients=torch.tensor(gradients, dtype=torch.float64),
            scale=scale,
            weights=weights,
            measured=LargestEntries.known(magnitudes, deltas),
        )

    def _stacked(self, rows: Sequence[Tensor]) -> Tensor:  # (M, d)
        """Rows of `_memory`, without a copy if they lie one after the other, as they mostly do."""
        dim = self.reader.layout.dim
        positions = [row.storage_offset() // dim for row in rows]
        first, stop = positions[0], positions[0] + len(rows)
        in_order = positions == list(range(first, stop))
        return self._memory[first:stop] if in_order else self._memory[positions]
