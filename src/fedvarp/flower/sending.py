"""What is sent in a round, by us or by others, and noted: replies do not say what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.flower.arrays import UnusableArraysError
from fedvarp.flower.client import CORRECTION_RECORD
from fedvarp.flower.cohort import Candidate
from fedvarp.flower.ledger import Ledger
from fedvarp.flower.replies import RefusedReplyError, ReplyReader
from fedvarp.flower.rows import ClientRows
from fedvarp.flower.units import rate_sent
from fedvarp.server.server import Broadcast, Server


@dataclass(frozen=True, eq=False)
class Sending:
    """Notes in the ledger what goes out.

    Attributes:
        server: The model.
        rows: Which client has which row.
        reader: Finds models in messages.
        ledger: Who was asked what.
        sends_corrections: See `TrainingRounds`.
        lr_key: Where configurations have the rate; None: under one of the usual names.
    """

    server: Server
    rows: ClientRows
    reader: ReplyReader
    ledger: Ledger
    sends_corrections: bool
    lr_key: str | None

    def send(self, round: int, cohort: Sequence[Candidate]) -> Broadcast:
        """Prepares what these clients are sent, and notes it in the ledger.

        A node whose client is not known has no row yet; SCAFFOLD sends it the correction of a row
        never written.

        Args:
            round: The round, counted from 1.
            cohort: Who is asked; all online.

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
        self.ledger.ask(round, broadcast.w, rows_of, weights)
        return broadcast

    def note(self, round: int, messages: Sequence[Message], sent: ArrayRecord) -> None:
        """Notes what messages say as they go out.

        A strategy's own `configure_train` may have made them, or have changed those of the server.

        Args:
            round: The round, counted from 1.
            messages: All of the round.
            sent: The model as the server would send it.

        Raises:
            InvalidError: One of them holds another kind of model.
        """
        others = [m for m in messages if not self.ledger.has_addressed(round, m)]
        if self.sends_corrections:  # those without will not be answered to: see `Reception`
            others = [m for m in others if CORRECTION_RECORD in m.content.config_records]
        if others:
            self._address(round, others)
        question = self.ledger.asked_in(round)
        if question is None:
            return
        question.unread = None
        rates: list[float | None] = []
        models: dict[int, Tensor] = {}
        for message in messages:
            node, content = message.metadata.dst_node_id, message.content
            if node not in question.rows:
                continue
            rates += [rate_sent(config, self.lr_key) for config in content.config_records.values()]
            try:
                arrays = self.reader.arrays_in(content)
                if arrays is not sent:
                    question.models[node] = self._model(arrays, models)
            except (RefusedReplyError, UnusableArraysError) as error:
                raise InvalidError(
                    f"The message to node {node} does not hold the model that is trained: {error}. "
                    f"Whoever makes or changes messages in configure_train must leave the arrays "
                    f"their names, shapes and types."
                ) from error
        question.sent_lr = next((rate for rate in rates if rate is not None), None)

    def _model(self, arrays: ArrayRecord, read: dict[int, Tensor]) -> Tensor:  # (d,) float32
        """The model in a record, which others may have been sent as well: `read` has it by id."""
        if id(arrays) not in read:
            self.reader.layout.check(arrays)
            read[id(arrays)] = self.reader.layout.vector(arrays)
        return read[id(arrays)]

    def _address(self, round: int, others: Sequence[Message]) -> None:
        """Takes messages of others for the server's own."""
        asked = self.ledger.asked_in(round)
        w = self.server.w.clone() if asked is None else asked.w
        for message in others:
            node = message.metadata.dst_node_id
            client = self.rows.clients.at(node)
            self.ledger.ask(round, w, {node: client.row if client else None})
            message.metadata.group_id = str(round)
        self.ledger.address(round, others)
