"""What is sent in a round, by us or by others, and noted: replies do not say what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, Message

from fedvarp.flower.client import CORRECTION_RECORD
from fedvarp.flower.cohort import Candidate
from fedvarp.flower.ledger import Ledger
from fedvarp.flower.replies import ReplyReader
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
    """

    server: Server
    rows: ClientRows
    reader: ReplyReader
    ledger: Ledger
    sends_corrections: bool

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

    def note(
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
