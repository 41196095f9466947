"""What the page draws, as plain data."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvarp.analysis.groups import group_runs
from fedvarp.analysis.report.charts import Chart, all_charts
from fedvarp.analysis.runs import read_runs
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.journal import lines_of, read_lines
from some_runs import write_run


def chart(runs: Path, name: str) -> Chart:
    (found,) = [one for one in all_charts(group_runs(read_runs([runs])[0])) if one["id"] == name]
    return found


def test_curves_hold_the_mean_and_the_band_against_all_three_axes(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [0.1, 0.2, 0.6], seed=0)
    write_run(tmp_path / "1", [0.1, 0.4, 0.8], seed=1)
    (line,) = chart(tmp_path, "test-accuracy")["lines"]
    assert line["y"] == pytest.approx([10, 30, 70])
    assert line["low"] == pytest.approx([10, 20, 60])
    assert line["high"] == pytest.approx([10, 40, 80])
    assert line["x"] == {"rounds": [0, 10, 20], "bytes": [0, 3000, 6000], "time": [2, 22, 42]}
    (memory,) = chart(tmp_path, "memory")["lines"]
    assert memory["y"] == [1000 + t for t in range(1, 21)]


def test_validation_figures_have_curves_of_their_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", validation_accuracy=[0.1, 0.6])
    drawn = chart(run, "validation-accuracy")
    assert drawn["lines"][0]["y"] == pytest.approx([10, 60])
    assert (drawn["unit"], drawn["can_log"]) == (" %", False)


def test_a_diverged_curve_has_gaps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", train_loss=[2.0, None, None])
    (line,) = chart(run, "train-loss")["lines"]
    assert line["y"] == [2.0, None, None]


def test_many_participations_are_put_into_few_bars(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", [0.1] * 11)  # 100 rounds: 0 or 100 times
    bars = chart(run, "participation")["lines"][0]
    assert len(bars["y"]) <= 40
    assert sum(bars["y"]) == 4
    assert bars["x"]["rounds"][0] == "0–2"
    assert bars["y"][-1] == 2


def test_what_is_the_same_for_all_algorithms_is_drawn_once(real_runs: Path) -> None:
    # All algorithms met the same clients, so one set of bars stands for them all.
    (bars,) = chart(real_runs, "participation")["lines"]
    assert bars["groups"] == [0, 1, 2]
    assert bars["name"] == "all algorithms"
    # MIFA and FedVARP have equal tables; FedAvg has none.
    assert [line["groups"] for line in chart(real_runs, "memory")["lines"]] == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("last", "there"), [([0.5, 0.25], True), ([0.5], False), ([], False), (None, False)]
)
def test_clients_are_drawn_where_all_seeds_have_equally_many(
    tmp_path: Path, last: list[float] | None, there: bool
) -> None:
    for seed, values in enumerate(([0.5, 0.75], last)):
        file = RunDirectory(write_run(tmp_path / f"{seed}", [0.1, 0.2], seed=seed)).metrics_file
        records = read_lines(file)
        records[-1]["by_client"] = {} if values is None else {"train_loss": values}
        file.write_bytes(lines_of(records, chained=False))
    drawn = [
        one["lines"]
        for one in all_charts(group_runs(read_runs([tmp_path])[0]))
        if one["id"] == "by-client"
    ]
    assert [line[0]["y"] for line in drawn] == ([[0.375, 0.625]] if there else [])
