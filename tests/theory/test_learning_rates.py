"""The learning rates that the theorems allow, and those that the corollaries prescribe."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from math import comb

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedvarp.theory import Condition, Problem, conditions, corollary, error_terms

N, M, TAU, C, S, L, K = 15, 4, 7, 0.003, 1.1, 1.3, 5
SOME = Problem(
    num_clients=N, clients_per_round=M, num_steps=TAU, smoothness=L, num_clusters=K, sigma2=1.7,
    sigma_g2=1.9, sigma_K2=0.23, initial_gap=2.9,
)  # fmt: skip
RATES = {"client_lr": C, "server_lr": S}
P = float(Fraction(comb(N - 3, M), comb(N, M)))  # r = 3
BOTH = S * C

# name, left and right side, as the theorems state them
STATED = {
    "fedavg": [
        ("local steps", C, 1 / (8 * L * TAU)),
        ("server step", BOTH, 1 / (24 * TAU * L)),
    ],
    "fedvarp": [
        ("local steps", C, 1 / (10 * L * TAU)),
        ("staleness", BOTH, M ** (3 / 2) / (8 * L * TAU * N)),
        ("cohort size", BOTH, 5 * M / (48 * TAU * L)),
        ("server step", BOTH, 1 / (4 * L * TAU)),
    ],
    "cluster_fedvarp": [
        ("local steps", C, 1 / (10 * L * TAU)),
        ("staleness", BOTH, math.sqrt(M) * (1 - P) / (8 * L * TAU)),
        ("cohort size", BOTH, M / (16 * TAU * L)),
        ("server step", BOTH, 1 / (4 * L * TAU)),
    ],
}
every_algorithm = pytest.mark.parametrize("algorithm", list(STATED))


@every_algorithm
def test_the_theorems_to_the_letter(algorithm: str) -> None:
    found = conditions(algorithm, SOME, **RATES)
    assert [c.name for c in found] == [name for name, _, _ in STATED[algorithm]]
    for condition, (_, left, right) in zip(found, STATED[algorithm], strict=True):
        assert condition.left == pytest.approx(left, rel=1e-14)
        assert condition.right == pytest.approx(right, rel=1e-14)
        assert condition.exact


@every_algorithm
def test_what_is_printed_is_what_is_computed(algorithm: str) -> None:
    """The inequality in words, evaluated as Python."""
    letters = {"N": N, "M": M, "τ": TAU, "L": L, "p": P, "η_s": S, "η_c": C, "sqrt": math.sqrt}
    for condition in conditions(algorithm, SOME, **RATES):
        text = re.sub(r"(?<=[\w)]) (?=[\w(√])", "*", condition.inequality)  # L τ is L*τ
        text = text.replace("√M", "sqrt(M)").replace("^", "**").replace("−", "-")
        left, right = (eval(side, {}, letters) for side in text.split("≤"))
        assert condition.left == pytest.approx(left)
        assert condition.right == pytest.approx(right)


@every_algorithm
@pytest.mark.parametrize("factor", [0.5, 300.0])
def test_the_largest_rates_meet_it_and_no_larger(algorithm: str, factor: float) -> None:
    rates = RATES | {"client_lr": factor * C}
    for i, condition in enumerate(conditions(algorithm, SOME, **rates)):

        def again(i: int = i, **changes: float) -> Condition:
            return conditions(algorithm, SOME, **rates | changes)[i]

        assert condition.met == (factor == 0.5)
        assert again(client_lr=condition.largest_client_lr).met
        assert not again(client_lr=condition.largest_client_lr * 1.001).met
        if condition.name == "local steps":
            assert condition.largest_server_lr is None
        else:
            assert condition.largest_server_lr is not None
            assert again(server_lr=condition.largest_server_lr).met
            assert not again(server_lr=condition.largest_server_lr * 1.001).met


def test_the_paper_server_rate_unless_given() -> None:
    found = conditions("fedavg", SOME, client_lr=C)
    assert found == conditions("fedavg", SOME, client_lr=C, server_lr=1.0)
    with pytest.raises(FrozenInstanceError):
        found[0].left = 0.0  # type: ignore[misc]


def test_unequal_clusters_make_one_condition_approximate() -> None:
    uneven = replace(SOME, num_clusters=None, cluster_sizes=[1, 2, 12])
    found = conditions("cluster_fedvarp", uneven, **RATES)
    assert [c.name for c in found if not c.exact] == ["staleness"]


def test_larger_clusters_are_fresher() -> None:
    """More clients share a state, so it is updated more often, and the server may step further."""
    rights = [
        conditions("cluster_fedvarp", replace(SOME, num_clusters=k), **RATES)[1].right
        for k in (15, 5, 3, 1)
    ]
    assert rights == sorted(rights)
    assert rights[0] < rights[1]
    # K = N: 1 − p = M/N, which is FedVARP's condition
    assert rights[0] == pytest.approx(conditions("fedvarp", SOME, **RATES)[1].right)


def test_variances_are_no_matter_of_the_conditions() -> None:
    bare = Problem(num_clients=N, clients_per_round=M, num_steps=TAU, smoothness=L)
    assert conditions("fedvarp", bare, **RATES) == conditions("fedvarp", SOME, **RATES)


@pytest.mark.parametrize(
    ("algorithm", "rates", "said"),
    [
        ("mifa", RATES, "no bound for MIFA"),
        ("fedavg", {"client_lr": 0.0}, "client_lr = 0.0.*greater than 0"),
        ("fedavg", {"client_lr": C, "server_lr": 0.0}, "server_lr = 0.0.*greater than 0"),
    ],
)
def test_refusals(algorithm: str, rates: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        conditions(algorithm, SOME, **rates)


def test_clusters_are_asked_for_where_they_are_needed() -> None:
    without = replace(SOME, num_clusters=None)
    assert conditions("fedvarp", without, **RATES)
    with pytest.raises(ValueError, match=r"give num_clusters.*cluster_sizes"):
        conditions("cluster_fedvarp", without, **RATES)


class TestCorollaries:
    @every_algorithm
    def test_rates_and_bound(self, algorithm: str) -> None:
        told = corollary(algorithm, SOME, rounds=900)
        assert told.client_lr == pytest.approx(1 / (30 * TAU * L))
        assert told.server_lr == pytest.approx(math.sqrt(TAU * M))
        rates = {"client_lr": told.client_lr, "server_lr": told.server_lr}
        assert told.terms == error_terms(algorithm, SOME, rounds=900, **rates)
        assert list(told.conditions) == conditions(algorithm, SOME, **rates)

    def test_orders(self) -> None:
        """The errors of the three corollaries, without what O(·) hides."""
        by_algorithm = {a: corollary(a, SOME, rounds=900).orders for a in STATED}
        for orders in by_algorithm.values():
            assert orders.stochastic_gradient == pytest.approx(1 / math.sqrt(M * TAU * 900))
            assert orders.client_drift == pytest.approx(1 / 900)
        partial = math.sqrt(TAU / (M * 900))
        assert by_algorithm["fedavg"].partial_participation == pytest.approx(partial)
        assert by_algorithm["fedvarp"].partial_participation == 0
        clusters = by_algorithm["cluster_fedvarp"].partial_participation
        assert clusters == pytest.approx((N - M) / (N - 1) * partial)

    def test_the_bound_is_of_that_order(self) -> None:
        """Theorem 1 at the corollary's rates: η_s η_c τ L = √(τM/T), η_c L = 1/(√T τ)."""
        told = corollary("fedavg", SOME, rounds=900)
        terms, orders = told.terms, told.orders
        sampling = (N - M) / (N - 1)
        assert terms.partial_participation == pytest.approx(
            12 * sampling * 1.9 * orders.partial_participation
        )
        assert terms.client_drift == pytest.approx(16 * (TAU - 1) / TAU * 1.9 * orders.client_drift)
        assert terms.stochastic_gradient == pytest.approx(
            4 * 1.7 * orders.stochastic_gradient
            + 8 * (TAU - 1) / TAU**2 * 1.7 * orders.client_drift
        )
        assert terms.initial == pytest.approx(4 * L * 2.9 / math.sqrt(TAU * M * 900))

    def test_smallest_rounds_by_hand(self) -> None:
        """τ M ≤ T · min(right sides · τ L)², and 8² or 10² rounds for the local steps."""
        assert corollary("fedavg", SOME, rounds=900).smallest_rounds == 576 * TAU * M
        staleness = 64 * N**2 * TAU / M**2  # 6300, above (48/5)² τ/M = 162 and 16 τ M = 448
        assert corollary("fedvarp", SOME, rounds=900).smallest_rounds == staleness
        alone = replace(SOME, num_steps=1, clients_per_round=1, num_clusters=1, num_clients=1)
        assert corollary("cluster_fedvarp", alone, rounds=900).smallest_rounds == 256
        assert corollary("fedvarp", alone, rounds=900).smallest_rounds == 100

    @settings(max_examples=40, deadline=None)
    @given(
        algorithm=st.sampled_from(list(STATED)),
        cohort=st.integers(1, N),
        steps=st.integers(1, 40),
        clusters=st.integers(1, N),
    )
    def test_conditions_hold_from_there_on(
        self, algorithm: str, cohort: int, steps: int, clusters: int
    ) -> None:
        changed = replace(SOME, clients_per_round=cohort, num_steps=steps, num_clusters=clusters)
        smallest = corollary(algorithm, changed, rounds=900).smallest_rounds
        assume(smallest > 1)
        enough = corollary(algorithm, changed, rounds=smallest)
        too_few = corollary(algorithm, changed, rounds=smallest - 1)
        assert all(c.met for c in enough.conditions)
        assert not all(c.met for c in too_few.conditions)

    def test_no_rounds_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"rounds = 0.*at least 1"):
            corollary("fedavg", SOME, rounds=0)
