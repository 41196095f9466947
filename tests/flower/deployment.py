"""The small app of `deployed_app` on a real federation, held, killed and looked at by tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedvarp import Checkpoint
from flower.federation import Federation, Tls, federation

APP = Path(__file__).with_name("deployed_app")
NUM_CLIENTS, NUM_STEPS, CLIENT_LR = 3, 4, 0.1  # as in deployed_app

ON_REAL_PROCESSES: Final = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]


@dataclass
class Deployment:
    """SuperNodes and a run that a test can hold, kill and submit again."""

    flower: Federation
    events: Path
    checkpoint: Path

    def submit(self, name: str, config: dict[str, object]) -> str:
        settings = {"events": str(self.events), "checkpoint": str(self.checkpoint), **config}
        return self.flower.submit(name, APP, settings)

    def hold(self, client: int) -> None:
        """From its next training on, this client does not answer."""
        (self.events / f"hold-{client}").touch()

    def release(self, client: int) -> None:
        (self.events / f"hold-{client}").unlink()

    def wait_for_training(self, client: int, run: str, after: int = 0) -> int:
        """Waits until this client trains in a round it was not seen in yet; returns the round."""
        return self._wait_for(f"client-{client}", run, after)

    def wait_until_held(self, client: int, run: str) -> int:
        """Waits until this client is held in the middle of its training; returns the round."""
        return self._wait_for(f"held-{client}", run, after=0)

    def _wait_for(self, what: str, run: str, after: int) -> int:
        rounds: list[int] = []

        def trains() -> bool:
            for event in self.events.glob(f"{what}-in-round-*"):
                rounds.append(int(event.name.rpartition("-")[2]))
                event.unlink()
            return bool(rounds) and max(rounds) > after

        self.flower.wait_for(what, trains, during=run)
        return max(rounds)

    def history(self) -> dict[int, list[int]]:
        """The history that the ServerApp was given at the end of its run."""
        text = (self.events / "history.json").read_text()
        return {int(t): accepted for t, accepted in json.loads(text).items()}

    def saved(self) -> Saved:
        """What is on disk; nobody may be running."""
        with Checkpoint(self.checkpoint) as checkpoint:
            entries = checkpoint.entries()
            assert checkpoint.round is not None
            assert checkpoint.server_description is not None
            w = checkpoint.store.read_tensor("state", "w", torch.float32, (NUM_CLIENTS,))
            return Saved(
                round=checkpoint.round,
                w=w.numpy(),
                num_rows=checkpoint.server_description["num_clients"],
                clients={
                    entry["name"]: entry
                    for key, entry in entries.items()
                    if key.startswith("client/")
                },
                accepted={
                    int(key.split("/")[1]): entry["train"]["accepted"]
                    for key, entry in entries.items()
                    if key.startswith("history/") and "train" in entry
                },
            )


@contextmanager
def deployed(
    folder: Path, num_supernodes: int, *superlink_options: str, tls: Tls | None = None
) -> Iterator[Deployment]:
    """A SuperLink with so many SuperNodes."""
    (folder / "events").mkdir()
    with federation(folder / "flower", tls) as flower:
        flower.start_superlink(*superlink_options)
        for client in range(num_supernodes):
            flower.start_supernode(client)
        yield Deployment(flower, folder / "events", folder / "checkpoint")


@dataclass
class Saved:
    """A checkpoint, as far as these tests look into it."""

    round: int
    w: NDArray[np.float32]
    num_rows: int  # N
    clients: dict[str, dict[str, object]]  # by name
    accepted: dict[int, list[int]]  # round: whose replies were used

    @property
    def rows(self) -> dict[str, object]:
        """Which row is whose."""
        return {name: client["row"] for name, client in self.clients.items()}


def fedvarp_by_hand(accepted: dict[int, list[int]]) -> NDArray[np.float64]:
    """Algorithm 2 in a plain loop, for the clients that answered in each round."""
    w, y = np.zeros(NUM_CLIENTS), np.zeros((NUM_CLIENTS, NUM_CLIENTS))
    centres = np.diag(np.arange(1.0, NUM_CLIENTS + 1))
    for t in sorted(accepted):
        S = accepted[t]
        # (1 − η)^τ of the way is left after τ steps on ½ ‖w − centre‖².
        walked = 1 - (1 - CLIENT_LR) ** NUM_STEPS
        delta = walked * (w - centres[S])  # over a rate that is the same in all rounds
        v = y.mean(0) + (delta - y[S]).mean(0)
        y[S] = delta
        w = w - v
    return w
