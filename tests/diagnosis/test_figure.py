"""A diagnosis as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvarp.analysis.styles import CAUSES
from fedvarp.diagnosis import Diagnosis, draw, rank_remedies
from fedvarp.diagnosis.figure import as_figure

pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")


def test_there_is_a_bar_for_every_cause(found: Diagnosis) -> None:
    step, helping, bound, curve = as_figure(found).axes
    for axes in (step, bound):
        assert len(axes.patches) == 3 * len(CAUSES)
    highest: list[Any] = step.patches[-3:]
    tops = [bar.get_y() + bar.get_height() for bar in highest]
    for top, name in zip(tops, found.algorithms, strict=True):
        one = found.step_errors[name]
        assert top == pytest.approx(sum(max(getattr(one, cause), 0.0) for cause in CAUSES))
    assert len(helping.lines) == len(rank_remedies(found))
    assert curve.lines[0].get_xdata().tolist() == [1, 2, 4, 5, 8, 16, 20]  # type: ignore[union-attr]


def test_the_rows_of_a_run_have_a_bar(with_rows: Diagnosis) -> None:
    ticks = [label.get_text() for label in as_figure(with_rows).axes[0].get_xticklabels()]
    assert ticks[-1] == "ClusterFedVARP,\nits rows"


def test_the_same_diagnosis_gives_the_same_file(found: Diagnosis, tmp_path: Path) -> None:
    first, again = (draw(found, tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == again
