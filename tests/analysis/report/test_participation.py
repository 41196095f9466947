"""Who took part how often, and how stale the rest is, against loops over all clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedvarp.analysis.groups import group_runs
from fedvarp.analysis.report.participation import clients_by_times, participation, staleness
from fedvarp.analysis.runs import read_runs
from fedvarp.runs.directory import RunDirectory
from some_runs import write_run


def test_participation_by_hand(tmp_path: Path) -> None:
    # Clients 0 and 1 of 4 take part in each of 10 rounds, 2 and 3 never. So after round t the
    # stalest has waited t rounds, and the mean is (0 + 0 + t + t) / 4.
    run = write_run(tmp_path / "0", [0.1, 0.2], clients=(0, 1))
    (group,) = group_runs(read_runs([run])[0])
    found = participation(group)
    assert found is not None
    assert found.counts.tolist() == [2] + [0] * 9 + [2]
    np.testing.assert_allclose(found.max_staleness, range(1, 11))
    np.testing.assert_allclose(found.mean_staleness, np.arange(1, 11) / 2)


def test_staleness_against_a_loop_when_every_client_comes_round() -> None:
    generator = np.random.default_rng(0)
    cohorts = [generator.choice(5, size=2, replace=False).tolist() for _ in range(200)]
    cohorts[50] = []  # nobody was online
    mean, longest = staleness(cohorts, num_clients=5)
    last = np.zeros(5)
    for t, clients in enumerate(cohorts, start=1):
        last[clients] = t
        assert mean[t - 1] == pytest.approx((t - last).mean())
        assert longest[t - 1] == (t - last).max()


def test_participation_of_real_runs_against_a_loop_over_all_clients(real_runs: Path) -> None:
    for algorithm in ("fedvarp", "mifa"):
        (group,) = group_runs(read_runs([real_runs / f"{algorithm}-0"])[0])
        found = participation(group)
        assert found is not None
        last, times = np.zeros(100), np.zeros(100, dtype=int)
        for record in RunDirectory(real_runs / f"{algorithm}-0").metrics()[1:]:
            last[record["clients"]] = record["round"]
            times[record["clients"]] += 1
            t = record["round"]
            assert found.mean_staleness[t - 1] == pytest.approx((t - last).mean())
            assert found.max_staleness[t - 1] == (t - last).max()
        assert found.counts.tolist() == np.bincount(times).tolist()


def test_memory_grows_with_those_who_took_part_and_not_with_the_number_a_file_tells() -> None:
    """Of 10**13 clients two took part once and one twice; an int64 for each would be 80 TB."""
    counts = clients_by_times([[0, 10**12], [0, 3]], num_clients=10**13)
    assert counts.tolist() == [10**13 - 3, 2, 1]


def test_seeds_that_tell_different_numbers_of_clients_are_counted_by_the_most(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "0", [0.1, 0.2], seed=0, clients=(0, 1))
    many = RunDirectory(write_run(tmp_path / "1", [0.1, 0.2], seed=1, clients=(8, 9)))
    text = many.metrics_file.read_text().replace('"num_clients": 4', '"num_clients": 10')
    many.metrics_file.write_text(text)
    (group,) = group_runs(read_runs([tmp_path])[0])
    found = participation(group)
    assert found is not None
    assert found.num_clients == 10
    assert found.counts.tolist() == [8] + [0] * 9 + [2]
