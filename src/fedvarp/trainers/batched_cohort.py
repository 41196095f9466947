"""The examples of a round's clients, cut into batches that all of them read at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.data.federated_dataset import Augmentation
from fedvarp.randomness import stream
from fedvarp.server.server import Broadcast
from fedvarp.trainers.cohort_plan import PADDING, CohortPlan
from fedvarp.trainers.sequential import corrections_by_client


@dataclass(frozen=True, eq=False)
class BatchedCohort:
    """The clients of a round, those with the most steps first, and all of their batches."""

    plan: CohortPlan
    corrections: Tensor | None  # (M, d)
    x: Tensor  # (n, ...), the examples of all clients; (steps, M, batch size, ...) in order
    y: Tensor  # as x
    batches: Tensor | None  # (steps, M, batch size) rows of x and y, or PADDING; None: in order
    augment: Augmentation | None
    augmenting: list[torch.Generator]

    @classmethod
    def of(
        cls, plan: CohortPlan, broadcast: Broadcast, augment: Augmentation | None, seed: int
    ) -> BatchedCohort:
        """Reads the examples.

        Args:
            plan: Who reads which of them when.
            broadcast: What the server sent.
            augment: Random changes to a batch.
            seed: Of these changes.
        """
        device, rows, batches = broadcast.w.device, plan.rows, plan.batches
        x, y = (part.index_select(0, rows.view(-1)).to(device) for part in (plan.x, plan.y))
        if batches is None:
            x, y = (part.view(*rows.shape, *part.shape[1:]) for part in (x, y))
        by_client = corrections_by_client(broadcast)
        keys = [(plan.round, i) for i in plan.ordered] if augment else []
        return cls(
            plan=plan,
            corrections=torch.stack([by_client[i] for i in plan.ordered]) if by_client else None,
            x=x,
            y=y,
            batches=None if batches is None else batches.to(device),
            augment=augment,
            augmenting=[stream(seed, "augment", *key) for key in keys],
        )

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """What is read in one step of all clients.

        Args:
            step: Its number.

        Returns:
            Inputs (A, B, ...), targets (A, B, ...) and which of them are real; None: all.
        """
        real, sizes = None, self.plan.sizes[step]
        if self.batches is None:
            x, y = self.x[step], self.y[step]
        else:
            rows = self.batches[step, : len(sizes)]
            if min(sizes) < rows.shape[1]:
                real = rows != PADDING
                # Padding counts for nothing, but 0 · inf is NaN: it must not be another client's.
                rows = torch.where(real, rows, rows[:, :1])
            x, y = (part.index_select(0, rows.reshape(-1)) for part in (self.x, self.y))
            x, y = (part.view(*rows.shape, *part.shape[1:]) for part in (x, y))
        if self.augment is not None:
            for inputs, size, generator in zip(x, sizes, self.augmenting, strict=False):
                inputs[:size] = self.augment(inputs[:size], generator)
        return x, y, real
