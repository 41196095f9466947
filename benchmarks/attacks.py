"""What clients that lie cost each algorithm, with clipped updates and without: docs/robustness.md.

``python -m benchmarks.attacks`` trains the preset `digits` under every attack and prints the mean
accuracy of its last five evaluations. What is in its file already is not trained again. All servers
of a seed and a cohort's size walk side by side: they draw the same clients and batches, so that
clients are trained for all of them at once, with their gradients written out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from benchmarks.timing import show, table
from fedvarp import FlatModel, LocalSGD, RoundUpdates, Server, stream
from fedvarp.algorithms.registry import make_algorithm
from fedvarp.clients.local_training import batches
from fedvarp.data import FederatedDataset
from fedvarp.experiments.build import Experiment, build
from fedvarp.experiments.files import load_settings

FEW = (
    "fedavg",
    "fedvarp",
    "cluster_fedvarp",
    "mifa",
    "fedvarp_adaptive",
    "fedvarp_mixed",
    "scaffold",
    "fedstale",
    "fedprox",
    "feddyn",
)
MORE = ("fedavg", "fedvarp", "trimmed_mean(trim=0.2)", "median", "median(beta=0)")  # not for two
COHORTS = {2: FEW, 10: MORE}
CLIPPED = {"false": "", "median": ", clipped"}
MULTIPLES = {"false": ""} | {str(c): f", {c} medians" for c in (1.5, 2, 3, 5, 10)}
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


class Clients:
    """The clients of `digits`, with logistic regression: 64 · 10 weights and 10 biases."""

    def __init__(self, dataset: FederatedDataset, local_sgd: LocalSGD, seed: int) -> None:
        self.local_sgd, self.seed = local_sgd, seed
        examples = [dataset.client(i) for i in range(dataset.num_clients)]
        self.x = torch.stack([x.flatten(1) for x, _ in examples])  # (N, 16, 64)
        self.y = one_hot(torch.stack([y for _, y in examples]), 10).float()  # (N, 16, 10)

    def train(self, servers: Sequence[Server], clients: Tensor, round: int) -> list[RoundUpdates]:
        """What these clients send to each server: `SequentialTrainer`'s, but for the rounding."""
        (R, M), n, lr = (len(servers), len(clients)), self.x.shape[1], self.local_sgd.rate(round)
        sent = [server.broadcast(clients) for server in servers]
        first = torch.stack([each.w for each in sent]).unsqueeze(1)  # (R, 1, d)
        added = torch.stack(
            [torch.zeros(M, first.shape[2]) if (c := s.corrections) is None else c for s in sent]
        )
        pull = torch.tensor([each.proximal for each in sent]).view(R, 1, 1)
        w = first.repeat(1, M, 1)  # (R, M, d)
        drawn = [batches(self.local_sgd, n, self.seed, round, i) for i in clients.tolist()]
        for chosen in zip(*drawn, strict=True):
            at = clients.unsqueeze(1), torch.stack(chosen)
            x, y = self.x[at], self.y[at]  # (M, B, 64), (M, B, 10)
            W, b = w[..., :640].view(R, M, 10, 64), w[..., 640:].unsqueeze(2)
            wrong = (x @ W.mT + b).softmax(3).sub_(y).div_(x.shape[1])  # (R, M, B, 10)
            gradient = torch.cat([(wrong.mT @ x).flatten(2), wrong.sum(2)], 2)
            w -= lr * gradient.add_(added).add_(pull * (w - first))
        steps, sizes = torch.full((M,), len(drawn[0])), torch.full((M,), n)
        return [RoundUpdates(clients, d, steps, sizes, scale=lr) for d in (first - w).div_(lr)]


class Liars:
    """What becomes of updates on their way from clients to a server under attack."""

    def __init__(self, attack: Attack, seed: int) -> None:
        self.attack, self.seed = attack, seed
        everyone = torch.randperm(100, generator=stream(seed, "liars")).tolist()
        self.who = set(everyone[: attack.liars])

    def meddle(self, updates: RoundUpdates, round: int) -> RoundUpdates:
        """What the server gets."""
        if self.attack.once and round == ONCE:
            self.who = {int(updates.clients[0])}
        elif self.attack.once:
            heard = [m for m, i in enumerate(updates.clients.tolist()) if i not in self.who]
            return updates.keep(heard, {})
        deltas = updates.deltas.clone()
        for m, client in enumerate(updates.clients.tolist()):
            if client in self.who:
                drawn = torch.randn(deltas.shape[1], generator=stream(self.seed, "lie", round))
                deltas[m] = self.attack.lie(deltas[m], drawn / drawn.norm())
        return replace(updates, deltas=deltas)


def experiment_of(algorithm: str, clip: str, size: int, seed: int) -> Experiment:
    """The preset with another algorithm, cohort and seed."""
    told = [f"algorithm={algorithm}", f"table.clip_updates={clip}"]
    return build(load_settings("digits", [*told, f"clients_per_round={size}", f"seed={seed}"]))


def accuracies(
    size: int, seed: int, rounds: int, algorithms: Sequence[str], clips: Iterable[str] = CLIPPED
) -> dict[str, float]:
    """{algorithm | clip | attack: mean of the last five test accuracies}."""
    servers: dict[str, Server] = {}
    liars: list[Liars] = []
    for algorithm in algorithms:
        for clip in clips:
            experiment = experiment_of(algorithm, clip, size, seed)
            _, rows = experiment.task().clusters_and_table(None)
            for attack, how in ATTACKS.items():
                servers[f"{algorithm}|{clip}|{attack}"] = Server(
                    FlatModel(experiment.model).vector(),
                    make_algorithm(algorithm, rows),
                    experiment.server_optimizer,
                )
                liars.append(Liars(how, seed))
    clients = Clients(experiment.dataset, experiment.local_sgd, seed)
    found = dict.fromkeys(servers, 0.0)
    for t in range(rounds):
        cohort = experiment.sampler.cohort(t).clients
        sent = clients.train(list(servers.values()), cohort, t)
        for (name, server), liar, updates in zip(servers.items(), liars, sent, strict=True):
            if not server.receive(liar.meddle(updates, t)).stepped:
                server.skip()
            if t + 1 in range(rounds, rounds - 25, -5):
                found[name] += accuracy(server.w, experiment) / 5
    return found


def accuracy(w: Tensor, experiment: Experiment) -> float:
    """The share of test examples that the model w gets right."""
    assert experiment.dataset.test is not None
    x, y = experiment.dataset.test
    right = (x.flatten(1) @ w[:640].view(10, 64).T + w[640:]).argmax(1) == y
    return float(right.float().mean())


def main() -> None:
    """Trains what is missing, and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/attacks.json"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--only", default="", help="only tables whose name begins so: multiples")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(given.out.read_text()) if given.out.exists() else {}
    panels = [("", size, algorithms, CLIPPED) for size, algorithms in COHORTS.items()]
    panels += [("multiples, ", size, ("fedvarp",), MULTIPLES) for size in COHORTS]
    for what, size, algorithms, clips in panels:
        if not what.startswith(given.only):
            continue
        named = f"{what}{size} clients, seed {{}}, {given.rounds} rounds"
        keys = [named.format(seed) for seed in range(given.seeds)]
        for seed, key in enumerate(keys):
            if key not in done:
                done[key] = accuracies(size, seed, given.rounds, algorithms, clips)
                given.out.write_text(json.dumps(done))
        rows = []
        for algorithm in algorithms:
            for clip, told in clips.items():
                names = [f"{algorithm}|{clip}|{attack}" for attack in ATTACKS]
                means = [sum(done[key][name] for key in keys) / len(keys) for name in names]
                rows.append([f"`{algorithm}`{told}", *(f"{100 * mean:.1f}" for mean in means)])
        show(table(f"{what}{size} of 100 clients a round", ["", *ATTACKS], rows))


if __name__ == "__main__":
    main()
