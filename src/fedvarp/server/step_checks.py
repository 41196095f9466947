"""What the server holds against the algorithm and the optimiser before it believes them.

Clients are checked reply by reply; these two are code of this process, perhaps the user's own. A
fault of theirs would otherwise show up a round later, as clients whose training diverges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from fedvarp.errors import FedvarpError, InvalidError
from fedvarp.server.optimizers import ServerMomentum, ServerOptimizer, ServerSGD

if TYPE_CHECKING:
    from fedvarp.algorithms.aggregator import Aggregator

_FINITE_FOR_FINITE_V: Final = (ServerSGD, ServerMomentum)

_THE_ROUND_IS_LOST: Final = (
    "The algorithm has taken the round's updates into its memory already, so the run ends here: a "
    "run that is kept can be resumed from its last checkpoint, which is whole."
)


class StepError(FedvarpError):
    """The algorithm or the optimiser gave the server what its model cannot take."""


def refuse_belief_in_lengths(aggregator: Aggregator, optimizer: ServerOptimizer) -> None:
    """Refuses an optimiser that believes what the algorithm is there not to believe.

    Args:
        aggregator: The algorithm.
        optimizer: How w moves along v.

    Raises:
        InvalidError: Steps would be as long as a single client likes.
    """
    if not optimizer.follows_lengths or aggregator.bounds_lengths:
        return
    if aggregator.withstands_outliers:
        raise InvalidError(
            f"{type(optimizer).__name__} steps by the lengths of all updates, of which a single "
            f"client can make what it likes, and {type(aggregator).__name__} is there for clients "
            f'that do. Bound the lengths too, with clip_updates = "median" or Clipped(…), or step '
            f"with another server optimiser."
        )


def refuse_direction(v: object, w: Tensor, aggregator: Aggregator, method: str) -> None:
    """Refuses a direction that would break the model; w has not moved.

    Args:
        v: What the algorithm returned.
        w: (d,), the model.
        aggregator: The algorithm.
        method: Which of its methods returned it.

    Raises:
        StepError: v is no vector of finite numbers with the model's shape, dtype and device; names
            the algorithm.
    """
    who = f"{type(aggregator.unwrapped).__name__}.{method} returned"
    if not isinstance(v, Tensor):
        hint = " Is its `return` missing?" if v is None else ""
        raise StepError(
            f"{who} {type(v).__name__}, not v, the direction of the server's step: one tensor of "
            f"{len(w)} numbers.{hint} {_THE_ROUND_IS_LOST}"
        )
    if v.shape != w.shape:
        raise StepError(
            f"{who} a tensor of shape {tuple(v.shape)}; v must have one number for each of the "
            f"model's {len(w)} parameters. Average over clients, dim=0, and over nothing else. "
            f"{_THE_ROUND_IS_LOST}"
        )
    if (v.dtype, v.device) != (w.dtype, w.device):
        raise StepError(
            f"{who} {v.dtype} on {v.device}, the model is {w.dtype} on {w.device}. Return "
            f"v.to(updates.deltas). {_THE_ROUND_IS_LOST}"
        )
    if not _is_finite(v):
        raise StepError(
            f"{who} a v that holds NaN or infinity, though every reply it was given is finite. "
            f"Look for a division by zero, a logarithm or a square root in it. {_THE_ROUND_IS_LOST}"
        )


def refuse_step(w: Tensor, dim: int, optimizer: ServerOptimizer) -> None:
    """Refuses a model that an optimiser has broken.

    Our own optimisers are not looked after each time: from a finite v they make a finite w, and at
    the size of ResNet-18 the look costs 3 % of a round. `refuse_broken_model` catches the rest.

    Args:
        w: The model after the step.
        dim: d, how many numbers it had before.
        optimizer: Who made the step.

    Raises:
        StepError: w has another shape, or is not finite; names the optimiser.
    """
    if tuple(w.shape) != (dim,):
        raise StepError(
            f"{type(optimizer).__name__}.step changed the model's shape from {(dim,)} to "
            f"{tuple(w.shape)}. It must move w in place: `w.sub_(…)`. {_THE_ROUND_IS_LOST}"
        )
    if type(optimizer) not in _FINITE_FOR_FINITE_V:
        refuse_broken_model(w, optimizer)


def refuse_broken_model(w: Tensor, optimizer: ServerOptimizer) -> None:
    """Refuses to blame clients for what they were sent.

    Args:
        w: (d,), the model.
        optimizer: Who made it what it is.

    Raises:
        StepError: w is not finite; names the optimiser.
    """
    if not _is_finite(w):
        raise StepError(
            f"{type(optimizer).__name__}.step made the server's model NaN or infinite from a "
            f"finite v. Its rate is too high, or it divides by zero. {_THE_ROUND_IS_LOST}"
        )


def _is_finite(vector: Tensor) -> bool:
    # A sum is finite only if all its terms are, and is found at the speed of memory; `isfinite`
    # takes ten times as long and is asked only where terms may be finite and their sum is not.
    return bool(torch.isfinite(vector.sum())) or bool(torch.isfinite(vector).all())
