"""`make bench-peers`: Flower, pfl-research and fedjax side by side with fedvarp on W1 and W2."""

from __future__ import annotations

import argparse
import datetime
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from benchmarks import ROOT
from benchmarks.peers.environments import InstallationError, Peer
from benchmarks.rounds import trainers
from benchmarks.rounds.contest import Turns
from benchmarks.rounds.contestant import Entry
from benchmarks.rounds.workloads import w1, w2
from benchmarks.timing import show
from fedvarp.simulation.cohorts_ahead import AHEAD

TWO_OF_PFL: Final = "pfl-research, two processes"  # the fastest peer on W1
FEDJAX: Final = "fedjax"  # and on W2
PEERS: Final = (
    Peer(
        name="flower",
        requirement="flwr[simulation]==1.41.0",
        packages=("flwr", "ray"),
        entries={"Flower, Ray, a CPU a client": ("-m", "benchmarks.peers.with_flower")},
        environment={
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray's switch for laptops; on Linux too it keeps the cluster off all networks but
            # loopback.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        },
    ),
    Peer(
        name="pfl-research",
        requirement="pfl[pytorch]>=0.6,<0.7",
        packages=("pfl",),
        entries={
            "pfl-research, one process": ("-m", "benchmarks.peers.with_pfl", "1"),
            TWO_OF_PFL: ("-m", "benchmarks.peers.with_pfl", "2"),
        },
        environment={},
    ),
    Peer(
        name="fedjax",
        requirement="fedjax==0.0.17",
        packages=("fedjax", "jax"),
        entries={FEDJAX: ("-m", "benchmarks.peers.with_fedjax")},
        environment={"JAX_PLATFORMS": "cpu"},
    ),
)


def installed(peers: Sequence[Peer]) -> tuple[list[Peer], list[str]]:
    """The peers that can be installed, and a line about each."""
    there, lines = [], []
    for peer in peers:
        try:
            peer.install()
            lines.append(f"- {peer.name}: {peer.versions()}")
            there.append(peer)
        except InstallationError as error:
            lines.append(f"- {peer.name}: not installed. {error}")
    return there, lines


def entries(peers: Sequence[Peer], folder: Path, workload: str) -> Mapping[str, Entry]:
    """The contestants of these peers; they see the benchmarks, and no fedvarp but its models."""
    found = {
        name: Entry(
            [*arguments, str(folder)],
            python=str(peer.python),
            environment={**peer.environment, "PYTHONPATH": str(ROOT)},
        )
        for peer in peers
        for name, arguments in peer.entries.items()
    }
    if workload == "W1" and TWO_OF_PFL in found:
        found[TWO_OF_PFL + trainers.USUAL] = trainers.as_usual(found[TWO_OF_PFL])
    return found


def main() -> None:
    """Installs what is missing, then prints the table of each workload."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--workload", choices=["W1", "W2"], help="both unless given")
    parser.add_argument("--starts", type=int, default=3, help="of each contestant, 3 unless given")
    parser.add_argument("--turns", type=int, default=7, help="after each start, 7 unless given")
    known = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="*", choices=known, default=known, help="all unless given")
    given = parser.parse_args()
    peers, lines = installed([peer for peer in PEERS if peer.name in given.peers])
    about = f"Measured {datetime.date.today()}, torch {torch.__version__}, {platform.machine()}.\n"
    show("\n".join([about, *lines, ""]))
    of_w1 = (
        trainers.TWO_WORKERS,
        trainers.SHARING,
        trainers.TWO_BARE + trainers.USUAL,
        trainers.TWO_WORKERS + trainers.USUAL,
        trainers.SHARING + trainers.USUAL,
    )
    beside_w1 = (trainers.PLAIN, trainers.TWO_BARE, TWO_OF_PFL, TWO_OF_PFL + trainers.USUAL)
    for workload, fastest, bases, turns in (
        (w1(), of_w1, beside_w1, Turns(given.starts, warm_up=2, turns=given.turns)),
        (
            w2(),
            (trainers.VECTORISED,),
            (trainers.PLAIN, FEDJAX),
            Turns(given.starts, 5, given.turns, at_once=3 * AHEAD),
        ),
    ):
        if given.workload not in (None, workload.settings.name):
            continue
        names = [trainers.PLAIN, trainers.TWO_BARE, trainers.SEQUENTIAL, *fastest]
        of_peers = partial(entries, peers, workload=workload.settings.name)
        show(trainers.contest(workload, names, bases, {}, turns, of_peers))


if __name__ == "__main__":
    main()
