"""FedDyn (Acar et al., ICLR 2021, Algorithm 1), with the clients' gradients on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.settings.bounds import Positive
from fedvarp.settings.checked import check_fields
from fedvarp.tables.base import ClientTable


@dataclass(eq=False)
class FedDyn(Aggregator):
    """Clients descend f_i(w_i) − ⟨h_i, w_i⟩ + α/2 ‖w_i − w‖², and in the end all rest at one model.

    h_i is the gradient of f_i where client i last came to rest (the paper's ∇L_k): there
    ∇f_i(w_i) − h_i + α (w_i − w) = 0, so that h_i ← h_i − α (w_i − w). The local gradient gets the
    correction −h_i and the proximal term α (w_i − w) added.

    The textbook keeps h_i on client i: w goes down and w_i comes up, the traffic of FedAvg. Here
    the server holds all h_i and sends −h_i along with w: the same iterates, and a client that lost
    its disk has lost nothing, for one vector more on the way down, which is counted. An update must
    belong to the last broadcast: h_i moves by what it says.

    In our units. Δ_i = (w − w_i) / η_c(t) and the server steps w ← w − η_s·scale·v with
    scale = η_c(t), so that w − w_i = scale·Δ_i and:

    - h_i ← h_i − α (w_i − w) = h_i + α·scale·Δ_i;
    - h ← h − α/N Σ_{i∈S} (w_i − w) is the mean of all N rows, those of the absent unchanged, as it
      is that of the rows at first, when all are zero: the table's mean;
    - w_new = 1/M Σ_{i∈S} w_i − h/α = w − scale·(1/M Σ Δ_i + h / (α·scale)), so that, with η_s = 1,
      v = 1/M Σ_{i∈S} Δ_i + h / (α·scale).

    E[v] over cohorts is (1 + M/N) Δ̄ + h/(α·scale) with the h of before: it depends on M, so that v
    is not unbiased, and 2Δ̄ + h/(α·scale) with full participation, which is not FedAvg's. Where it
    rests no client moves: h_i = ∇f_i(w) and h = 0, the optimum of the uniform objective, whatever
    the clients' numbers of steps.

    Args:
        h: A table with one row per client.
        alpha: α, how strongly clients are drawn back; the paper's are 0.001, 0.01 and 0.1. The
            larger, the smaller the steps; the smaller, the larger h/α.
    """

    vectors_down: ClassVar[int] = 2  # w and −h_i; the textbook sends w alone
    counts_steps: ClassVar[bool] = False  # it rests where no client moves
    unbiased: ClassVar[bool] = False  # see above; as published
    full_is_fedavg: ClassVar[bool] = False
    needs_models: ClassVar[bool] = True  # h_i is a gradient at w_i itself

    h: ClientTable
    alpha: Positive = 0.1

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def proximal(self) -> float:
        """α: each local gradient has α (w_i − w) added."""
        return self.alpha

    def corrections(self, clients: Tensor) -> Tensor:
        """−h_i, (M, d), for the local gradients of these clients."""
        return self.h.get(clients).neg_()

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """h_i ← h_i − α (w_i − w) for i ∈ S, h ← mean of all, v takes w to mean w_i − h/α."""
        S, delta, per_delta = updates.clients, updates.deltas, self.alpha * updates.scale
        self.h.put(S, self.h.get(S).add_(delta, alpha=per_delta))  # h_i ← h_i − α (w_i − w)
        h = self.h.mean()  # h ← h − α/N Σ (w_i − w)
        return updates.average(delta).add_(h.div_(per_delta))  # w_new = mean w_i − h/α

    @property
    def table(self) -> ClientTable:
        """h_1 … h_N."""
        return self.h

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved run to go on: α too."""
        return {**super().describe(), "alpha": self.alpha}
