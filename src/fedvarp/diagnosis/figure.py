"""A diagnosis as a figure: the errors by cause, what would help, and what clusters remove."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedvarp.analysis.figures import our_style, save
from fedvarp.analysis.styles import CAUSES, LOOKS
from fedvarp.analysis.units import in_bytes
from fedvarp.diagnosis.remedies import rank_remedies
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.diagnosis.text import shown_step_errors
from fedvarp.theory.bounds import ErrorTerms
from fedvarp.theory.step_errors import StepErrors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bars = Mapping[str, StepErrors] | Mapping[str, ErrorTerms]  # by the label of a bar


def draw(found: Diagnosis, out: Path) -> Path:
    """Draws a diagnosis into a file.

    Args:
        found: The diagnosis.
        out: A .png, .svg or .pdf file.

    Returns:
        The file.
    """
    return save(as_figure(found), out)


def as_figure(found: Diagnosis) -> Figure:
    """Draws the errors by algorithm and cause, what would help, and σ_K² against K.

    Args:
        found: The diagnosis.

    Returns:
        A figure with one to four panels, two in a row.
    """
    from matplotlib.figure import Figure

    panels: list[Callable[[Axes, Diagnosis], None]] = [
        *([_draw_step, _draw_remedies] if found.step_errors else []),
        _draw_bounds,
        *([_draw_curve] if found.curve else []),
    ]
    columns, rows = min(len(panels), 2), -(-len(panels) // 2)
    with our_style():
        drawn = Figure(figsize=(4.3 * columns + 0.2, 3.0 * rows + 0.4), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            panel(drawn.add_subplot(rows, columns, place), found)
        handles, labels = drawn.axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=3)
        drawn.supxlabel(
            f"{found.settings.name} after round {found.round}: {found.measured.num_clients:,} "
            f"clients, {found.settings.clients_per_round} a round, {found.measured.num_steps:g} "
            f"local steps",
            fontsize=6.5,
            color="#555555",
        )
    return drawn


def _draw_step(axes: Axes, found: Diagnosis) -> None:
    shown = shown_step_errors(found)
    _draw_bars(axes, shown)
    for place, name in enumerate(found.step_errors):
        total = found.interval("total", name)
        axes.vlines(place, max(total.low, 0.0), max(total.high, 0.0), color="black", linewidth=1)
    axes.set_ylabel("Error of one step, E‖v − h‖²")
    axes.set_title(f"Measured, at the rate {found.client_lr:.2g}, with 95 % intervals", fontsize=8)


def _draw_remedies(axes: Axes, found: Diagnosis) -> None:
    ranked = rank_remedies(found)
    for place, remedy in enumerate(ranked):
        colour = "#555555" if remedy.is_baseline else "#009E73" if remedy.helps else "#BBBBBB"
        low, high = max(remedy.total.low, 0.0), max(remedy.total.high, 0.0)
        axes.hlines(place, low, high, color=colour, linewidth=1)
        axes.plot([max(remedy.total.value, 0.0)], [place], "o", color=colour, markersize=3.5)
    axes.set_yticks(range(len(ranked)), [remedy.name for remedy in ranked], fontsize=5.5)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("Error of one step that would be left", fontsize=7)
    axes.set_title("What would help (green), as measured", fontsize=8)


def _draw_bounds(axes: Axes, found: Diagnosis) -> None:
    rate = min(found.smallest_allowed_lr, found.client_lr)
    _draw_bars(axes, {LOOKS[name].label: one for name, one in found.terms(rate).items()})
    axes.set_ylabel("Error floor, bound on E‖∇f‖²")
    axes.set_title(f"Theorems, at the rate {rate:.2g}", fontsize=8)


def _draw_bars(axes: Axes, errors: Bars) -> None:
    base = [0.0] * len(errors)
    for cause, look in CAUSES.items():
        heights = [max(float(getattr(one, cause)), 0.0) for one in errors.values()]
        axes.bar(
            range(len(errors)), heights, 0.6, bottom=base, label=look.label, color=look.colour,
            hatch=look.hatch, edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        base = [low + height for low, height in zip(base, heights, strict=True)]
    labels = [label.replace(", ", ",\n") for label in errors]
    axes.set_xticks(range(len(errors)), labels, fontsize=7 if len(errors) < 4 else 6)
    axes.grid(axis="x", visible=False)


def _draw_curve(axes: Axes, found: Diagnosis) -> None:
    look, m = LOOKS["cluster_fedvarp"], found.measured
    numbers = [point.num_clusters for point in found.curve]
    left = [100 * (1 - point.share_removed) for point in found.curve]
    axes.plot(
        numbers, left, label="k-means", color=look.colour, marker="^", markeredgecolor="white",
        markeredgewidth=0.5,
    )  # fmt: skip
    if m.sigma_K2 is not None and m.cluster_sizes is not None and m.sigma_g2.value > 0:
        own = 100 * m.sigma_K2.value / m.sigma_g2.value
        axes.plot([len(m.cluster_sizes)], [own], "ks", label="those measured")
    axes.legend(fontsize=7, title="Clusters", title_fontsize=7)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)
    codec = found.settings.table.codec
    one, whole = (in_bytes(found.table_bytes(rows, codec)) for rows in (1, m.num_clients))
    axes.set_xlabel(f"Rows K (1 takes {one}, {m.num_clients:,} take {whole})", fontsize=7)
    axes.set_ylabel("Variance left, σ_K² / σ_g² (%)")
    axes.set_title("Storage against variance", fontsize=8)
