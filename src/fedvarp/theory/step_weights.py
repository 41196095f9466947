"""Which objective a training optimises: how much each client counts in it.

Plain model differences add up as many gradients as a client takes steps. What FedAvg and its kin
descend then is the uniform mean of f̃_i = (τ_i/τ̄) f_i, clients weighed by their steps; where updates
are divided by τ_i (`normalise_steps`), it is the uniform mean of the f_i. Clients that take equally
many steps have a factor of 1 in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.theory.intervals import VARIATION


@dataclass(frozen=True, eq=False)
class StepWeights:
    """The steps of clients, and what they weigh.

    Attributes:
        local_sgd: What a client does.
        clients: (k,) int64, those whose sizes are known: all, or those that were looked at.
        num_examples: (k,) int64, how many examples each has.
        num_steps: (k,) int64, τ_i counted.
        mean_gradients: τ̄, the mean over these clients of the gradients that an update adds up.
    """

    local_sgd: LocalSGD
    clients: Tensor
    num_examples: Tensor
    num_steps: Tensor
    mean_gradients: float

    @classmethod
    def of_clients(
        cls, dataset: FederatedDataset, local_sgd: LocalSGD, measured: Tensor
    ) -> StepWeights:
        """Counts the steps of all clients; where sizes are not known, of those measured.

        Args:
            dataset: The clients' examples.
            local_sgd: What a client does.
            measured: (n,) int64, the clients that are looked at anyway.

        Returns:
            Their steps.
        """
        if dataset.num_examples is not None:
            clients, sizes = torch.arange(dataset.num_clients), dataset.num_examples
        else:
            counts = [len(dataset.client(client)[0]) for client in measured.tolist()]
            clients, sizes = measured, torch.tensor(counts)
        different, which = torch.unique(sizes, return_inverse=True)
        steps = [len(local_sgd.batch_sizes(size)) for size in different.tolist()]
        taken = torch.tensor([local_sgd.num_gradients(count) for count in steps]).double()
        return cls(
            local_sgd=local_sgd,
            clients=clients,
            num_examples=sizes,
            num_steps=torch.tensor(steps)[which],
            mean_gradients=float(taken[which].mean()),
        )

    @property
    def unit(self) -> float:
        """What an update is divided by to be compared with the objective's gradient."""
        return 1.0 if self.local_sgd.normalise_steps else self.mean_gradients

    def factor(self, num_steps: int) -> float:
        """How much a client of so many steps counts: f̃_i = factor · f_i.

        Args:
            num_steps: τ_i.

        Returns:
            τ_i/τ̄, or 1 where updates are divided by τ_i.
        """
        return self.local_sgd.num_gradients(num_steps) / self.walk_unit(num_steps)

    @property
    def variation(self) -> float:
        """What squared lengths vary by over their mean, if updates are as long as their weights.

        The clients that take most steps have the longest updates, drawn or not, and their sizes are
        known beforehand. Nothing below what is supposed of clients that are all alike in this.
        """
        steps, which = torch.unique(self.num_steps, return_inverse=True)
        factors = torch.tensor([self.factor(count) for count in steps.tolist()]).double()
        squares = factors.square()[which]
        return max(VARIATION, float(squares.std(correction=0) / squares.mean()))

    def walk_unit(self, num_steps: int) -> float:
        """What (w − w_i)/η_c of a walk is divided by to be compared with the objective's gradient.

        Args:
            num_steps: Of the walk.

        Returns:
            τ̄, or τ_i where updates are divided by it.
        """
        if self.local_sgd.normalise_steps:
            return self.local_sgd.num_gradients(num_steps)
        return self.mean_gradients

    def except_for(self, left_out: list[int]) -> StepWeights:
        """Leaves some clients out, as those whose training diverged.

        Args:
            left_out: Their numbers.

        Returns:
            The steps of the others; τ̄ is still that of all.
        """
        kept = ~torch.isin(self.clients, torch.tensor(left_out, dtype=torch.int64))
        return StepWeights(
            self.local_sgd,
            self.clients[kept],
            self.num_examples[kept],
            self.num_steps[kept],
            self.mean_gradients,
        )
