"""What is special about runs that are compared: diverged, unfinished, of different lengths."""

from __future__ import annotations

from collections.abc import Sequence

from fedvarp.analysis.groups import Group


def caveats(groups: Sequence[Group], smooth: int) -> list[str]:
    """Says what a reader would want to know before believing the figures.

    Args:
        groups: The runs that are compared.
        smooth: Evaluations in the running mean; 1 where there is none.

    Returns:
        A sentence for each caveat.
    """
    notes = []
    for group in groups:
        for run in group.runs:
            if run.verdict.warning is not None:
                notes.append(f"{run.path}: {run.verdict.warning}")
            if not run.finished:
                notes.append(
                    f"{run.path} is unfinished: round {run.last_round} of {run.planned_rounds}."
                )
        if group.shortened:
            ends = ", ".join(str(run.last_round) for run in group.runs)
            notes.append(
                f"The seeds of {group.label} ended after rounds {ends}; its figures are those at "
                f"round {group.rounds[-1]}, the last that all of them were evaluated at."
            )
    few = [run for group in groups for run in group.runs if len(run.rounds) < smooth]
    if few:
        others = f" ({len(few)} such runs)" if len(few) > 1 else ""
        notes.append(
            f"{few[0].path} has {len(few[0].rounds)} evaluations, too few for a running mean over "
            f"{smooth}{others}."
        )
    ends_at = sorted({int(group.rounds[-1]) for group in groups})
    if len(ends_at) > 1:
        notes.append(
            f"Curves end between rounds {ends_at[0]} and {ends_at[-1]}: figures at the end are not "
            f"at the same round."
        )
    seeds = {group.label: [run.seed for run in group.runs] for group in groups}
    if len({tuple(mine) for mine in seeds.values()}) > 1:
        listed = "; ".join(f"{name}: {', '.join(map(str, m))}" for name, m in seeds.items())
        notes.append(f"The seeds are not the same: {listed}.")
    return notes
