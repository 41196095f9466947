"""Bad replies by the ten thousand, thrown at strategies in a federation whose optimum is known.

Each run has twenty honest clients, which walk half of the way to where they are drawn, and twelve
liars that send another kind of bad reply each time. Two of them tell plausible lies; what the
others send cannot be used. What is counted: exceptions, runs that ended, broken replies that were
used, honest ones that were not, and how far the model is from the honest clients' optimum.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from benchmarks import ROOT
from benchmarks.faults.bad_replies import BROKEN, PLAUSIBLE, SHAPES, Forger
from benchmarks.server_app import inside_a_server_app
from benchmarks.timing import peak_mb, show
from fedvarp import FedvarpError, flower
from fedvarp.flower.identity import KnownClients

if TYPE_CHECKING:
    from flower.in_process import InProcessGrid  # type: ignore[attr-defined, unused-ignore]

HONEST, LIARS, LYING = 20, 12, 2  # clients, bad ones beside them, of whom so many are plausible
ROUNDS = 50  # of a run

STRATEGIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedVARP": (flower.FedVARP, {}),
    "FedVARP, N given": (flower.FedVARP, {"num_clients": HONEST + LIARS}),
    "FedVARP, 16 a round": (flower.FedVARP, {"clients_per_round": 16}),
    "FedVARP, steps normalised": (flower.FedVARP, {"normalise_steps": True}),
    "FedVARP, uniform": (flower.FedVARP, {"weighting": "uniform"}),
    "FedVARP, a limit": (flower.FedVARP, {"max_update_norm": 50.0}),
    "FedAvg": (flower.FedAvg, {}),
    "MIFA": (flower.MIFA, {}),
    "SCAFFOLD": (flower.Scaffold, {}),
    "ClusterFedVARP": (flower.ClusterFedVARP, {"clusters": "region"}),
    "FedVARPMixed": (flower.FedVARPMixed, {"clusters": "region"}),
    "Median": (flower.Median, {}),
}


@dataclass
class Counts:
    """What a campaign has seen.

    Attributes:
        thrown: Bad replies, by kind.
        foreign: Exceptions that are not ours.
        ended: Runs that ended before their last round.
        used: Broken replies that were used.
        lost: Honest replies that were not, though nobody had taken their name.
        held: Honest replies that were not while a liar had their name; of so many in all.
        furthest: By strategy, the largest distance from the honest optimum in the second half of a
            run, in units of how far apart honest clients are.
        rows: The largest number of rows in a table of a run that says how many clients there are.
    """

    thrown: Counter[str] = field(default_factory=Counter)
    foreign: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    held: Counter[bool] = field(default_factory=Counter)
    furthest: dict[str, float] = field(default_factory=dict)
    rows: int = 0

    @property
    def faults(self) -> int:
        """What should not have happened."""
        away = sum(distance > 1 for distance in self.furthest.values())
        few = len(self.thrown) < len(BROKEN) + len(PLAUSIBLE)
        events = len(self.foreign) + len(self.ended) + self.used.total() + self.lost.total()
        return events + away + few + (self.rows > HONEST + LIARS)


class Federation:
    """Honest clients and liars on a grid in this process.

    Args:
        seed: Of the clients' centres, and of the liars' whims.
        kinds: What liars send is taken from here in turn, the broken and the plausible.
    """

    def __init__(self, seed: int, kinds: tuple[list[str], list[str]], counts: Counts) -> None:
        sys.path.insert(0, str(ROOT / "tests"))
        from flower.in_process import InProcessGrid

        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.counts, self._kinds = counts, tuple(cycle(some) for some in kinds)
        drawn = np.random.default_rng(seed).normal(size=(HONEST + LIARS, 4, 4))
        self.centres = [{"weight": c[:, :3], "bias": c[:, 3]} for c in drawn]
        order = random.Random(seed)
        self.grid: InProcessGrid = InProcessGrid(self._app(), tamper=self._tamper, chance=order)
        for number in range(HONEST + LIARS):
            self.grid.connect(1000 + number, {"partition-id": number})
        self._forger = Forger(random.Random(seed), {})
        self.sent: dict[int, str] = {}  # node: what it sent in this round
        self.model: ArrayRecord | None = None

    def _app(self) -> ClientApp:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            number = int(context.node_config["partition-id"])
            arrays = message.content.array_records["arrays"]
            moved = {
                name: Array(((w := arrays[name].numpy()) + 0.5 * (c - w)).astype(np.float32))
                for name, c in self.centres[number].items()
            }
            record = ArrayRecord({**moved, "steps": Array(np.array(7))})
            told: dict[str, Any] = {"num-examples": 10 + number % 3, "num-steps": 5}
            told |= {"client-lr": 0.1, "partition-id": number, "region": number % 4}
            content = RecordDict({"arrays": record, "metrics": MetricRecord(told)})
            return Message(content, reply_to=message)

        return app

    def begin_round(self, model: ArrayRecord) -> None:
        """A model goes out; the liars think of something."""
        self.sent, self.model = {}, model
        self._forger.w = {name: model[name].numpy() for name in SHAPES}
        self._lying = set(self._forger.chance.sample(range(LIARS), LYING))

    def _tamper(self, reply: Message) -> list[Message]:
        node = reply.metadata.src_node_id
        liar = node - 1000 - HONEST
        if liar < 0:
            self.sent[node] = "honest"
            return [reply]
        plausible = liar in self._lying
        kind = next(self._kinds[plausible])
        self._forger.number += 1
        self.counts.thrown[kind] += 1
        self.sent[node] = kind
        return (PLAUSIBLE if plausible else BROKEN)[kind](self._forger, reply)

    def distance(self, model: ArrayRecord, weighting: str) -> float:
        """‖w − w*‖ over the clients' mean distance from w*."""
        honest = self.centres[:HONEST]
        by = [10 + n % 3 if weighting == "examples" else 1 for n in range(HONEST)]
        flat = np.array([np.concatenate([c[name].ravel() for name in SHAPES]) for c in honest])
        best = np.average(flat, axis=0, weights=by)
        w = np.concatenate([model[name].numpy().ravel() for name in SHAPES])
        return float(np.linalg.norm(w - best) / np.linalg.norm(flat - best, axis=1).mean())


def run(name: str, federation: Federation, rounds: int) -> None:
    """One run under attack."""
    kind, settings = STRATEGIES[name]
    counts, strategy = federation.counts, kind(fraction_evaluate=0.0, **settings)
    zeros = {key: Array(np.zeros(shape, dtype=np.float32)) for key, shape in SHAPES.items()}
    arrays = ArrayRecord({**zeros, "steps": Array(np.array(0))})
    strategy.begin(arrays)
    used: set[int] = set()
    receive = strategy._rounds.receive

    def noting(*given: Any) -> Any:
        outcome = receive(*given)
        used.update(update.node for update in outcome.accepted)
        return outcome

    strategy._rounds.receive = noting
    for t in range(1, rounds + 1):
        try:
            federation.begin_round(arrays)
            used.clear()
            held = _held_elsewhere(strategy.clients)
            messages = strategy.configure_train(t, arrays, ConfigRecord(), federation.grid)
            given = strategy.aggregate_train(t, federation.grid.send_and_receive(messages))[0]
            arrays = arrays if given is None else given
        except FedvarpError as ours:
            counts.ended.append(f"{name}, round {t}: {ours}")
            return
        except Exception as foreign:
            counts.foreign.append(f"{name}, round {t}, {federation.sent}: {foreign!r}")
            return
        _judge(federation, used, held)
        if t > rounds // 2:
            away = federation.distance(arrays, strategy.weighting)
            counts.furthest[name] = max(counts.furthest.get(name, 0.0), away)
    table = strategy.server.aggregator.table
    if strategy.num_clients is not None and table is not None:
        counts.rows = max(counts.rows, table.tables()[0].num_rows)


def _held_elsewhere(clients: KnownClients) -> set[int]:
    """Honest nodes whose name a liar got hold of in an earlier round."""
    names = ((1000 + number, clients.named(str(number))) for number in range(HONEST))
    return {node for node, client in names if client is not None and client.node != node}


def _judge(federation: Federation, used: set[int], held: set[int]) -> None:
    """Who was used that should not be, and the other way round."""
    counts, sent = federation.counts, federation.sent
    names_taken = any(kind == "another's name" for kind in sent.values())
    for node, kind in sent.items():
        if kind in BROKEN and node in used:
            counts.used[kind] += 1
        if kind == "honest":
            is_excused = names_taken or node in held
            counts.held[is_excused and node not in used] += 1
            counts.lost[str(node)] += node not in used and not is_excused
    counts.lost += Counter()  # without zeros


@inside_a_server_app(log_from=logging.CRITICAL)
def campaign(count: int, seed: int = 0, rounds: int = ROUNDS) -> Counts:
    """Throws at least so many bad replies, all kinds of them in turn.

    Args:
        count: How many.
        seed: Of centres and whims.
        rounds: Of each run.

    Returns:
        What was seen.
    """
    counts, chance = Counts(), random.Random(seed)
    while counts.thrown.total() < count:
        for name in STRATEGIES:
            kinds = list(BROKEN), list(PLAUSIBLE)
            for some in kinds:
                chance.shuffle(some)
            seed += 1
            run(name, Federation(seed, kinds, counts), rounds)
            if counts.thrown.total() >= count:
                break
    return counts


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign and prints its counts.

    Args:
        arguments: Of the command line.

    Returns:
        How many things happened that should not.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults replies")
    parser.add_argument("--count", type=int, default=50_000, help="bad replies, at least")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    began = time.monotonic()
    counts = campaign(given.count, given.seed)
    seconds = time.monotonic() - began
    show(
        f"{counts.thrown.total():,} bad replies of {len(counts.thrown)} kinds "
        f"({len(PLAUSIBLE)} of them plausible) in {seconds:.0f} s, {peak_mb():.0f} MB at most\n"
        f"exceptions that are not ours: {len(counts.foreign)}\n"
        f"runs ended: {len(counts.ended)}\n"
        f"broken replies used: {counts.used.total()} {dict(counts.used)}\n"
        f"honest replies not used: {counts.lost.total()} {dict(counts.lost)}; while a liar had "
        f"their name: {counts.held[True]} of {counts.held.total():,}\n"
        f"rows at most: {counts.rows} for {HONEST + LIARS} nodes\n"
        "furthest from the honest optimum, in mean distances of a client from it:"
    )
    for name, distance in counts.furthest.items():
        show(f"  {name:26} {distance:.2f}")
    for event in [*counts.foreign, *counts.ended][:10]:
        show(event[:1000])
    return counts.faults


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
