"""What clients that lie cost each algorithm, with clipped updates and without: docs/robustness.md.

``python -m benchmarks.attacks`` trains the preset `digits` under every attack and prints the mean
accuracy of its last five evaluations. What is in its file already is not trained again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from benchmarks.timing import show, table
from fedvarp import Broadcast, LocalSGD, RoundUpdates, stream
from fedvarp.clients.local_training import batches
from fedvarp.data import FederatedDataset
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.trainers import ClientTrainer

FEW = ("fedavg", "fedvarp", "cluster_fedvarp", "mifa", "fedvarp_adaptive", "fedvarp_mixed", "scaffold")  # fmt: skip
MORE = ("fedvarp", "trimmed_mean(trim=0.2)", "median")  # of two clients they are FedVARP
COHORTS = {2: FEW, 10: MORE}
ONCE = 20  # the round in which the single bad reply comes


@dataclass(frozen=True)
class Attack:
    """Who lies, and how.

    Attributes:
        liars: How many of the 100 clients.
        lie: (Δ_i, noise of norm 1) → what is sent instead.
        once: Whether one reply is a lie, and its client is never heard of again.
    """

    liars: int = 0
    lie: Callable[[Tensor, Tensor], Tensor] = lambda delta, noise: delta
    once: bool = False


ATTACKS = {
    "none": Attack(),
    "one reply × 100": Attack(0, lambda delta, noise: 100 * delta, once=True),
    "1 % × 100": Attack(1, lambda delta, noise: 100 * delta),
    "10 % × 100": Attack(10, lambda delta, noise: 100 * delta),
    "1 % × −10": Attack(1, lambda delta, noise: -10 * delta),
    "10 % × −10": Attack(10, lambda delta, noise: -10 * delta),
    "10 % × −1": Attack(10, lambda delta, noise: -delta),
    "1 % noise": Attack(1, lambda delta, noise: 10 * delta.norm() * noise),
    "10 % noise": Attack(10, lambda delta, noise: 10 * delta.norm() * noise),
}


class LogisticTrainer(ClientTrainer):
    """The clients of `digits`, all at once and with their gradients written out: there are many."""

    def __init__(self, dataset: FederatedDataset, local_sgd: LocalSGD, seed: int) -> None:
        self.local_sgd, self.seed = local_sgd, seed
        examples = [dataset.client(i) for i in range(dataset.num_clients)]
        self.x = torch.stack([x.flatten(1) for x, _ in examples])  # (N, 16, 64)
        self.y = one_hot(torch.stack([y for _, y in examples]), 10).float()  # (N, 16, 10)

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """LocalSGD, as `SequentialTrainer` has it but for the rounding."""
        (M, n), lr = (len(clients), self.x.shape[1]), self.local_sgd.rate(round)
        drawn = [batches(self.local_sgd, n, self.seed, round, i) for i in clients.tolist()]
        w = broadcast.w.repeat(M, 1)
        num_steps = 0
        for chosen in zip(*drawn, strict=True):
            at = clients.unsqueeze(1), torch.stack(chosen)
            x, y = self.x[at], self.y[at]  # (M, B, 64), (M, B, 10)
            W, b = w[:, :640].view(M, 10, 64), w[:, 640:].unsqueeze(1)
            wrong = (x @ W.mT + b).softmax(2).sub_(y).div_(x.shape[1])
            gradient = torch.cat([(wrong.mT @ x).flatten(1), wrong.sum(1)], 1)
            if broadcast.corrections is not None:
                gradient += broadcast.corrections
            w -= lr * gradient
            num_steps += 1
        steps, sizes = torch.full((M,), num_steps), torch.full((M,), n)
        return RoundUpdates(clients, (broadcast.w - w) / lr, steps, sizes, scale=lr)


class Attacked(ClientTrainer):
    """A trainer some of whose clients send something else."""

    def __init__(self, honest: ClientTrainer, attack: Attack, seed: int) -> None:
        self.honest, self.attack, self.seed = honest, attack, seed
        everyone = torch.randperm(100, generator=stream(seed, "liars")).tolist()
        self.liars = set(everyone[: attack.liars])

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """What the clients send, liars included."""
        updates = self.honest.train(broadcast, clients, round)
        if self.attack.once and round == ONCE:
            self.liars = {int(updates.clients[0])}
        elif self.attack.once:
            heard = [m for m, i in enumerate(updates.clients.tolist()) if i not in self.liars]
            return updates.keep(heard, {})
        deltas = updates.deltas.clone()
        for m, client in enumerate(updates.clients.tolist()):
            if client in self.liars:
                drawn = torch.randn(deltas.shape[1], generator=stream(self.seed, "lie", round))
                deltas[m] = self.attack.lie(deltas[m], drawn / drawn.norm())
        return dataclasses.replace(updates, deltas=deltas)


def accuracy(algorithm: str, clip: str, attack: str, size: int, seed: int, rounds: int) -> float:
    """Trains once, and returns the mean of the last five test accuracies."""
    told = [f"algorithm={algorithm}", f"table.clip_updates={clip}", f"rounds={rounds}"]
    told += [f"clients_per_round={size}", f"seed={seed}", "evaluation.num_train_clients=0"]
    experiment = build(load_settings("digits", told))
    honest = LogisticTrainer(experiment.dataset, experiment.local_sgd, seed)
    task = dataclasses.replace(
        experiment.task(progress=False), trainer=Attacked(honest, ATTACKS[attack], seed)
    )
    figures = [r["test_accuracy"] for r in task.run().metrics if "test_accuracy" in r]
    return sum(figures[-5:]) / len(figures[-5:])


def cases(seeds: int) -> Iterator[tuple[str, str, str, int, int]]:
    """Each run: algorithm, clip_updates, attack, M and seed."""
    for seed in range(seeds):
        for size, algorithms in COHORTS.items():
            for algorithm in algorithms:
                for clip in ("false", "median"):
                    for attack in ATTACKS:
                        yield algorithm, clip, attack, size, seed


def main() -> None:
    """Trains what is missing, and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/attacks.jsonl"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {tuple(case): found for case, found in map(json.loads, lines)}
    for case in cases(given.seeds):
        key = (*case, given.rounds)
        if key not in done:
            done[key] = accuracy(*case, given.rounds)
            with given.out.open("a") as file:
                file.write(json.dumps([key, done[key]]) + "\n")
    for size, algorithms in COHORTS.items():
        rows = []
        for algorithm in algorithms:
            for clip, named in (("false", ""), ("median", ", clipped")):
                means = []
                for attack in ATTACKS:
                    keys = [(algorithm, clip, attack, size, s, given.rounds) for s in range(given.seeds)]  # fmt: skip
                    means.append(100 * sum(done[key] for key in keys) / len(keys))
                rows.append([f"`{algorithm}`{named}", *(f"{mean:.1f}" for mean in means)])
        show(table(f"{size} of 100 clients a round", ["", *ATTACKS], rows))


if __name__ == "__main__":
    main()
