"""What the measured floors scale with: the points of docs/figures/floors.png, and their fit."""

from __future__ import annotations

import pytest
from benchmarks.theorems.floors import COHORTS, Floor, measure_floors, predicted, slope


def by_cohort(floors: list[Floor]) -> list[list[Floor]]:
    return [[floor for floor in floors if floor.clients_per_round == M] for M in COHORTS]


@pytest.mark.slow
def test_fedavg_scales_with_heterogeneity_and_participation() -> None:
    """Floor ∝ (N − M)/(M (N − 1)) σ_g².

    ‖w − optimum‖² has about 19 degrees of freedom over the copies and 1400 · 2 · 0.018 = 50
    independent blocks of rounds, hence a standard error of √(2/19/50) = 4.6 % at each M; the
    points of one M share their cohorts. The slope's is then 0.046 · 3 · √(4 · 1.8)/(12 · 5.3) =
    0.006, with the spread of log x: 1.8 from M, 5.3 in all. Gradient noise lifts the lowest point
    by 15 %, which lowers the slope by 0.01. Four standard errors and that make 0.035.
    """
    floors = measure_floors("fedavg")
    assert slope(floors) == pytest.approx(1.0, abs=0.035)
    for floor in floors:
        assert floor.measured == pytest.approx(predicted(floor.x), rel=4 * 0.046)
    # In M alone the slope is 1 too, to 4 · 0.046/√(4 · 1.8); 1/M in place of x would give 0.58
    across_cohorts = [floor for floor in floors if floor.heterogeneity == 1.0]
    assert slope(across_cohorts) == pytest.approx(1.0, abs=0.07)


@pytest.mark.slow
def test_fedvarp_does_not() -> None:
    """Its floor is the noise of the gradients: with the same draws, the same for every σ_g²."""
    floors = measure_floors("fedvarp")
    for same_cohort in by_cohort(floors):
        assert abs(slope(same_cohort)) < 1e-3
    # σ²/M is the same for all M, and stored rows add (N − M)/(N − 1) of it: from 1.2 to 1.95 times
    assert max(f.measured for f in floors) < 2.5 * min(f.measured for f in floors)
    assert max(f.measured for f in floors) < predicted(min(f.x for f in floors))


@pytest.mark.slow
def test_cluster_fedvarp_scales_with_what_is_left_within_clusters() -> None:
    """σ_K² takes the place of σ_g²; states of other clients of a cluster cost up to 2 of it."""
    floors = measure_floors("cluster_fedvarp")
    assert slope(floors) == pytest.approx(1.0, abs=0.15)
    for same_cohort in by_cohort(floors):
        assert slope(same_cohort) == pytest.approx(1.0, abs=0.05)
    for floor in floors:
        assert 0.8 < floor.measured / predicted(floor.x) < 2.5
