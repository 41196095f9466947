"""The server: the model, the algorithm and the optimiser. The same object in every deployment."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from pydantic import InstanceOf
from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator, LatestUpdates
from fedvarp.algorithms.round_updates import MOST_STEPS, RoundUpdates
from fedvarp.errors import InvalidError
from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.server.step_checks import (
    refuse_belief_in_lengths,
    refuse_broken_model,
    refuse_direction,
    refuse_step,
)
from fedvarp.settings.checked import checked
from fedvarp.tables.largest_entries import DIVERGED_ABOVE

_LARGEST_STEP: Final = 1e30


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the server sends at the start of a round.

    Attributes:
        round: How many rounds came before.
        clients: (M,) int64, who is asked.
        w: (d,), a copy: it stays the model of this round.
        corrections: (M, d), added to each local gradient; None: nothing to add.
        buffers: Of the model, beside w.
        proximal: ρ: ρ (w_i − w) is added to each local gradient as well.
    """

    round: int
    clients: Tensor
    w: Tensor
    corrections: Tensor | None
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    proximal: float = 0.0


@dataclass(frozen=True)
class RoundReport:
    """What became of the replies of a round.

    Attributes:
        round: How many rounds were received, this one included if anything was accepted.
        accepted: The clients whose replies were used.
        refused: The others, and why theirs were not.
        stepped: Whether the model was moved and the round counted.
        clipped: Of those accepted, whose updates were shortened first.
        residuals: Of those accepted, ‖Δ_i − y_i‖ as the row was before; none unless asked for.
    """

    round: int
    accepted: tuple[int, ...]
    refused: Mapping[int, str]
    stepped: bool = False
    clipped: tuple[int, ...] = ()
    residuals: tuple[float, ...] = ()


class Server:
    """Sends the model out, takes updates in, and moves the model.

    Args:
        w: (d,), the first model; copied.
        aggregator: The algorithm, with its table.
        optimizer: How w moves along v; copied, and starts without a memory.

    Raises:
        ValueError: w is no vector of finite numbers, the table's rows have another length, or the
            optimiser believes what the algorithm is there not to believe.

    >>> from fedvarp import FedVARP, MemoryTable, ServerSGD
    >>> table = MemoryTable(num_clients=4, dim=2)
    >>> server = Server(torch.zeros(2), FedVARP(table), ServerSGD(lr=1.0))
    >>> steps = torch.tensor([1, 1])
    >>> deltas = torch.tensor([[2.0, 0.0], [0.0, float("nan")]])
    >>> report = server.receive(RoundUpdates(torch.tensor([0, 3]), deltas, steps, steps, scale=0.5))
    >>> report.accepted, list(report.refused)
    ((0,), [3])
    >>> server.w
    tensor([-1.,  0.])
    """

    @checked
    def __init__(self, w: Tensor, aggregator: Aggregator, optimizer: ServerOptimizer) -> None:
        if w.ndim != 1 or not w.is_floating_point() or not bool(w.isfinite().all()):
            raise InvalidError(
                f"The server's model must be one vector of finite numbers, not {w.dtype} of shape "
                f"{tuple(w.shape)}. FlatModel turns any nn.Module into one."
            )
        table = aggregator.table
        if table is not None and (table.dim, table.dtype) != (len(w), w.dtype):
            raise InvalidError(
                f"The table has rows of {table.dim} numbers ({table.dtype}), the model has "
                f"{len(w)} ({w.dtype}). Make the table with dim={len(w)}."
            )
        refuse_belief_in_lengths(aggregator, optimizer)
        self.w = w.detach().clone()
        self.aggregator = aggregator
        self.optimizer = copy.deepcopy(optimizer)
        self.optimizer.load_state_dict({})  # another server's memory is not ours
        self.round = 0

    @torch.no_grad()
    def broadcast(self, clients: Tensor, out: Tensor | None = None) -> Broadcast:
        """What to send at the start of a round.

        Args:
            clients: (M,) int64, who is asked.
            out: (d,), memory for the copy of w; fresh pages cost ten times what copying does.

        Returns:
            w, and what the algorithm adds to the local gradients, if anything.

        Raises:
            IndexError: The table does not know one of the clients.
        """
        return Broadcast(
            round=self.round,
            clients=clients,
            w=self.w.clone() if out is None else out.copy_(self.w),
            corrections=self.aggregator.corrections(clients),
            proximal=self.aggregator.proximal,
        )

    @checked
    @torch.no_grad()
    def receive(
        self, updates: InstanceOf[RoundUpdates], with_residuals: bool = False
    ) -> RoundReport:
        """One round: v from the updates, then a step of w.

        A reply that cannot be used costs nothing but itself; it is as if that client had never
        answered. If none can be used, everything stays as it was, the round number too; only where
        weights make v a sum, which is known without replies, w moves by what the rows say.

        Args:
            updates: What came back.
            with_residuals: Whether the report says how far each update was from what its row
                foretold; by its whole length for an algorithm whose rows are no updates.

        Returns:
            Whose replies were used, and why the others were not.

        Raises:
            ValueError: The updates do not fit together: lengths, dtypes, a client named twice.
                Nothing has changed.
            IndexError: The table does not know one of the clients. Nothing has changed.
            StepError: The algorithm's v, or what the optimiser made of w, cannot be used. w has not
                moved if it is v; but the algorithm's memory has taken the round in, so this server
                is of no more use: go on from a checkpoint.
        """
        updates.check()
        usable = self._usable(updates)
        if usable.refused:
            refuse_broken_model(self.w, self.optimizer)
        accepted = tuple(usable.clients.tolist())
        v: Tensor | None = None
        residuals: tuple[float, ...] = ()
        if accepted:
            usable = self.aggregator.admit(usable)
            _refuse_overflow(usable)
            residuals = self._residuals(usable) if with_residuals else ()
            v = self.aggregator.aggregate(usable)  # Algorithms 2 and 3, line 8
            refuse_direction(v, self.w, self.aggregator, "aggregate")
        elif usable.weights is not None:
            v = self.aggregator.without_replies()
            if v is not None:
                refuse_direction(v, self.w, self.aggregator, "without_replies")
        if v is not None:
            dim = len(self.w)
            self.optimizer.observe(usable)
            self.optimizer.step(self.w, v, usable.scale)  # line 9
            refuse_step(self.w, dim, self.optimizer)
            self.round += 1
        refused, clipped = dict(usable.refused), tuple(sorted(usable.shortened))
        return RoundReport(self.round, accepted, refused, v is not None, clipped, residuals)

    @torch.no_grad()
    def receive_late(self, updates: RoundUpdates) -> RoundReport:
        """Replies that came too late for their round: they refresh rows; w stays where it is.

        None is accepted by an algorithm that keeps no updates (FedAvg), or keeps them relative to
        the round they belong to (SCAFFOLD).

        Args:
            updates: What came back.

        Returns:
            Whose replies were used, and why the others were not.

        Raises:
            ValueError: The updates do not fit together.
            IndexError: The table does not know one of the clients.
        """
        updates.check()
        usable = self._usable(updates)
        if len(usable.clients):
            usable = self.aggregator.admit(usable)
        remembered = len(usable.clients) > 0 and self.aggregator.receive_late(usable)
        accepted = tuple(usable.clients.tolist()) if remembered else ()
        clipped = tuple(sorted(usable.shortened)) if remembered else ()
        return RoundReport(self.round, accepted, dict(usable.refused), clipped=clipped)

    def skip(self) -> None:
        """Counts a round in which nobody answered, so that the next one draws another cohort."""
        self.round += 1

    @property
    def num_bytes(self) -> int:
        """Memory (or disk) that the model, the optimiser and the algorithm's memory take."""
        table = self.aggregator.table
        tensors = [*self.optimizer.state_dict().values(), *self.aggregator.state_dict().values()]
        remembered = sum(tensor.nbytes for tensor in tensors)
        return self.w.nbytes + remembered + (0 if table is None else table.num_bytes)

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved run to go on with this server."""
        return {
            "dim": len(self.w),
            "model_dtype": str(self.w.dtype).removeprefix("torch."),
            **self.optimizer.describe(),
            **self.aggregator.describe(),
        }

    def _residuals(self, updates: RoundUpdates) -> tuple[float, ...]:
        """‖Δ_i − y_i‖; ‖Δ_i‖ for an algorithm whose rows are no updates."""
        table, deltas = self.aggregator.table, updates.deltas
        if table is not None and isinstance(self.aggregator.unwrapped, LatestUpdates):
            deltas = deltas - table.get(updates.clients)
        return tuple(torch.linalg.vector_norm(deltas, dim=1, dtype=torch.float64).tolist())

    def _usable(self, updates: RoundUpdates) -> RoundUpdates:
        """The replies that can be used, by client number: their order of arrival means nothing."""
        measured = updates.largest_entries
        if measured is not updates.measured:
            updates = replace(updates, measured=measured)  # one look for all to come
        clients = updates.clients.tolist()
        common = self._fault_of_all(updates.deltas)
        told = zip(
            clients,
            updates.num_steps.tolist(),
            updates.gradient_counts.tolist(),
            updates.num_examples.tolist(),
            measured.values,
            strict=True,
        )
        refused = {
            client: why for client, *claims in told if (why := common or _fault(claims)) is not None
        }
        order = sorted(
            (m for m, client in enumerate(clients) if client not in refused),
            key=clients.__getitem__,
        )
        return updates if order == list(range(len(clients))) else updates.keep(order, refused)

    def _fault_of_all(self, deltas: Tensor) -> str | None:
        """Why no reply can be used; None if it depends on the reply."""
        numbers, dtype = deltas.shape[1], deltas.dtype
        if numbers != len(self.w):
            return f"its update has {numbers} numbers, the model has {len(self.w)}"
        if dtype != self.w.dtype:
            return f"its update is {dtype}, the model is {self.w.dtype}"
        return None


def _fault(claims: Sequence[float]) -> str | None:
    """Why a reply cannot be used; None if it can."""
    steps, gradients, examples, largest = claims
    if not 1 <= steps <= MOST_STEPS:
        return f"it reports {steps} local steps"
    if not 0 < gradients < math.inf:
        return f"it says that its update adds up {gradients:g} gradients"
    if examples < 0:
        return f"it reports {examples} examples"
    if not math.isfinite(largest):
        return "its update holds NaN or infinity: local training diverged; lower client_lr"
    if largest > DIVERGED_ABOVE:
        return f"its update reaches {largest:.1e}: local training diverged; lower client_lr"
    return None


def _refuse_overflow(updates: RoundUpdates) -> None:
    """Weights or a scale beyond all reason would make w infinite after the table has changed."""
    largest = max(updates.largest_entries.values)
    weight = 1.0 if updates.weights is None else float(updates.weights.double().abs().sum())
    reach = largest * weight * updates.scale
    if reach > _LARGEST_STEP:
        raise InvalidError(
            f"The step of this round would reach {reach:.1e}, with replies of at most "
            f"{largest:.1e}: the rate of clients or server is too high. Lower client_lr or "
            f"server.lr; if you make RoundUpdates yourself, look at its weights and scale."
        )
