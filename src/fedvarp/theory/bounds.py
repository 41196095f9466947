"""The bounds of Theorems 1, 2 and 3 on min E‖∇f(w)‖², term by term, with explicit constants.

The theorems are stated with O(·); the constants are those of the last lines of their proofs in the
appendix, but for client drift: half of theirs, since 1/N Σ‖∇f_i‖² is ‖∇f‖² + σ_g² exactly, where
the proof of Lemma 6 has an inequality. `docs/decisions/theory-constants.md` derives each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from pydantic import InstanceOf

from fedvarp.algorithms.names import ALGORITHMS
from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Count, Positive
from fedvarp.settings.checked import checked
from fedvarp.theory.participation import Staleness, sampling_variance
from fedvarp.theory.problem import Problem

_WITHOUT_THEOREM: Final = {"mifa": "MIFA", "scaffold": "SCAFFOLD"}


@dataclass(frozen=True)
class ErrorTerms:
    """A bound on the smallest E‖∇f(w)‖² of T rounds, as the sum of what causes it.

    Attributes:
        algorithm: "fedavg", "fedvarp" or "cluster_fedvarp".
        initial: Effect of the initial model; falls as 1/T.
        stochastic_gradient: Mini-batches are not the whole data of a client.
        partial_participation: The clients of a round are not all clients. Zero for FedVARP; for
            ClusterFedVARP the paper's cluster heterogeneity error, which takes its place.
        client_drift: Clients walk towards optima of their own.
        start_up: The states y_i are zero at first; falls as 1/T. Zero for FedAvg, which has none.
        exact: False if clusters are of unequal sizes, which Theorem 3 does not cover.
    """

    algorithm: str
    initial: float
    stochastic_gradient: float
    partial_participation: float
    client_drift: float
    start_up: float
    exact: bool

    @property
    def floor(self) -> float:
        """What no number of rounds removes at these learning rates."""
        return self.stochastic_gradient + self.partial_participation + self.client_drift

    @property
    def total(self) -> float:
        """The whole bound."""
        return self.initial + self.floor + self.start_up

    @property
    def dominating(self) -> str:
        """The name of the largest term of the floor."""
        return max(
            ("stochastic_gradient", "partial_participation", "client_drift"),
            key=lambda name: float(getattr(self, name)),
        )


@dataclass(frozen=True)
class _Constants:
    """The numbers in the last line of a proof."""

    initial: int
    noise: int  # of the cohort's mean
    noise_in_drift: int  # that local steps add up
    participation: int
    drift: int


_CONSTANTS: Final = {
    "fedavg": _Constants(initial=4, noise=4, noise_in_drift=8, participation=12, drift=16),
    "fedvarp": _Constants(initial=4, noise=40, noise_in_drift=24, participation=0, drift=48),
    "cluster_fedvarp": _Constants(
        initial=4, noise=160, noise_in_drift=24, participation=128, drift=48
    ),
}


@checked
def error_terms(
    algorithm: str,
    problem: InstanceOf[Problem],
    *,
    rounds: Count,
    client_lr: Positive,
    server_lr: Positive = 1.0,
) -> ErrorTerms:
    """Computes the terms of an algorithm's bound. They hold if all its `conditions` are met.

    >>> problem = Problem(
    ...     num_clients=250, clients_per_round=5, num_steps=10, smoothness=1.0, sigma2=1.0,
    ...     sigma_g2=1.0, initial_gap=1.0,
    ... )
    >>> terms = error_terms("fedavg", problem, rounds=1000, client_lr=0.004)
    >>> terms.dominating, round(terms.partial_participation, 4), round(terms.client_drift, 4)
    ('partial_participation', 0.0945, 0.023)

    Args:
        algorithm: "fedavg" (Theorem 1), "fedvarp" (Theorem 2) or "cluster_fedvarp" (Theorem 3).
        problem: Its constants, with the variances and the initial gap.
        rounds: T.
        client_lr: η_c.
        server_lr: η_s.

    Returns:
        The bound by cause.

    Raises:
        ValueError: If no theorem is about the algorithm, T or a rate is not above 0, or the problem
            lacks a constant of this theorem.
    """
    refuse_algorithm(algorithm)
    N, M, T = problem.num_clients, problem.clients_per_round, rounds
    L, tau = problem.smoothness, problem.num_steps
    sigma2, sigma_g2 = problem.required("sigma2"), problem.required("sigma_g2")
    initial_gap, gradient_norm2 = problem.required("initial_gap"), problem.initial_gradient_norm2
    step = server_lr * client_lr * tau  # η̃_s
    local = client_lr**2 * L**2 * (tau - 1)
    sampling = sampling_variance(N, M)  # (N − M) / (M (N − 1))
    if gradient_norm2 is None:
        gradient_norm2 = 2 * L * initial_gap

    drift = 2 * local * sigma2 + 4 * local * tau * (sigma_g2 + gradient_norm2)  # Lemma 6
    first_round = _FirstRound(
        variance=sigma2 / (M * tau) + 2 * sampling * (sigma_g2 + drift),
        gradients=sigma_g2 + gradient_norm2,
    )
    heterogeneity, start_up, exact = sigma_g2, 0.0, True
    if algorithm == "fedvarp":
        stale = Staleness.of_clients(N, M)
        start_up = first_round.echo(step * L, stale.absent / stale.present / M)
    elif algorithm == "cluster_fedvarp":
        heterogeneity = problem.required("sigma_K2")
        stale = Staleness.of_clusters(problem.sizes_of_clusters(), M)
        start_up = first_round.echo(step * L, stale.absent / stale.present * sampling)
        exact = stale.exact
    constant = _CONSTANTS[algorithm]
    return ErrorTerms(
        algorithm=algorithm,
        initial=constant.initial * initial_gap / (step * T),
        stochastic_gradient=constant.noise * step * L * sigma2 / (M * tau)
        + constant.noise_in_drift * local * sigma2,
        partial_participation=constant.participation * step * L * sampling * heterogeneity,
        client_drift=constant.drift * local * tau * sigma_g2,
        start_up=start_up / T,
        exact=exact,
    )


@dataclass(frozen=True)
class _FirstRound:
    """What the proofs of Theorems 2 and 3 owe to the states being zero at first.

    Attributes:
        variance: E‖v⁰ − h̄⁰‖²; v⁰ is FedAvg's. The paper leaves it as it stands.
        gradients: 1/N Σ ‖∇f_i(w⁰)‖² = ‖∇f(w⁰)‖² + σ_g², which the states lack.
    """

    variance: float
    gradients: float

    def echo(self, step_times_smoothness: float, staleness: float) -> float:
        """T times the start-up part, for states that take that long to be filled."""
        return step_times_smoothness * (8 * self.variance + 32 * staleness * self.gradients)


def refuse_algorithm(algorithm: str) -> None:
    """Refuses algorithms that the paper has no theorem about.

    Args:
        algorithm: Its name.

    Raises:
        ValueError: With the names there are.
    """
    if algorithm in _CONSTANTS:
        return
    known = ", ".join(_CONSTANTS)
    if algorithm in _WITHOUT_THEOREM:
        raise InvalidError(
            f"The paper proves no bound for {_WITHOUT_THEOREM[algorithm]}; it compares with it in "
            f"experiments only. Bounds are known for {known}."
        )
    near = get_close_matches(
        algorithm.lower().replace("-", "_"), [*_CONSTANTS, *_WITHOUT_THEOREM], n=1
    )
    meant = algorithm in ALGORITHMS
    suggestion = f" Did you mean {near[0]!r}?" if near and not meant else ""
    raise InvalidError(f"No theorem is about {algorithm!r}; there are {known}.{suggestion}")
