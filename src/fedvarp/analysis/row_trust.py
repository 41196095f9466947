"""How far rows are to be trusted, as a diagnosis tells it: a table and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedvarp.analysis.tables import Table

_ROWS: Final = {"own": "a client's own row", "cluster": "its cluster's row"}
_ALL: Final = "all together"


def trust_table(told: Mapping[str, Any]) -> Table:
    """Lays b out by parameter.

    Args:
        told: "measured" at the model, and what the "run" goes by, if it measures b itself.

    Returns:
        A line for the whole row and one for each parameter.
    """
    measured, run = told["measured"], told["run"]
    columns = ["", *(_ROWS[table] for table in measured["whole"])]
    lines = {_ALL: [*measured["whole"].values()]}
    lines |= {name: [*b.values()] for name, b in measured["by_parameter"].items()}
    if run is not None:
        columns += [f"{_ROWS[table]}, as the run has it" for table in run["whole"]]
        of_run = {_ALL: run["whole"], **run["by_parameter"]}
        for name, cells in lines.items():
            cells += of_run.get(name, dict.fromkeys(run["whole"])).values()
    rows = [(name, *map(_number, cells)) for name, cells in lines.items()]
    note = "1: the row is what its client would send now; 0: it says nothing of that."
    return Table("How far rows are to be trusted, b", columns, rows, notes=(note,))


def trust_sentence(told: Mapping[str, Any]) -> str:
    """Says what b means.

    Args:
        told: As for `trust_table`.

    Returns:
        A sentence or two; nothing where there are no rows yet.
    """
    measured, lines = told["measured"], []
    for table, whole in measured["whole"].items():
        if whole is None:
            continue
        line = f"{_ROWS[table].capitalize()} is worth {_number(whole)}"
        known = {n: b[table] for n, b in measured["by_parameter"].items() if b[table] is not None}
        best, worst = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
        if _number(known[best]) != _number(known[worst]):
            line += (
                f": rows of {best} are worth {_number(known[best])}, rows of {worst} "
                f"{_number(known[worst])}"
            )
        lines.append(f"{line}.")
    if not lines:
        return ""
    return " ".join(lines) + (
        " With 1 it is what the client would send now, with 0 it says nothing of that;"
        " fedvarp_adaptive and fedvarp_mixed trust rows so far, layer by layer."
    )


def _number(b: float | None) -> str | None:
    return None if b is None else f"{b:.2f}"
