"""What all figures share: legend, panels, and files that cannot be written."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedvarp.analysis import group_runs, read_runs
from fedvarp.analysis.curve_plots import curves_figure, plot
from fedvarp.analysis.figures import refuse_undrawable
from fedvarp.analysis.styles import LOOKS
from fedvarp.runs.errors import RunError
from some_runs import write_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")


def as_read(drawn: Figure) -> list[str]:
    """The legend's names, row by row from the left."""
    drawn.savefig(io.BytesIO(), dpi=drawn.dpi)  # settles where everything is
    (legend,) = drawn.legends
    places = [(text.get_window_extent(), text.get_text()) for text in legend.get_texts()]
    return [name for _, name in sorted(places, key=lambda p: (-round(p[0].y0), p[0].x0))]


def test_the_legend_is_in_the_papers_order_and_each_algorithm_has_its_look(tmp_path: Path) -> None:
    papers = list(LOOKS)[:5]
    for algorithm in reversed(papers):
        write_run(tmp_path / algorithm, [0.1, 0.2], algorithm=algorithm)
    drawn = curves_figure(group_runs(read_runs([tmp_path])[0]))
    assert as_read(drawn) == ["FedAvg", "MIFA", "SCAFFOLD", "ClusterFedVARP", "FedVARP"]
    lines = drawn.axes[0].get_lines()
    assert [line.get_color() for line in lines] == [LOOKS[name].colour for name in papers]
    assert len({str(line.get_linestyle()) + str(line.get_marker()) for line in lines}) == 5


def test_a_long_legend_reads_in_rows_and_stays_within_the_figure(tmp_path: Path) -> None:
    rates = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    for rate in rates:
        write_run(tmp_path / str(rate), [0.1, 0.2], train_loss=[2.0, 1.0], lr=rate)
    drawn = curves_figure(group_runs(read_runs([tmp_path])[0]))
    assert as_read(drawn) == [f"FedVARP (lr={rate:g})" for rate in rates]
    box = drawn.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= drawn.bbox.x1
    assert box.y0 >= max(axes.get_window_extent().y1 for axes in drawn.axes)


def test_long_words_around_a_narrow_figure_stay_within_it(tmp_path: Path) -> None:
    write_run(tmp_path / "0", train_loss=[2.0, 1.0])
    drawn = curves_figure(
        group_runs(read_runs([tmp_path])[0]),
        about="Each at the best rate of those tried, by validation accuracy (mean of the last)",
        title="What a newcomer called the figure of the first training of all, at some length",
    )
    as_read(drawn)
    for text in (drawn.legends[0].get_title(), *drawn.texts):
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawn.bbox.x1, text


def test_panels_are_those_that_were_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "0", train_loss=[2.0, 1.0])
    (only,) = curves_figure(group_runs(read_runs([tmp_path])[0]), log_loss=True).axes
    assert only.get_ylabel() == "Training loss, log scale"
    assert only.get_yscale() == "log"


def test_without_matplotlib_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "0", [0.1, 0.2])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "fedvarp\[plots\]"'):
        plot([run], tmp_path / "figure.png")


def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(tmp_path: Path) -> None:
    refuse_undrawable(tmp_path / "new" / "figure.png")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot be written.*no folder.*another place"):
        refuse_undrawable(tmp_path / "file" / "figure.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(RunError, match=r"cannot be written.*no file.*another place"):
        refuse_undrawable(tmp_path / "folder.png")
    with pytest.raises(RunError, match=r"does not end in .*png"):
        refuse_undrawable(tmp_path / "figure.jpeg")
