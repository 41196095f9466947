"""One self-contained HTML page about some runs: curves to play with, tables, clients, settings.

participation   who took part how often, and how long the others have waited
diagnosed       what `fedvarp diagnose` found, for runs that were diagnosed
charts          what is to be drawn, as plain data
page            the HTML; page.html, page.css and page.js are its fixed parts
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fedvarp.analysis.comparison import DEFAULT_SMOOTH, compare
from fedvarp.analysis.report.page import page
from fedvarp.analysis.runs import AnyPath
from fedvarp.runs.whole_files import write_whole

__all__ = ["write_report"]


def write_report(
    paths: Iterable[AnyPath],
    out: str | os.PathLike[str],
    *,
    title: str = "Federated learning runs",
    target: float | None = None,
    target_loss: float | None = None,
    smooth: int = DEFAULT_SMOOTH,
    allow_different: bool = False,
) -> Path:
    """Writes the page, whole or not at all, and returns its file.

    The page loads nothing from anywhere, so it can be mailed and archived. The same runs give
    the same page, byte for byte.

    Args:
        paths: Run directories, or directories that hold some.
        out: The file.
        title: Its headline.
        target: As for `fedvarp.analysis.compare`, as the rest.
        target_loss: A loss to count rounds to.
        smooth: Evaluations in the running mean of the second rule.
        allow_different: Takes runs of different tasks too.
    """
    comparison = compare(
        paths,
        target=target,
        target_loss=target_loss,
        smooth=smooth,
        allow_different=allow_different,
    )
    text = page(comparison, title)
    file = Path(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
    return file
