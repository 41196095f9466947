"""Interleaved timing: machines are noisy, so only ratios taken side by side count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markdown import Markdown


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each candidate, all of them timed in turn in every repeat."""
    for _ in range(warm_up):
        for run in candidates.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def ratios(seconds: Sequence[float], base: Sequence[float]) -> list[float]:
    """Turn by turn, so that what slows the machine for a while slows both."""
    return [a / b for a, b in zip(seconds, base, strict=True)]


def beside_the_first(
    seconds: Mapping[str, Sequence[float]], digits: int, per: int = 1
) -> list[list[str]]:
    """A row for each candidate: its name, its median in milliseconds, its ratios to the first.

    Args:
        seconds: Of each candidate, turn by turn.
        digits: Of the milliseconds.
        per: How many things were timed at once.
    """
    base = next(iter(seconds.values()))
    return [
        [
            name,
            f"{statistics.median(each) / per * 1e3:.{digits}f} ms",
            with_spread(ratios(each, base), 2),
        ]
        for name, each in seconds.items()
    ]


def streaming(num_bytes: int) -> Callable[[], object]:
    """Moves that many bytes through memory: a += s·b, counted as two reads and a write.

    Over vectors far larger than the caches, as often as it takes.
    """
    numbers = min(num_bytes // 12, 2**24)
    a, b = torch.zeros(numbers), torch.ones(numbers)
    whole, rest = divmod(num_bytes // 12, numbers)

    def run() -> None:
        for _ in range(whole):
            a.add_(b, alpha=1e-9)
        if rest:
            a[:rest].add_(b[:rest], alpha=1e-9)

    return run


def with_spread(values: Sequence[float], digits: int, factor: float = 1.0) -> str:
    """The median, and the quartiles in brackets where there are several values."""
    scaled = [factor * value for value in values]
    if len(scaled) == 1:
        return f"{scaled[0]:.{digits}f}"
    low, middle, high = statistics.quantiles(scaled, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def peak_mb() -> float:
    """The most memory this program has had (Linux alone tells).

    `getrusage` counts that of the process it was started from, if that was larger.
    """
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) * 1.024e-3


def table(title: str, header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table under a heading."""
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def show(markdown: str) -> None:
    """Prints tables to look at in a terminal; as Markdown, for docs/benchmarks.md, elsewhere."""
    console = Console()
    if console.is_terminal:
        console.print(Markdown(markdown))
    else:
        print(markdown, flush=True)
