"""L, how fast gradients change: the largest curvature at w, and what a client's own walk shows.

Both are lower bounds on the L of Assumption 1, which holds for all w and all clients: the power
iteration approaches the largest curvature at this one w from below, and a difference of gradients
is at most L times the distance between them.

One steep client among many decides. So all are screened, by a few products with the Hessian of
some of their examples, and those that look steepest are then measured.

Where clients take unequally many steps, there are two curvatures of each: that of f_i, which its
local steps descend and may bounce on, and that of f̃_i = factor · f_i, whose mean the training
descends and which the theorems are about. The steepest by either are measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedvarp.clients.gradients import CHUNK, ClientGradients, Track, steps_of, untracked
from fedvarp.clients.local_training import layers_draw_from
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream

_CLOSE_ENOUGH: Final = 1e-3
_SCREENING: Final = 3  # products with the Hessian of each client
_SCREENED: Final = 128  # examples of each client, at most, in these
_STEEPEST: Final = 5  # clients that are then measured, by either curvature


@dataclass(frozen=True)
class Curvature:
    """The largest absolute eigenvalue of a Hessian, by power iteration.

    Attributes:
        value: ‖H v‖ of the last unit vector v, never above the true one.
        residual: ‖H v − (vᵀ H v) v‖: some eigenvalue of H is at most this far from vᵀ H v.
        products: Hessian-vector products it took.
    """

    value: float
    residual: float
    products: int


@dataclass(frozen=True)
class Smoothness:
    """How fast the gradients of clients change: two lower bounds on L.

    Attributes:
        by_client: {client: the largest curvature of f̃_i at w}, for those that looked steepest.
        own_by_client: {client: the largest curvature of f_i at w}, for the same clients.
        num_screened: How many clients were looked at.
        median_screened: The median of the curvatures of f_i that this showed, roughly.
        largest_residual: Of the power iterations, relative to their values.
        gradient_difference: The largest ‖∇f_i(w') − ∇f_i(w)‖ / ‖w' − w‖, with w' where client i
            would walk to in one round along its gradient.
    """

    by_client: dict[int, float]
    own_by_client: dict[int, float]
    num_screened: int
    median_screened: float
    largest_residual: float
    gradient_difference: float

    @property
    def curvature(self) -> float:
        """The largest curvature of any f̃_i, for the theorems."""
        return max(self.by_client.values())

    @property
    def own_curvature(self) -> float:
        """The largest curvature of any f_i, which local steps descend."""
        return max(self.own_by_client.values())

    @property
    def steepest(self) -> int:
        """The number of the client whose f_i has the largest curvature."""
        return max(self.own_by_client, key=lambda client: self.own_by_client[client])

    @property
    def value(self) -> float:
        """What stands for L in the theorems: the larger of the two lower bounds."""
        return max(self.curvature, self.gradient_difference)


def power_iteration(
    product: Callable[[Tensor], Tensor], start: Tensor, max_products: int = 50
) -> Curvature:
    """Finds the largest absolute eigenvalue of a symmetric matrix given by its products H v.

    >>> diagonal = torch.tensor([1.0, -3.0, 2.0], dtype=torch.float64)
    >>> found = power_iteration(lambda v: diagonal * v, torch.ones(3, dtype=torch.float64))
    >>> 2.99 < found.value <= 3.0 + 1e-12
    True

    Args:
        product: v → H v, (d,) each.
        start: (d,), any vector but zero.
        max_products: When to stop, close enough or not.

    Returns:
        The eigenvalue and how close it is.

    Raises:
        ValueError: If a product is not finite.
    """
    v = start.double() / start.double().norm()
    value = residual = 0.0
    for done in range(1, max_products + 1):
        image = product(v).double()
        value = float(image.norm())
        if not math.isfinite(value):
            raise InvalidError(
                "A Hessian-vector product is not finite: the model has diverged at this w, or its "
                "loss is not finite on some example. Diagnose an earlier round."
            )
        residual = float((image - (v @ image) * v).norm())
        if residual <= _CLOSE_ENOUGH * value:
            return Curvature(value, residual, done)
        v = image / value
    return Curvature(value, residual, max_products)


def smoothness(
    gradients: ClientGradients,
    clients: Sequence[int],
    factor: Callable[[int], float] = lambda _: 1.0,
    max_products: int = 50,
    track: Track = untracked,
) -> Smoothness:
    """Measures L at the w of `gradients`.

    Args:
        gradients: Where w, the data and the loss are.
        clients: Over whom.
        factor: What the f_i of a client is multiplied by, by the number of its steps.
        max_products: Hessian-vector products at each of the steepest clients, at most.
        track: Goes through the clients, perhaps with a progress bar.

    Returns:
        Curvatures and changes of gradients.

    Raises:
        ValueError: If a Hessian-vector product is not finite.
    """
    factors: dict[int, float] = {}
    screened: dict[int, float] = {}
    for client in track(clients, "Looking for curvature"):
        num_steps = steps_of(len(gradients.examples(client)[0]), gradients.local_sgd)
        factors[client] = factor(num_steps)
        screened[client] = client_curvature(gradients, client, _SCREENING, _SCREENED).value
    steepest = _steepest(screened)
    weighed = _steepest({client: factors[client] * screened[client] for client in screened})
    # A set would do, but for the order of the numbers that are kept.
    measured = list(dict.fromkeys([*weighed, *steepest]))
    by_client: dict[int, float] = {}
    own_by_client: dict[int, float] = {}
    largest_residual = difference = 0.0
    for client in track(measured, "Measuring curvature"):
        found = client_curvature(gradients, client, max_products)
        own_by_client[client] = found.value
        by_client[client] = factors[client] * found.value
        if found.value > 0:
            largest_residual = max(largest_residual, found.residual / found.value)
        difference = max(difference, factors[client] * gradient_difference(gradients, client))
    return Smoothness(
        by_client=by_client,
        own_by_client=own_by_client,
        num_screened=len(screened),
        median_screened=statistics.median(screened.values()),
        largest_residual=largest_residual,
        gradient_difference=difference,
    )


def _steepest(curvatures: Mapping[int, float]) -> list[int]:
    return sorted(curvatures, key=lambda client: -curvatures[client])[:_STEEPEST]


def client_curvature(
    gradients: ClientGradients, client: int, max_products: int, max_examples: int | None = None
) -> Curvature:
    """Finds the largest absolute eigenvalue of ∇²f_i(w).

    Args:
        gradients: Where w, the data and the loss are.
        client: i.
        max_products: Hessian-vector products, at most.
        max_examples: How many of the client's examples are looked at; None: all.

    Returns:
        The eigenvalue and how close it is.

    Raises:
        ValueError: If a Hessian-vector product is not finite.
    """
    draw = stream(gradients.seed, "power iteration", client)
    start = torch.randn(gradients.model.dim, generator=draw).to(gradients.w.device)
    return power_iteration(
        lambda v: hessian_product(gradients, client, v, max_examples), start, max_products
    )


def hessian_product(
    gradients: ClientGradients, client: int, v: Tensor, max_examples: int | None = None
) -> Tensor:
    """Computes ∇²f_i(w) v by differentiating the gradient along v.

    Args:
        gradients: Where w, the data and the loss are.
        client: i.
        v: (d,).
        max_examples: How many of the client's examples are looked at; None: all.

    Returns:
        (d,) float64.
    """
    x, y = gradients.examples(client)
    if max_examples is not None:  # here and there, as they may be sorted by their labels
        x, y = (part[:: -(-len(part) // max_examples)] for part in (x, y))
    gradients.bind(gradients.w, None)
    module = gradients.model.module
    parameters = [p for p in module.parameters() if p.requires_grad]
    along = list(gradients.model.unflatten(v.to(gradients.w.dtype)).values())
    product = gradients.local_sgd.weight_decay * v.double()
    # cuDNN's recurrent layers cannot be differentiated twice; torch's own can.
    keyed = layers_draw_from(stream(gradients.seed, "measured layers", client), gradients.w.device)
    with keyed, torch.backends.cudnn.flags(enabled=False):
        for part in torch.split(torch.arange(len(x), device=x.device), CHUNK):
            loss = gradients.loss(module(x[part]), y[part])
            first = torch.autograd.grad(loss, parameters, create_graph=True)
            slope = torch.stack([(g * d).sum() for g, d in zip(first, along, strict=True)]).sum()
            if not slope.requires_grad:
                continue  # the gradient is the same at every w
            second = torch.autograd.grad(slope, parameters, materialize_grads=True)
            flat = torch.cat([g.reshape(-1) for g in second])
            product += flat.double() * (len(part) / len(x))
    return product


def gradient_difference(gradients: ClientGradients, client: int) -> float:
    """Computes ‖∇f_i(w') − ∇f_i(w)‖ / ‖w' − w‖ with w' = w − η_c τ_i ∇f_i(w).

    Args:
        gradients: Where w, the data, the loss, η_c and τ_i are.
        client: i.

    Returns:
        A lower bound on L; 0 at a stationary point, and where w' or its gradient is not finite.
    """
    here = gradients.of(client)
    walk = gradients.local_sgd.lr * here.num_steps
    there = (gradients.w.double() - walk * here.gradient).to(gradients.w.dtype)
    distance = float((there.double() - gradients.w.double()).norm())
    if distance == 0 or not bool(there.isfinite().all()):
        return 0.0
    change = float((gradients.gradient(client, there) - here.gradient).norm())
    return change / distance if math.isfinite(change) else 0.0
