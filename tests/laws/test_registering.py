"""Registering an algorithm puts it under every law, without a line in the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from dataclasses import dataclass
from fedvarp.algorithms.aggregator import LatestUpdates
from fedvarp.algorithms import ALGORITHMS

@dataclass(eq=False)
class FedStale(LatestUpdates):
    beta = {beta}

    def aggregate(self, updates):
        S, delta, a = updates.clients, updates.deltas, updates.averaging_weights
        return self.y.exchange(S, delta, a, self.beta) {mistake}

ALGORITHMS["stale"] = lambda table: FedStale(table.row_per_client())
"""


def laws_kept(folder: Path, beta: float, mistake: str) -> dict[str, dict[str, str]]:
    """{algorithm: {law: PASSED or FAILED}} for the throw-away algorithm and a built-in one."""
    (folder / "throw_away.py").write_text(PLUGIN.format(beta=beta, mistake=mistake))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    laws = str(Path(__file__).parent)
    chosen = "(stale or scaffold) and memory and float64 and not momentum"
    found = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "-p", "throw_away", "-p", "no:cacheprovider"),
            *("-k", chosen, laws),
        ],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    lines = re.findall(
        r"::(test_\w+)\[(?:.*-)?(stale|scaffold)\b.*\] (PASSED|FAILED)", found.stdout
    )
    kept: dict[str, dict[str, str]] = {"stale": {}, "scaffold": {}}
    for law, algorithm, outcome in lines:
        if kept[algorithm].get(law) != "FAILED":
            kept[algorithm][law] = outcome
    assert kept["scaffold"], found.stdout + found.stderr
    return kept


def test_what_is_registered_goes_through_every_law(tmp_path: Path) -> None:
    kept = laws_kept(tmp_path, beta=0.5, mistake="")
    assert kept["stale"] == kept["scaffold"]
    assert len(kept["stale"]) >= 6
    assert set(kept["stale"].values()) == {"PASSED"}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["* 1.001", "+ self.y.mean()"])
def test_what_is_registered_and_wrong_is_found_out(tmp_path: Path, mistake: str) -> None:
    kept = laws_kept(tmp_path, beta=1.0, mistake=mistake)
    assert kept["stale"]["test_full_participation_is_fedavg"] == "FAILED"
    assert kept["stale"]["test_the_direction_is_unbiased_whatever_the_table_holds"] == "FAILED"
