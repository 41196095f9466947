"""A diagnosis as a figure: the errors by cause, and what clusters would remove."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedvarp.analysis.figures import our_style, save
from fedvarp.analysis.styles import CAUSES, LOOKS
from fedvarp.analysis.units import in_bytes
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
    """Draws stacked bars of the errors by algorithm, and σ_K² against K.

    Args:
        found: The diagnosis.

    Returns:
        A figure with one to three panels.
    """
    from matplotlib.figure import Figure

    rate = min(found.smallest_allowed_lr, found.client_lr)
    panels: list[tuple[str, Bars | None]] = [
        *([("step", shown_step_errors(found))] if found.step_errors else []),
        ("bound", {LOOKS[name].label: one for name, one in found.terms(rate).items()}),
        *([("curve", None)] if found.curve else []),
    ]
    with our_style():
        drawn = Figure(figsize=(3.3 * len(panels) + 0.2, 3.2), layout="constrained")
        for column, (kind, errors) in enumerate(panels):
            axes = drawn.add_subplot(1, len(panels), column + 1)
            if errors is None:
                _draw_curve(axes, found)
                continue
            _draw_bars(axes, errors)
            if kind == "step":
                axes.set_ylabel("Error of one step, E‖v − ∇f‖²")
                axes.set_title(f"Measured, at the run's rate {found.client_lr:.2g}", fontsize=8)
            else:
                axes.set_ylabel("Error floor, bound on E‖∇f‖²")
                axes.set_title(f"Theorems, at the rate {rate:.2g}", fontsize=8)
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
