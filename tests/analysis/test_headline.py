"""What a comparison comes to, in sentences, above its tables and on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvarp.analysis import compare, formatted, write_report
from fedvarp.analysis.headline import headline
from some_runs import write_run


def test_who_is_first_by_how_much_and_who_never_gets_there(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2, 0.3, 0.4, 0.5], algorithm="fedavg")
    write_run(tmp_path / "v", [0.1, 0.5, 0.5, 0.5, 0.6])
    write_run(tmp_path / "m", [0.1, 0.2, 0.5, 0.5, 0.5], algorithm="mifa")
    write_run(tmp_path / "s", [0.1, 0.1, 0.1, 0.1, 0.1], algorithm="scaffold")
    said = headline(compare([tmp_path], target=0.5, smooth=1))
    assert said == (
        "FedVARP gets to 50 % test accuracy first, in 10 rounds, 4.0 times as soon as FedAvg; then "
        "MIFA in 20, FedAvg in 40; not in every seed: SCAFFOLD. At the end "
        "FedVARP has the most accuracy, 60.0 %, and SCAFFOLD the least, 10.0 %."
    )


def test_that_fedavg_never_got_there_is_a_lower_bound(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2, 0.3], algorithm="fedavg")
    write_run(tmp_path / "v", [0.1, 0.5, 0.5])
    assert "more than 2.0 times as soon as FedAvg" in headline(
        compare([tmp_path], target=0.5, smooth=1)
    )


def test_fedavg_first_is_said_as_plainly(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5, 0.5], algorithm="fedavg")
    write_run(tmp_path / "v", [0.1, 0.2, 0.5])
    said = headline(compare([tmp_path], target=0.5, smooth=1))
    assert said.startswith("FedAvg gets to 50 % test accuracy first, in 10 rounds; then FedVARP")


def test_ends_at_different_rounds_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2, 0.3, 0.4], algorithm="fedavg")
    write_run(tmp_path / "v", [0.1, 0.5])
    assert "At the end" not in headline(compare([tmp_path], target=0.5, smooth=1))


def test_ends_that_look_alike_have_no_best(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.49303], algorithm="fedavg")
    write_run(tmp_path / "v", [0.1, 0.49299])
    said = headline(compare([tmp_path], target=0.3, smooth=1))
    assert "At the end all have the same accuracy, 49.3 %." in said


def test_one_group_has_no_headline(tmp_path: Path) -> None:
    write_run(tmp_path / "v", [0.1, 0.5])
    assert headline(compare([tmp_path], target=0.5)) == ""


def test_it_stands_above_the_tables(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5, 0.5], algorithm="fedavg")
    write_run(tmp_path / "v", [0.1, 0.2, 0.5])
    compared = compare([tmp_path], target=0.5, smooth=1)
    for format in ("text", "markdown"):
        assert formatted(compared, format).startswith("FedAvg gets to 50 %")
    assert "FedAvg gets to 50 %" in formatted(compared, "html")
    pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")
    page = write_report([tmp_path], tmp_path / "page.html", target=0.5, smooth=1).read_text()
    assert '<p class="headline">FedAvg gets to 50 % test accuracy first' in page


def test_of_several_rates_the_best_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2, 0.5], algorithm="fedavg", lr=0.1)
    write_run(tmp_path / "b", [0.1, 0.5, 0.5], algorithm="fedavg", lr=0.3)
    write_run(tmp_path / "v", [0.1, 0.2, 0.5])
    said = headline(compare([tmp_path], target=0.5, smooth=1))
    assert "FedAvg (lr=0.3) gets to 50 % test accuracy first, in 10 rounds; then FedVARP" in said
    assert "lr=0.1" not in said


def test_the_end_is_told_of_the_rates_that_end_best(tmp_path: Path) -> None:
    """Which need not be those that get to the target first."""
    write_run(tmp_path / "a", [0.1, 0.5, 0.5], algorithm="fedavg", lr=0.3)
    write_run(tmp_path / "b", [0.1, 0.2, 0.6], algorithm="fedavg", lr=0.1)
    write_run(tmp_path / "v", [0.1, 0.5, 0.4], lr=0.3)
    write_run(tmp_path / "w", [0.1, 0.2, 0.7], lr=0.1)
    said = headline(compare([tmp_path], target=0.5, smooth=1))
    assert "FedAvg (lr=0.3) and FedVARP (lr=0.3) get to 50 % test accuracy together" in said
    # The rest end lower still, and are not spoken of.
    assert "At the end, of the best of each algorithm, FedVARP (lr=0.1) has the most" in said
    assert "and FedAvg (lr=0.1) the least, 60.0 %" in said


def test_a_rate_that_diverges_does_not_stand_for_its_algorithm(tmp_path: Path) -> None:
    for name, end in (("fedavg", 0.7), ("fedvarp", 0.6)):
        write_run(tmp_path / f"{name}-1", algorithm=name, lr=0.1, train_loss=[2.0, 1.0, None])
        write_run(tmp_path / f"{name}-2", algorithm=name, lr=0.3, train_loss=[2.0, 1.0, end])
    said = headline(compare([tmp_path], target_loss=0.9, smooth=1))
    assert "FedVARP (lr=0.3) has the least training loss, 0.6, and FedAvg (lr=0.3)" in said


def test_nobody_is_first_where_all_arrive_together(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5], algorithm="fedavg")
    write_run(tmp_path / "v", [0.1, 0.6])
    said = headline(compare([tmp_path], target=0.5, smooth=1))
    assert said.startswith("FedAvg and FedVARP get to 50 % test accuracy together, in 10 rounds")


def test_few_evaluations_are_told_by_the_last_one(tmp_path: Path) -> None:
    """Nobody has five to take the mean of; what the servers hold is not all there is to say."""
    write_run(tmp_path / "a", [0.1, 0.2, 0.3], algorithm="fedavg")
    write_run(tmp_path / "v", [0.1, 0.5, 0.4])
    said = headline(compare([tmp_path], smooth=5))
    assert "FedVARP has the most accuracy in the last evaluation, 40.0 %, and FedAvg" in said


def test_without_an_accuracy_the_least_loss_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", train_loss=[1.0, 0.5], algorithm="fedavg")
    write_run(tmp_path / "v", train_loss=[1.0, 0.25])
    said = headline(compare([tmp_path], smooth=1))
    assert "FedVARP has the least training loss, 0.25, and FedAvg the most, 0.5." in said


def test_runs_that_sent_nothing_are_no_measure_for_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2], algorithm="fedavg")
    silent = write_run(tmp_path / "v", [0.1, 0.5]) / "metrics.jsonl"
    text = silent.read_text()
    silent.write_text(text.replace('"bytes_down": 200, "bytes_up": 100', '"bytes_down": 0'))
    assert "times the bytes" not in headline(compare([tmp_path]))
