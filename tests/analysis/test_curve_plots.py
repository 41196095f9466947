"""The figures: what they show, that they repeat to the byte, and what cannot be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from fedvarp.analysis import group_runs, read_runs
from fedvarp.analysis.curve_plots import curves_figure, plot
from fedvarp.runs.errors import RunError
from some_runs import write_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")

FILE_STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def x_of(axes: Axes) -> NDArray[np.float64]:
    (line,) = axes.get_lines()
    return np.asarray(line.get_xdata(), dtype=np.float64)


def y_of(axes: Axes) -> NDArray[np.float64]:
    (line,) = axes.get_lines()
    return np.asarray(line.get_ydata(), dtype=np.float64)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_every_format_is_written_and_repeats_to_the_byte(
    real_runs: Path, tmp_path: Path, ending: str
) -> None:
    first = plot([real_runs], tmp_path / "new" / f"first.{ending}")
    again = plot([real_runs], tmp_path / f"again.{ending}")
    assert first.read_bytes().startswith(FILE_STARTS[ending])
    assert first.read_bytes() == again.read_bytes()
    other = plot([real_runs], tmp_path / f"other.{ending}", x="bytes")
    assert other.read_bytes() != first.read_bytes()


def test_lines_are_means_and_bands_reach_from_lowest_to_highest(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [0.1, 0.2, 0.6], train_loss=[2.0, 1.5, 1.0], seed=0)
    write_run(tmp_path / "1", [0.1, 0.4, 0.8], train_loss=[2.0, 0.5, 0.0], seed=1)
    losses, accuracies = curves_figure(group_runs(read_runs([tmp_path])[0])).axes
    assert losses.get_ylabel() == "Training loss"
    assert accuracies.get_ylabel() == "Test accuracy (%)"
    np.testing.assert_allclose(x_of(accuracies), [0, 10, 20])
    np.testing.assert_allclose(y_of(accuracies), [10, 30, 70])
    np.testing.assert_allclose(y_of(losses), [2.0, 1.0, 0.5])
    (band,) = accuracies.collections
    corners = np.asarray(band.get_paths()[0].vertices).round(6).tolist()
    edges = {tuple(corner) for corner in corners}
    assert {(10, 20), (10, 40), (20, 60), (20, 80)} <= edges


def test_bytes_and_time_are_what_was_sent_and_spent_until_each_evaluation(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [0.1, 0.2, 0.6])
    groups = group_runs(read_runs([tmp_path])[0])
    by_bytes = curves_figure(groups, x="bytes").axes[0]
    assert by_bytes.get_xlabel() == "Sent by server and clients (kB)"
    # 10 rounds of 300 bytes between evaluations.
    np.testing.assert_allclose(x_of(by_bytes), [0, 3, 6])
    by_time = curves_figure(groups, x="time").axes[0]
    assert by_time.get_xlabel() == "Wall time (seconds)"
    # Two seconds for every record, that of the initial model too.
    np.testing.assert_allclose(x_of(by_time), [2, 22, 42])


def test_smoothing_is_the_running_mean_of_each_seed(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [0.1, 0.3, 0.8])
    drawn = curves_figure(group_runs(read_runs([tmp_path])[0]), smooth=2)
    faint, smoothed = (line.get_ydata() for line in drawn.axes[0].get_lines())
    np.testing.assert_allclose(np.asarray(smoothed, dtype=float), [np.nan, 20, 55])
    np.testing.assert_allclose(np.asarray(faint, dtype=float), [10, 30, 80])
    expected = "Running mean over 2 evaluations; faint: each evaluation"
    assert drawn.get_supxlabel() == expected


def test_the_caption_says_who_has_fewer_seeds(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path / f"v{seed}", [0.1, 0.3], seed=seed)
    for algorithm in ("mifa", "scaffold"):
        write_run(tmp_path / algorithm, [0.1, 0.3], algorithm=algorithm)
    caption = curves_figure(group_runs(read_runs([tmp_path])[0])).get_supxlabel()
    assert caption.startswith("Lines: mean over 3 seeds (MIFA, SCAFFOLD: 1); bands: ")


def test_a_running_mean_over_more_evaluations_than_there_are_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [0.1, 0.3, 0.8])
    groups = group_runs(read_runs([tmp_path])[0])
    curves_figure(groups, smooth=3)
    with pytest.raises(RunError, match=r"has 3 evaluations up to round 20, too few .* last 4"):
        curves_figure(groups, smooth=4)


@pytest.mark.parametrize("name", ["clients", "objective", "refused"])
def test_what_is_recorded_and_no_number_is_refused_by_name(real_runs: Path, name: str) -> None:
    with pytest.raises(RunError, match=f"No run recorded '{name}' as a number.*test_accuracy"):
        plot(real_runs, metrics=[name])


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", [0.1, 0.2], seconds=None)
    with pytest.raises(RunError, match=r"does not end in \.png, \.svg, \.pdf"):
        plot([run], tmp_path / "figure.jpeg")
    with pytest.raises(RunError, match="not all timed"):
        plot([run], tmp_path / "figure.png", x="time")
    other = write_run(tmp_path / "1", [0.1, 0.2], settings={"clients_per_round": 9})
    with pytest.raises(RunError, match=r"clients_per_round: not set .*, 9 "):
        plot([run, other], tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()
    plot([run, other], tmp_path / "figure.png", allow_different=True)
