"""A comparison in its five formats."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from fedvarp.analysis.comparison import compare
from fedvarp.analysis.comparison_tables import formatted, tables
from some_runs import write_run


def test_csv_and_json_agree_with_the_rows(two_algorithms: Path) -> None:
    comparison = compare([two_algorithms], target=0.5, smooth=2)
    lines = list(csv.DictReader(io.StringIO(formatted(comparison, "csv"))))
    objects = json.loads(formatted(comparison, "json"))["groups"]
    assert [line["algorithm"] for line in lines] == ["fedavg", "fedvarp"]
    for line, described, row in zip(lines, objects, comparison.rows, strict=True):
        assert row.final_accuracy is not None
        assert row.first is not None
        assert float(line["final_accuracy_mean"]) == row.final_accuracy.mean
        assert described["final_accuracy"]["per_seed"] == list(row.final_accuracy.per_seed)
        assert float(line["rounds_first"]) == row.first.mean_rounds
        assert described["first"]["rounds_per_seed"] == list(row.first.rounds)
    assert lines[0]["rounds_smoothed"] == ""  # not reached in seed 1
    assert lines[0]["reached_smoothed"] == "1"
    assert objects[0]["smoothed"]["rounds"] is None
    assert objects[1]["smoothed"]["speed_up_is_lower_bound"] is True


def test_text_shows_names_in_brackets_as_they_are(tmp_path: Path) -> None:
    write_run(tmp_path / "x", [0.1, 0.2], algorithm="[bold]mine[/bold]")
    assert "[bold]mine[/bold]" in formatted(compare([tmp_path]))


def test_text_of_the_two_algorithms(two_algorithms: Path) -> None:
    lines = formatted(compare([two_algorithms], target=0.5, smooth=2)).splitlines()
    assert lines.index("To 50 % test accuracy") == 4  # below what it comes to
    found = [" ".join(line.split()) for line in lines]
    assert "FedAvg 40 1.00× only 1 of 2 seeds – 12 kB" in found
    assert "FedVARP 20 2.00× 25 > 1.80× 6 kB" in found
    assert "FedVARP 80.0 ± 0.0 % 80.0 ± 7.1 % 85.0 ± 7.1 %" in found
    seed_by_seed = found[found.index("Seed by seed") :]
    assert "FedAvg 0, 1 30, 50 40, – 70.0, 50.0 65.0, 45.0" in seed_by_seed
    assert "FedVARP 0, 1 20, 20 20, 30 80.0, 80.0 75.0, 85.0" in seed_by_seed
    assert "FedVARP 0.1 2 50 0 15 kB 1.05 kB 1 min 42 s" in found


def test_a_single_seed_needs_no_table_of_seeds(tmp_path: Path) -> None:
    write_run(tmp_path / "only", [0.1, 0.2])
    assert "Seed by seed" not in formatted(compare([tmp_path]))


def test_runs_without_an_accuracy_have_a_table_of_seeds_too(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / str(seed), train_loss=[3.0, 2.0, 1.0], seed=seed)
    found = formatted(compare([tmp_path], target_loss=2.0, smooth=2))
    table = found[found.index("Seed by seed") :]
    assert "10, 10" in table
    assert "accuracy" not in table


def test_a_seed_that_diverged_is_named_so_in_the_table_of_seeds(tmp_path: Path) -> None:
    for seed, end in ((0, 0.2), (1, None)):
        write_run(tmp_path / str(seed), [0.1, end], seed=seed)
    found = formatted(compare([tmp_path], smooth=1))
    assert "20.0, not finite" in found[found.index("Seed by seed") :]


def test_markdown_has_the_cells_of_the_text_and_what_they_mean(two_algorithms: Path) -> None:
    lines = formatted(compare([two_algorithms], target=0.5, smooth=2), "markdown").splitlines()
    assert lines[2] == "**To 50 % test accuracy**"  # below what it comes to
    assert "| FedAvg | 40 | 1.00× | only 1 of 2 seeds | – | 12 kB |" in lines
    assert "| FedVARP | 20 | 2.00× | 25 | \\> 1.80× | 6 kB |" in lines
    assert lines[-1] == "± is the sample standard deviation over seeds."


def test_html_has_a_table_for_each_of_the_text_and_escapes_names(tmp_path: Path) -> None:
    write_run(tmp_path / "x", [0.1, 0.2], algorithm="<b>mine", settings={"rounds": 500})
    comparison = compare([tmp_path])
    found = formatted(comparison, "html")
    assert found.count("<table") == len(tables(comparison)) == 3
    assert "<b>" not in found
    assert "&lt;b&gt;mine *" in found
    assert "is unfinished: round 10 of 500." in found


def test_in_brief_there_are_the_headline_the_target_and_the_differences(
    two_algorithms: Path,
) -> None:
    compared = compare([two_algorithms], target=0.5, smooth=2, beside="fedavg")
    whole, short = formatted(compared), formatted(compared, brief=True)
    assert whole.startswith(short[: short.index("To 50 %")])
    for title, stays in {"To 50 %": True, "Beside FedAvg": True, "At the end": False}.items():
        assert f"\n{title}" in whole
        assert (f"\n{title}" in short) is stays


def test_in_brief_runs_without_a_target_are_shown_at_their_end(tmp_path: Path) -> None:
    write_run(tmp_path / "only", train_loss=[3.0, 2.0])
    assert "At the end" in formatted(compare([tmp_path]), brief=True)
