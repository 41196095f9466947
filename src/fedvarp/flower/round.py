"""One round of training: replies in, one step of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.errors import InvalidError
from fedvarp.flower.identity import Client, Presence
from fedvarp.flower.ledger import Ledger
from fedvarp.flower.reception import Outcome, Reception
from fedvarp.flower.replies import RefusedReplyError, ReplyReader, Update
from fedvarp.flower.rows import ClientRows
from fedvarp.flower.sending import Sending
from fedvarp.flower.units import UpdateUnits
from fedvarp.server.flat_model import average_buffers
from fedvarp.server.server import Server
from fedvarp.tables.largest_entries import DIVERGED_ABOVE, LargestEntries

_EARLIER_VISITS: Final = 5  # of a node, on average, in which it is looked for


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
        max_row_age: Rounds after which a row is dropped whose client was not heard of; None: never.
        lr_key: See `Sending`.
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
    max_row_age: int | None
    lr_key: str | None

    @cached_property
    def sending(self) -> Sending:
        """What goes out."""
        return Sending(
            self.server, self.rows, self.reader, self.ledger, self.sends_corrections, self.lr_key
        )

    @cached_property
    def reception(self) -> Reception:
        """What comes in."""
        return Reception(self.rows, self.reader, self.ledger, self.identity, self.sends_corrections)

    @property
    def record(self) -> ArrayRecord:
        """The model as Flower sends it."""
        return self.reader.layout.record(self.server.w, self.buffers)

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
            raise InvalidError(
                "The model to be sent holds NaN or infinity. Somebody has changed it."
            )
        self.server.w.copy_(w)
        self.buffers = buffers

    def receive(self, round: int, replies: Sequence[Message], min_replies: int) -> Outcome:
        """Makes one step of the server from whatever came back.

        Args:
            round: The round, counted from 1.
            replies: Those that came in its time, late ones to earlier rounds among them.
            min_replies: With fewer good replies to this round, nothing changes but its number.

        Returns:
            What became of each reply.
        """
        outcome, asked = Outcome(), self.ledger.asked_in(round)
        if asked is not None and asked.unread is not None:
            self.sending.note(round, *asked.unread)
        if replies and asked is None:
            self.ledger.ask_anybody(round, self.server.w.clone())
            self._count_without_a_list(round, replies)
        updates = self._believed(self.reception.read(round, replies, outcome), outcome)
        late = [(u, c) for u, c in updates if u.round != round]
        current = [(u, c) for u, c in updates if u.round == round]
        if late:
            self._refresh(round, late, outcome)
        if len(current) < max(1, min_replies):
            self.server.skip()
            why = f"only {len(current)} of at least {min_replies} replies can be used"
            for _, client in current:
                outcome.refuse(repr(client.name), why)
        else:
            self._step(round, current, outcome)
        self.ledger.forget(round)
        return outcome

    def count(self, round: int, presence: Presence) -> None:
        """Lets rows count whose clients are there, and which are young enough.

        Args:
            round: The round that begins, counted from 1.
            presence: Who is there.
        """
        if self.max_row_age is not None:
            self.rows.expire(round - self.max_row_age)
        self.rows.count(presence)

    def _count_without_a_list(self, round: int, replies: Sequence[Message]) -> None:
        """Whose rows count where somebody else has sent the messages, so that no list is at hand.

        A node that was not heard of for five times as long as it takes to hear of all once is taken
        to be gone, until it is heard of again.
        """
        clients = self.rows.clients
        heard = {reply.metadata.src_node_id for reply in replies}
        since = round - _EARLIER_VISITS * -(-len(clients) // len(heard))
        online = {c.node for c in clients if not c.is_nameless or c.last_round >= since}
        listed = sorted(heard | {node for node in online if node is not None})
        self.count(round, clients.look(listed))

    def _believed(
        self, updates: Sequence[tuple[Update, Client]], outcome: Outcome
    ) -> list[tuple[Update, Client]]:
        """With what is believed of what clients say of themselves."""
        believed = self.units.believed([update for update, _ in updates])
        for (update, client), now in zip(updates, believed, strict=True):
            if now is not update:
                outcome.doubted.append(client.name)
        return [(now, client) for now, (_, client) in zip(believed, updates, strict=True)]

    def _step(self, round: int, current: Sequence[tuple[Update, Client]], outcome: Outcome) -> None:
        asked = self.ledger.asked_in(round)
        sent_lr = None if asked is None else asked.sent_lr
        rate = self.units.rate_of([update for update, _ in current], sent_lr)
        self.ledger.note_rate(round, rate)
        current = self._in_bounds(current, rate, outcome)
        if not current:
            self.server.skip()
            return
        updates = [update for update, _ in current]
        scale = self.units.scale(updates, rate)
        if not self.sends_corrections:
            self._weigh(current)
        drawn = self.ledger.weights_of(round, [update.node for update in updates])
        stacked = self._round_updates(current, [rate] * len(current), scale, drawn)
        report = self.server.receive(stacked, with_residuals=drawn is not None)
        residuals = dict(zip(report.accepted, report.residuals, strict=False))
        if self.sends_corrections:  # which belong to the mean as it was when they were sent
            self._weigh(current)
        if not report.stepped:
            self.server.skip()
        for update, client in current:
            if client.row in report.accepted:
                self.rows.refreshed(client, round)
                if client.row in residuals:
                    self.rows.clients.observed(client, residuals[client.row])
                outcome.accepted.append(update)
                outcome.clipped += [client.name] * (client.row in report.clipped)
            else:
                outcome.refuse(repr(client.name), report.refused[client.row])
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
            if not self.sends_corrections:
                self._weigh(fresh)
            for earlier in sorted({update.round for update, _ in fresh}):  # the newest row stays
                cohort = [(u, c) for u, c in fresh if u.round == earlier]
                rates = [self._rate_of_late(earlier, late)] * len(cohort)
                updates = self._round_updates(cohort, rates, self.units.latest_rate)
                report = self.server.receive_late(updates)
                used += [update for update, client in cohort if client.row in report.accepted]
                outcome.clipped += [c.name for _, c in cohort if c.row in report.clipped]
        for update, client in late:
            staleness = round - update.round
            if update in used:
                self.rows.refreshed(client, update.round)
                outcome.refreshed.append((client.name, staleness))
            else:
                why = f"it comes {staleness} round(s) late"
                if (update, client) not in fresh:
                    why += ", and its row holds a newer update"
                outcome.refuse(repr(client.name), why)
        self.units.count(used)

    def _in_bounds(
        self, current: Sequence[tuple[Update, Client]], rate: float, outcome: Outcome
    ) -> list[tuple[Update, Client]]:
        """Leaves out what the server would refuse: weights are shares among those that it uses.

        The bounds hold for the row and the step that are made of a reply, not only for its arrays.
        """
        usable, scale = [], self.units.scale([update for update, _ in current], rate)
        for update, client in current:
            divisor = self.units.divisor(update, rate)
            try:
                if update.magnitude / divisor > DIVERGED_ABOVE:
                    reach = update.magnitude / divisor
                    raise RefusedReplyError(f"its update reaches {reach:.1e}: training diverged")
                self.reader.refuse_long(update.norm, scale / divisor)
                usable.append((update, client))
            except RefusedReplyError as why:
                outcome.refuse(repr(client.name), why)
        return usable

    def _weigh(self, updates: Sequence[tuple[Update, Client]]) -> None:
        """Rows count by what their clients say now: in full participation ȳ is then Σ a_i y_i."""
        for update, client in updates:
            self.rows.counted(client, update.num_examples)
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
        magnitudes, norms = [], []
        for (update, _), rate in zip(updates, rates, strict=True):
            magnitude, divisor = torch.tensor(update.magnitude), self.units.divisor(update, rate)
            if divisor != 1.0:
                update.difference.div_(divisor)  # Algorithm 1, line 6
                magnitude.div_(divisor)  # rounded as the largest number was
            magnitudes.append(float(magnitude))
            norms.append(update.norm / divisor)
        deltas = self.reception.stacked([update for update, _ in updates])
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
            measured=LargestEntries.known(magnitudes, deltas, norms),
        )
