"""`make bench`: every table of docs/benchmarks.md but that of the peers."""

from __future__ import annotations

import datetime
import platform
import sys

import torch

from benchmarks import (
    codecs,
    commands,
    commits,
    flower_strategy,
    many_clients,
    overhead,
    rounds,
    server_update,
)
from benchmarks.timing import show

BENCHMARKS = {
    "rounds": rounds.measure,
    "overhead": overhead.measure,
    "sweeps": commands.sweeps,
    "start-up": commands.start_up,
    "server-update": server_update.measure,
    "many-clients": many_clients.measure,
    "commits": commits.measure,
    "codecs": codecs.measure,
    "flower-strategy": flower_strategy.measure,
}


def main(names: list[str]) -> None:
    """Runs the benchmarks of these names, or all of them, and prints their tables."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"No benchmark is called {unknown[0]}; there are {', '.join(BENCHMARKS)}.")
    show(
        f"Measured {datetime.date.today()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}.\n"
    )
    for name in names or BENCHMARKS:
        show(BENCHMARKS[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
