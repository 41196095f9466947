"""What came back in one round: the only thing an algorithm ever sees of its clients."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.tables.checks import refuse_duplicates
from fedvarp.tables.largest_entries import LargestEntries, stacked
from fedvarp.tables.norms import norm

MOST_STEPS: Final = 10**7
"""More local steps in a round are a fault, or a lie."""

_MOST_EXAMPLES: Final = 10**12


@dataclass(frozen=True, eq=False)
class Reply:
    """One client's answer, as it arrives over a network: nothing about it is trusted yet.

    Attributes:
        client: Its number.
        delta: (d,), (w − w_i) / η_c, the sum of its local gradients.
        num_steps: τ_i, as the client counts them.
        num_examples: How many examples it holds.
    """

    client: int
    delta: Tensor
    num_steps: int
    num_examples: int


@dataclass(frozen=True, eq=False)
class RoundUpdates:
    """What came back in one round. Row m belongs to clients[m]; who dropped out has no row.

    An update is what a client's model moved by, over the round's rate: Δ_i = (w − w_i) / η_c(t),
    the sum of its local gradients. The mean of the Δ_i times the scale then takes w to the mean of
    the clients' models, whatever their numbers of steps, and rows of earlier rounds stay comparable
    when the rate decays. Where steps are normalised (`LocalSGD.normalise_steps`) Δ_i is divided by
    τ_i too, and the scale holds the mean τ of all clients in its place.

    >>> updates = RoundUpdates(
    ...     clients=torch.tensor([3, 8]),
    ...     deltas=torch.tensor([[1.0, 0.0], [3.0, 2.0]]),
    ...     num_steps=torch.tensor([10, 10]),
    ...     num_examples=torch.tensor([50, 50]),
    ...     scale=0.1,
    ... )
    >>> updates.average(updates.deltas)
    tensor([2., 1.])
    """

    clients: Tensor  # (M,) int64, distinct
    deltas: Tensor  # (M, d) float32, (w - w_i) / eta_c(t): Algorithm 1, line 6
    num_steps: Tensor  # (M,) int64, tau_i as counted, not as planned
    num_examples: Tensor  # (M,) int64
    scale: float  # eta_c(t): how far w moves per unit of delta
    weights: Tensor | None = None  # (M,) p_i / pi_i for non-uniform sampling; None: 1/M each
    refused: Mapping[int, str] = field(default_factory=dict)  # whose reply was no use, and why
    losses: Mapping[int, float] = field(default_factory=dict)  # client: its mean local loss
    buffers: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)  # no vector: see
    # FlatModel; kept beside the updates, by client
    num_gradients: Tensor | None = None  # (M,) how many gradients a row adds up; None: num_steps
    measured: LargestEntries | None = None  # of deltas, if whoever made them has looked at them
    shortened: frozenset[int] = frozenset()  # whose updates were longer when they came: `Clipped`

    @classmethod
    def from_replies(
        cls, replies: Sequence[Reply], *, dim: int, client_lr: float, dtype: torch.dtype
    ) -> RoundUpdates:
        """Stacks single replies; one of the wrong size or kind is refused, a repeated one ignored.

        Args:
            replies: In any order, whatever is in them.
            dim: d, the length of the model.
            client_lr: η_c of the round.
            dtype: Of the model.

        Returns:
            What came back, by client number, with the reasons of the refusals in `refused`: −1, −2,
            … stand for whoever has no number.
        """
        good: dict[int, Reply] = {}
        refused: dict[int, str] = {}
        for m, reply in enumerate(replies):
            if not isinstance(reply, Reply):
                refused[-1 - m] = f"it is a {type(reply).__name__}, not a Reply"
                continue
            fault = _fault(reply, dim, dtype)
            client = reply.client if _is_whole(reply.client, 0, 2**63 - 1) else -1 - m
            if client in good:
                continue  # the first answer counts; a repeated message brings nothing new
            if fault is None:
                good[client] = reply
            else:
                refused[client] = fault
        kept = [good[client] for client in sorted(good)]
        steps = torch.tensor([reply.num_steps for reply in kept], dtype=torch.int64)
        deltas, measured = torch.empty(0, dim, dtype=dtype), None
        if kept:
            deltas, measured = stacked([reply.delta.detach() for reply in kept])
        return cls(
            clients=torch.tensor([reply.client for reply in kept], dtype=torch.int64),
            deltas=deltas,
            num_steps=steps,
            num_examples=torch.tensor([reply.num_examples for reply in kept], dtype=torch.int64),
            scale=client_lr,
            refused={c: why for c, why in refused.items() if c not in good},
            measured=measured,
        )

    @property
    def averaging_weights(self) -> Tensor:
        """(M,) float64, a_i: 1/M each, or `weights`."""
        if self.weights is not None:
            return self.weights.double()
        size = len(self.clients)
        return torch.full((size,), 1 / size, dtype=torch.float64, device=self.deltas.device)

    def average(self, rows: Tensor) -> Tensor:
        """Σ a_i row_i.

        Args:
            rows: (M, d).

        Returns:
            (d,) of the rows' dtype.
        """
        return self.averaging_weights.to(rows) @ rows

    @property
    def gradient_counts(self) -> Tensor:
        """(M,) float64, how many gradients each row of `deltas` adds up."""
        return (self.num_steps if self.num_gradients is None else self.num_gradients).double()

    @property
    def mean_gradients(self) -> Tensor:
        """(M, d), the mean of each client's local gradients, (w − w_i) / (η_c τ_i)."""
        return self.deltas / self.gradient_counts.to(self.deltas).unsqueeze(1)

    @property
    def largest_entries(self) -> LargestEntries:
        """Those of `deltas`: `measured` while it holds for them, else found by reading them."""
        return LargestEntries.of(self.deltas, self.measured)

    @property
    def norms(self) -> list[float]:
        """‖Δ_i‖ of each client: as `measured` has it while that holds, else by reading `deltas`."""
        known = self.measured
        if known is not None and known.norms is not None and known.hold_for(self.deltas):
            return list(known.norms)
        return [norm(delta) for delta in self.deltas]

    def keep(self, positions: Sequence[int], refused: Mapping[int, str]) -> RoundUpdates:
        """The round as if only some of the clients had answered.

        Args:
            positions: Which rows to keep, in this order.
            refused: Whose replies are left out and why; added to the refusals already known.

        Returns:
            These rows only.
        """
        largest, norms = self.largest_entries.values, self.largest_entries.norms
        at = torch.tensor(positions, dtype=torch.int64)
        deltas, counts = self.deltas[at.to(self.deltas.device)], self.num_gradients
        return replace(
            self,
            clients=self.clients[at],
            deltas=deltas,
            num_steps=self.num_steps[at],
            num_examples=self.num_examples[at],
            num_gradients=None if counts is None else counts[at],
            weights=None if self.weights is None else self.weights[at],
            refused={**self.refused, **refused},
            shortened=self.shortened.intersection(self.clients[at].tolist()),
            measured=LargestEntries.known(
                [largest[p] for p in positions],
                deltas,
                None if norms is None else [norms[p] for p in positions],
            ),
        )

    def check(self) -> None:
        """Refuses parts that do not belong together: a fault of the caller, not of a client.

        Raises:
            ValueError: A shape or dtype does not fit, a client is repeated, a weight is not finite,
                or the scale is not positive.
        """
        parts = {
            "clients": self.clients,
            "num_steps": self.num_steps,
            "num_examples": self.num_examples,
        }
        tensors = parts | {"deltas": self.deltas, "weights": self.weights}
        for name, part in tensors.items():
            if part is not None and not isinstance(part, Tensor):
                raise InvalidError(f"RoundUpdates.{name} is a {type(part).__name__}, not a tensor.")
        size = self.clients.numel()
        for name, part in parts.items():
            if part.dtype != torch.int64:
                raise InvalidError(f"RoundUpdates.{name} is {part.dtype}; it must be int64.")
            if tuple(part.shape) != (size,):
                raise InvalidError(
                    f"RoundUpdates.{name} has shape {tuple(part.shape)}; it must be ({size},), one "
                    f"number for each client that answered."
                )
        if self.deltas.ndim != 2 or self.deltas.shape[0] != size:
            raise InvalidError(
                f"RoundUpdates.deltas has shape {tuple(self.deltas.shape)} for {size} clients; "
                f"it must be (M, d), row m the update of clients[m]."
            )
        if self.weights is not None and not (
            tuple(self.weights.shape) == (size,) and bool(self.weights.isfinite().all())
        ):
            raise InvalidError(
                "RoundUpdates.weights must hold one finite number for each client that answered."
            )
        counts = self.num_gradients
        if counts is not None and tuple(counts.shape) != (size,):
            raise InvalidError(
                "RoundUpdates.num_gradients must hold one number for each client that answered: "
                "how many gradients its row of deltas adds up."
            )
        refuse_duplicates(self.clients, "RoundUpdates.clients")
        if not (isinstance(self.scale, int | float) and 0 < self.scale < math.inf):
            raise InvalidError(
                f"RoundUpdates.scale is {self.scale}; it is the client rate of the round, a "
                f"positive number."
            )


def _fault(reply: Reply, dim: int, dtype: torch.dtype) -> str | None:
    """Why a reply cannot be stacked with others; None if it can."""
    delta = reply.delta
    if not _is_whole(reply.client, 0, 2**63 - 1):
        return f"its client number is {_shown(reply.client)}"
    if not isinstance(delta, Tensor):
        return f"its update is a {type(delta).__name__}, not a tensor"
    if delta.is_nested or delta.is_meta or delta.layout != torch.strided:
        return "its update is a sparse, nested or meta tensor, not a dense one with values"
    if tuple(delta.shape) != (dim,):
        return f"its update has shape {tuple(delta.shape)}, the model has {dim} numbers"
    if delta.dtype != dtype:
        return f"its update is {delta.dtype}, the model is {dtype}"
    if not _is_whole(reply.num_steps, 1, MOST_STEPS):
        return f"it reports {_shown(reply.num_steps)} local steps"
    if not _is_whole(reply.num_examples, 0, _MOST_EXAMPLES):
        return f"it reports {_shown(reply.num_examples)} examples"
    return None


def _is_whole(value: object, least: int, most: int) -> bool:
    """Whether a value is a whole number of that size, and not only equal to one."""
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_number and least <= int(value) <= most  # type: ignore[call-overload]


def _shown(value: object) -> str:
    """A value in a message, however long it is."""
    try:
        text = repr(value)
    except Exception:  # of an object of a client's making; a number may have too many digits, too
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}…"
