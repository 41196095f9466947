"""`make bench`: the tables of docs/benchmarks.md but that of the peers, and of sizes."""

from __future__ import annotations

import argparse
import datetime
import platform

import torch

from benchmarks import (
    codecs,
    cohorts,
    commits,
    flower_draw,
    flower_rounds,
    flower_strategy,
    local_step,
    registered_clients,
    restoring,
    server_update,
    sizing,
    whole_commands,
)
from benchmarks.rounds import overhead, trainers
from benchmarks.timing import show

BENCHMARKS = {
    "rounds": trainers.measure,
    "overhead": overhead.measure,
    "local-step": local_step.measure,
    "cohorts": cohorts.measure,
    "sweeps": whole_commands.sweeps,
    "start-up": whole_commands.start_up,
    "server-update": server_update.measure,
    "registered-clients": registered_clients.measure,
    "sizing": sizing.measure,
    "commits": commits.measure,
    "restoring": restoring.measure,
    "codecs": codecs.measure,
    "flower-strategy": flower_strategy.measure,
    "flower-rounds": flower_rounds.measure,
    "flower-draw": flower_draw.measure,
}


def main() -> None:
    """Runs the benchmarks that are named, or all of them, and prints their tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; else all of them"
    )
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"no benchmark is called {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    show(
        f"Measured {datetime.date.today()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}.\n"
    )
    for name in names or BENCHMARKS:
        show(BENCHMARKS[name]())


if __name__ == "__main__":
    main()
