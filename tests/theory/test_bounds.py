"""Each term against the last line of its proof, written out again in exact fractions.

But for client drift, which is half of what is printed: see docs/decisions/theory-constants.md.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from math import comb
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvarp.theory import ErrorTerms, Problem, error_terms

# Numbers without a common factor, so that no two terms, constants or powers can be mistaken
SOME: dict[str, Any] = {
    "num_clients": 15,
    "clients_per_round": 4,
    "rounds": 131,
    "num_steps": 7,
    "client_lr": Fraction(3, 1000),
    "server_lr": Fraction(11, 10),
    "smoothness": Fraction(13, 10),
    "sigma2": Fraction(17, 10),
    "sigma_g2": Fraction(19, 10),
    "sigma_K2": Fraction(23, 100),
    "initial_gap": Fraction(29, 10),
    "num_clusters": 5,
    "initial_gradient_norm2": Fraction(31, 10),
}
LARGER_COHORT = SOME | {"clients_per_round": 11, "num_clients": 21, "num_clusters": 7}
ONE_STEP = SOME | {"num_steps": 1}


def terms(algorithm: str, given: dict[str, Any]) -> ErrorTerms:
    plain: dict[str, Any] = {
        k: float(x) if isinstance(x, Fraction) else x for k, x in given.items()
    }
    learning = {k: plain.pop(k) for k in ("rounds", "client_lr", "server_lr") if k in plain}
    return error_terms(algorithm, Problem(**plain), **learning)


class Symbols:
    """The paper's letters for the arguments; s and c are η_s and η_c, step is η̃_s."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.N: int = given["num_clients"]
        self.M: int = given["clients_per_round"]
        self.T: int = given["rounds"]
        self.tau: int = given["num_steps"]
        self.c: Fraction = given["client_lr"]
        self.s: Fraction = given["server_lr"]
        self.L: Fraction = given["smoothness"]
        self.sigma2: Fraction = given["sigma2"]
        self.g2: Fraction = given["sigma_g2"]
        self.K2: Fraction = given["sigma_K2"]
        self.gap: Fraction = given["initial_gap"]
        self.grad2: Fraction = given["initial_gradient_norm2"]
        self.r = self.N // given["num_clusters"]
        self.p = Fraction(comb(self.N - self.r, self.M), comb(self.N, self.M))
        self.step = self.s * self.c * self.tau


def theorem_1(x: Symbols) -> dict[str, Fraction]:
    """The last line of the proof of Theorem 1, 16 for its 32."""
    return {
        "initial": 4 * x.gap / (x.s * x.c * x.tau * x.T),
        "stochastic_gradient": 4 * x.s * x.c * x.L * x.sigma2 / x.M
        + 8 * x.c**2 * x.L**2 * (x.tau - 1) * x.sigma2,
        "partial_participation": 12
        * (x.s * x.c * x.tau * x.L)
        * Fraction(x.N - x.M, (x.N - 1) * x.M)
        * x.g2,
        "client_drift": 16 * x.c**2 * x.L**2 * x.tau * (x.tau - 1) * x.g2,
        "start_up": Fraction(0),
    }


def first_variance(x: Symbols) -> Fraction:
    """E‖v⁰ − h̄⁰‖² ≤ σ²/(Mτ) + ρ/M · 1/N Σ ‖h_i − h̄‖², then Young's inequality and Lemma 6."""
    C0 = 2 * x.c**2 * x.L**2 * (x.tau - 1) * x.sigma2
    C0 += 4 * x.c**2 * x.L**2 * x.tau * (x.tau - 1) * (x.g2 + x.grad2)
    return x.sigma2 / (x.M * x.tau) + Fraction(x.N - x.M, x.M * (x.N - 1)) * (2 * C0 + 2 * x.g2)


def theorem_2(x: Symbols) -> dict[str, Fraction]:
    """The last inequality of the proof of Theorem 2, ‖∇f_i(w⁰)‖² for the printed ‖∇f(w⁰)‖²."""
    unseen = 32 * x.N * x.step * x.L / x.M**2 * (1 - Fraction(x.M, x.N)) * (x.grad2 + x.g2)
    return {
        "initial": 4 * x.gap / (x.step * x.T),
        "stochastic_gradient": 40 * x.step * x.L * x.sigma2 / (x.M * x.tau)
        + 24 * x.c**2 * x.L**2 * (x.tau - 1) * x.sigma2,
        "partial_participation": Fraction(0),
        "client_drift": 48 * x.c**2 * x.L**2 * x.tau * (x.tau - 1) * x.g2,
        "start_up": Fraction(1, x.T) * (8 * x.step * x.L * first_variance(x) + unseen),
    }


def theorem_3(x: Symbols) -> dict[str, Fraction]:
    """The last inequality of the proof of Theorem 3, ‖∇f_i(w⁰)‖² for the printed ‖∇f(w⁰)‖²."""
    rho = Fraction(x.N - x.M, x.N - 1)
    unseen = 32 * x.p * x.step * x.L / (x.M * (1 - x.p)) * rho * (x.grad2 + x.g2)
    return {
        "initial": 4 * x.gap / (x.step * x.T),
        "stochastic_gradient": 160 * x.step * x.L / x.M * x.sigma2 / x.tau
        + 24 * x.c**2 * x.L**2 * (x.tau - 1) * x.sigma2,
        "partial_participation": 128 * x.step * x.L / x.M * rho * x.K2,
        "client_drift": 48 * x.c**2 * x.L**2 * x.tau * (x.tau - 1) * x.g2,
        "start_up": Fraction(1, x.T) * (8 * x.step * x.L * first_variance(x) + unseen),
    }


THEOREMS = {"fedavg": theorem_1, "fedvarp": theorem_2, "cluster_fedvarp": theorem_3}


def parts(found: ErrorTerms) -> dict[str, float]:
    return {name: getattr(found, name) for name in theorem_1(Symbols(SOME))}


@pytest.mark.parametrize("algorithm", ["fedavg", "fedvarp", "cluster_fedvarp"])
@pytest.mark.parametrize("given", [SOME, LARGER_COHORT, ONE_STEP])
def test_the_theorems_to_the_letter(algorithm: str, given: dict[str, Any]) -> None:
    expected = THEOREMS[algorithm](Symbols(given))
    found = terms(algorithm, given)
    assert parts(found) == pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-13)
    assert found.total == pytest.approx(float(sum(expected.values())), rel=1e-13)
    assert found.floor == pytest.approx(
        float(sum(expected[k] for k in expected if k not in ("initial", "start_up"))), rel=1e-13
    )
    assert found.algorithm == algorithm
    assert found.exact


def test_numbers_worked_out_by_hand() -> None:
    """N = 5, M = 2, T = 10, τ = 2, η_c = 0.1, η_s = L = 1: η̃ = 0.2, η_c² L² = 0.01, ρ/M = 3/8.

    σ² = 2, σ_g² = 3, gap = 1, ‖∇f(w⁰)‖² = 1. Lemma 6: 2·0.01·1·2 + 4·0.01·2·(3 + 1) = 0.36, so
    E‖v⁰ − h̄⁰‖² ≤ 2/4 + 2·3/8·(3 + 0.36) = 3.02; 1/N Σ ‖∇f_i(w⁰)‖² = 4.
    """
    given: dict[str, Any] = {
        "num_clients": 5, "clients_per_round": 2, "rounds": 10, "num_steps": 2, "client_lr": 0.1,
        "smoothness": 1.0, "sigma2": 2.0, "sigma_g2": 3.0, "initial_gap": 1.0,
        "initial_gradient_norm2": 1.0,
    }  # fmt: skip
    fedavg = terms("fedavg", given)
    assert fedavg.initial == pytest.approx(4 / (0.2 * 10))
    assert fedavg.stochastic_gradient == pytest.approx(0.4 + 0.16)  # 4·0.1·2/2 and 8·0.01·2
    assert fedavg.partial_participation == pytest.approx(2.7)  # 12·0.2·3/8·3
    assert fedavg.client_drift == pytest.approx(0.96)  # 16·0.01·2·1·3
    assert fedavg.total == pytest.approx(2 + 0.56 + 2.7 + 0.96)

    fedvarp = terms("fedvarp", given)
    assert fedvarp.stochastic_gradient == pytest.approx(4.0 + 0.48)
    assert fedvarp.partial_participation == 0
    assert fedvarp.client_drift == pytest.approx(2.88)
    # 8·0.2·3.02 = 4.832 and 32·5·0.2/4·(3/5)·4 = 19.2
    assert fedvarp.start_up == pytest.approx((4.832 + 19.2) / 10)


@pytest.mark.parametrize("algorithm", ["fedvarp", "cluster_fedvarp"])
def test_a_gradient_nobody_measured_is_bounded_by_smoothness(algorithm: str) -> None:
    """‖∇f(w)‖² ≤ 2 L (f(w) − f*)."""
    unknown = SOME | {"initial_gradient_norm2": None}
    bounded = SOME | {"initial_gradient_norm2": 2 * SOME["smoothness"] * SOME["initial_gap"]}
    assert terms(algorithm, unknown) == terms(algorithm, bounded)
    assert terms(algorithm, unknown).start_up > terms(algorithm, SOME).start_up


class TestLimits:
    def test_clusters_of_one_client_are_fedvarp(self) -> None:
        """K = N, σ_K² = 0. The proof for clusters pays 4 times for noise, and keeps the factor
        (N − M)/(N − 1) that the proof for single clients bounds by 1.
        """
        without_noise = SOME | {"num_clusters": 15, "sigma_K2": Fraction(0), "sigma2": Fraction(0)}
        single, clusters = (terms(a, without_noise) for a in ("fedvarp", "cluster_fedvarp"))
        for name in ("initial", "stochastic_gradient", "partial_participation", "client_drift"):
            assert getattr(clusters, name) == getattr(single, name)
        # 8 η̃ L E‖v⁰ − h̄⁰‖² / T is common to both
        x = Symbols(without_noise)
        common = float(8 * x.step * x.L * first_variance(x) / x.T)
        stale, stale_clusters = single.start_up - common, clusters.start_up - common
        assert stale_clusters == pytest.approx(stale * 11 / 14, rel=1e-9)

        noisy = SOME | {"num_clusters": 15, "sigma_K2": Fraction(0), "num_steps": 1}
        assert terms("cluster_fedvarp", noisy).stochastic_gradient == pytest.approx(
            4 * terms("fedvarp", noisy).stochastic_gradient
        )

    def test_a_single_cluster_is_fedavg_up_to_constants(self) -> None:
        """K = 1, σ_K² = σ_g²: the same term with 128 for 12, and no state is ever stale (p = 0)."""
        one = SOME | {"num_clusters": 1, "sigma_K2": SOME["sigma_g2"]}
        fedavg, clusters = terms("fedavg", one), terms("cluster_fedvarp", one)
        ratio = clusters.partial_participation / fedavg.partial_participation
        assert ratio == pytest.approx(128 / 12)
        assert clusters.initial == fedavg.initial
        assert clusters.client_drift == pytest.approx(3 * fedavg.client_drift)
        calm = one | {
            "sigma2": Fraction(0),
            "sigma_g2": Fraction(0),
            "sigma_K2": Fraction(0),
            "num_steps": 1,
        }
        assert terms("cluster_fedvarp", calm).start_up == 0

    def test_a_federation_of_one_client(self) -> None:
        alone = SOME | {"num_clients": 1, "clients_per_round": 1, "num_clusters": 1}
        for algorithm in ("fedavg", "fedvarp", "cluster_fedvarp"):
            assert terms(algorithm, alone).partial_participation == 0

    def test_a_million_clients(self) -> None:
        many = SOME | {"num_clients": 10**6, "num_clusters": 1000, "clients_per_round": 5000}
        found = terms("cluster_fedvarp", many)
        assert 0 < found.total < float("inf")
        assert found.exact


def test_unequal_clusters_are_said_to_be_an_approximation() -> None:
    uneven = SOME | {"num_clusters": None, "cluster_sizes": [1, 2, 12]}
    assert not terms("cluster_fedvarp", uneven).exact
    assert not terms("cluster_fedvarp", SOME | {"num_clusters": 4}).exact
    even = SOME | {"num_clusters": None, "cluster_sizes": [3] * 5}
    assert terms("cluster_fedvarp", even) == terms("cluster_fedvarp", SOME)
    # The clusters do not concern the others
    assert terms("fedvarp", uneven) == terms("fedvarp", SOME)


def test_terms_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        terms("fedavg", SOME).initial = 0.0  # type: ignore[misc]


def test_the_dominating_term() -> None:
    assert terms("fedavg", SOME | {"sigma2": Fraction(0)}).dominating == "partial_participation"
    assert terms("fedavg", SOME | {"sigma_g2": Fraction(0)}).dominating == "stochastic_gradient"
    assert terms("fedvarp", SOME | {"sigma2": Fraction(0)}).dominating == "client_drift"


counts = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(1, n))
)
rates = st.floats(1e-4, 1.0)
variances = st.floats(0.0, 100.0)
federations = st.fixed_dictionaries(
    {
        "rounds": st.integers(1, 10_000),
        "num_steps": st.integers(1, 50),
        "client_lr": rates,
        "server_lr": rates,
        "smoothness": st.floats(1e-2, 1e2),
        "sigma2": variances,
        "sigma_g2": variances,
        "sigma_K2": variances,
        "initial_gap": variances,
    }
)
algorithms = st.sampled_from(["fedavg", "fedvarp", "cluster_fedvarp"])


class TestLaws:
    @settings(max_examples=60, deadline=None)
    @given(algorithms, counts, federations)
    def test_more_participation_never_hurts(
        self, algorithm: str, sizes: tuple[int, int, int], given: dict[str, Any]
    ) -> None:
        num_clients, cohort, num_clusters = sizes
        fixed = given | {"num_clients": num_clients, "num_clusters": num_clusters}
        here = terms(algorithm, fixed | {"clients_per_round": cohort})
        everybody = terms(algorithm, fixed | {"clients_per_round": num_clients})
        assert everybody.partial_participation == 0
        if cohort < num_clients:
            more = terms(algorithm, fixed | {"clients_per_round": cohort + 1})
            assert more.partial_participation <= here.partial_participation
            assert more.stochastic_gradient <= here.stochastic_gradient
            assert more.start_up <= here.start_up * (1 + 1e-9)
        assert more_than_nothing(here)

    @settings(max_examples=40, deadline=None)
    @given(algorithms, counts, federations)
    def test_more_rounds_leave_the_floor(
        self, algorithm: str, sizes: tuple[int, int, int], given: dict[str, Any]
    ) -> None:
        num_clients, cohort, num_clusters = sizes
        fixed = given | {"num_clients": num_clients, "num_clusters": num_clusters}
        fixed |= {"clients_per_round": cohort}
        here = terms(algorithm, fixed)
        later = terms(algorithm, fixed | {"rounds": 2 * given["rounds"]})
        assert later.floor == here.floor
        assert later.initial == pytest.approx(here.initial / 2)
        assert later.start_up == pytest.approx(here.start_up / 2)

    @settings(max_examples=40, deadline=None)
    @given(algorithms, counts, federations)
    def test_one_step_has_no_drift_and_tighter_clusters_help(
        self, algorithm: str, sizes: tuple[int, int, int], given: dict[str, Any]
    ) -> None:
        num_clients, cohort, num_clusters = sizes
        fixed = given | {"num_clients": num_clients, "num_clusters": num_clusters}
        fixed |= {"clients_per_round": cohort}
        here = terms(algorithm, fixed)
        assert terms(algorithm, fixed | {"num_steps": 1}).client_drift == 0
        tighter = terms(algorithm, fixed | {"sigma_K2": given["sigma_K2"] / 2})
        assert tighter.partial_participation <= here.partial_participation
        if algorithm != "cluster_fedvarp":
            assert tighter == here


def more_than_nothing(found: ErrorTerms) -> bool:
    return all(x >= 0 for x in dataclasses.asdict(found).values() if isinstance(x, float))


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        ("mifa", {}, "no bound for MIFA.*fedavg, fedvarp, cluster_fedvarp"),
        ("scaffold", {}, "no bound for SCAFFOLD"),
        ("fedprox", {}, r"No theorem is about 'fedprox'; there are .*fedvarp\.$"),
        ("FedVARP", {}, "Did you mean 'fedvarp'"),
        ("cluster-fedvarp", {}, "Did you mean 'cluster_fedvarp'"),
        ("zebra", {}, r"there are fedavg, fedvarp, cluster_fedvarp\.$"),
        ("fedavg", {"rounds": 0}, "rounds = 0"),
        ("fedavg", {"client_lr": 0.0}, "client_lr = 0.0.*greater than 0"),
        ("fedavg", {"server_lr": -1.0}, "server_lr = -1.0"),
        ("fedavg", {"sigma2": None}, "needs sigma2.*variance of a mini-batch"),
        ("fedvarp", {"sigma_g2": None}, "needs sigma_g2"),
        ("fedvarp", {"initial_gap": None}, "needs initial_gap"),
        ("cluster_fedvarp", {"sigma_K2": None}, "needs sigma_K2.*within clusters"),
        ("cluster_fedvarp", {"num_clusters": None}, "give num_clusters.*cluster_sizes"),
    ],
)
def test_refusals(algorithm: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        terms(algorithm, SOME | changes)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedvarp"])
def test_constants_that_only_clusters_need_may_be_left_out(algorithm: str) -> None:
    without = SOME | {"sigma_K2": None, "num_clusters": None}
    assert terms(algorithm, without) == terms(algorithm, SOME)
