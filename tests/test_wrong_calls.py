"""Wrong calls of the Python interface: each is answered by a sentence of ours, and changes nothing.

A row is a call, and what its answer must mention: the argument's name, and what was given or the
way out. The same slips are tried all over: None, a text for a number, a negative, zero, NaN, True
for a number, a fraction for a count, a wrong shape or type, nothing at all, a name that is not
there, a class for an object, a file that is missing or stands in the place of a directory.
"""

# mypy: disable-error-code="arg-type, call-arg, dict-item, list-item, misc"

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedvarp
from fedvarp import (
    MIFA,
    Checkpoint,
    Clipped,
    ClusteredTable,
    ClusterFedVARP,
    DiskTable,
    Evaluation,
    FedAvg,
    FedDyn,
    FedProx,
    FedVARP,
    FlatModel,
    LocalSGD,
    MemoryTable,
    Recording,
    RoundUpdates,
    Scaffold,
    Server,
    ServerAdagrad,
    ServerAdam,
    ServerExP,
    ServerMomentum,
    ServerSGD,
    ServerYogi,
    Table,
    Trainer,
    TrimmedMean,
    simulate,
)
from fedvarp.analysis import compact, compare, plot, plot_against, read_runs, write_report
from fedvarp.clients import Bernoulli, Cosine, Cyclic, Exponential, Markov, Trace
from fedvarp.clients.importance_sampling import ImportanceSampler
from fedvarp.clients.round_robin import RoundRobinSampler
from fedvarp.clients.sampling import UniformSampler, WeightedSampler
from fedvarp.clients.stratified_sampling import StratifiedSampler
from fedvarp.clusters import by_gradients, by_labels
from fedvarp.clusters.k_means import k_means
from fedvarp.data import (
    FederatedDataset,
    cifar10,
    digits,
    from_function,
    from_indices,
    from_partition,
    from_tensors,
    logistic,
    partition,
    quadratics,
    shakespeare,
)
from fedvarp.diagnosis import advise, diagnose
from fedvarp.errors import FedvarpError
from fedvarp.experiments import load_settings
from fedvarp.models import (
    CharGRU,
    LeNet5,
    LogisticRegression,
    Quadratic,
    ResNet18,
    initialised,
)
from fedvarp.theory import (
    Problem,
    chance_of_absence,
    conditions,
    corollary,
    error_terms,
    measure,
    sampling_variance,
)

NAN = math.nan
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
X, Y = torch.zeros(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
PAIRS = [(X, Y)] * 4
SGD = LocalSGD(lr=0.1, batch_size=3, epochs=1)
ONE = torch.tensor([1])
LOSS = nn.functional.cross_entropy


class Around:
    """What calls may refer to: a data set, a model, tables, and a folder with a file in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "file.txt"
        self.file.write_text("a stranger's\n")
        self.missing = folder / "missing"
        self.data = from_tensors(PAIRS, test=(X, Y), num_classes=2)
        self.classless = from_tensors(PAIRS, test=(X, Y))
        self.model = LogisticRegression(3, 2)
        self.linear = nn.Linear(2, 2)
        self.table = MemoryTable(num_clients=4, dim=8)
        self.table.put(torch.tensor([1]), torch.ones(1, 8))
        self.server = Server(torch.zeros(8), FedVARP(self.table), ServerSGD())
        self.problem = Problem(num_clients=4, clients_per_round=2, num_steps=1, smoothness=1.0)

    def simulate(self, **changes: Any) -> object:
        how: dict[str, Any] = {
            "dataset": self.data,
            "model": self.model,
            "local_sgd": SGD,
            "rounds": 2,
            "clients_per_round": 2,
            "recording": self.folder / "run",
        }
        return simulate(**(how | changes))

    def receive(self, **changes: Any) -> object:
        right: dict[str, Any] = {
            "clients": ONE,
            "deltas": torch.ones(1, 8),
            "num_steps": ONE,
            "num_examples": ONE,
            "scale": 0.1,
        }
        return self.server.receive(RoundUpdates(**(right | changes)))

    def state(self) -> list[object]:
        """All that a refused call must leave as it was."""
        return [
            sorted((str(p), p.is_file() and p.read_bytes()) for p in self.folder.rglob("*")),
            [p.tolist() for p in self.model.parameters()],
            self.table.get(torch.arange(4)).tolist(),
            self.server.w.tolist(),
            self.server.round,
            [part.tolist() for part in self.data.client(0)],
            Path.cwd(),
            torch.get_num_threads(),
            torch.random.get_rng_state().tolist(),
        ]


Call = Callable[[Around], object]


def class_itself(round: int, *_: object) -> float:
    """A function that is no sampler."""
    return 0.0


def _name(call: str) -> str:
    """The name of a case: the same in every process, though addresses are not."""
    return re.sub(r" at 0x[0-9a-f]+", "", call)[:60]


def _named(calls: Iterable[tuple[str, Any, str]]) -> dict[str, tuple[str, Any, str]]:
    """Cases by their names; numbered where two have the same, so that none hides another."""
    found: dict[str, tuple[str, Any, str]] = {}
    for argument, value, words in calls:
        name = _name(f"{argument}={value!r}")
        found[f"{name} {len(found)}" if name in found else name] = (argument, value, words)
    return found


SIMULATE: dict[str, tuple[Call, str]] = {
    f"simulate {case}": (lambda a, n=name, v=value: a.simulate(**{n: v}), words)
    for case, (name, value, words) in _named(
        [
            ("dataset", None, "dataset = None.*FederatedDataset"),
            ("dataset", PAIRS, "dataset = .*FederatedDataset"),
            ("dataset", digits, "dataset = .*FederatedDataset.*such as"),
            ("model", None, "model = None.*Module"),
            ("model", nn.Linear, "model = .*Module.*such as"),
            ("model", nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "BatchNorm.*GroupNorm"),
            ("model", nn.ReLU(), "train"),
            ("loss", None, "loss = None.*function"),
            ("loss", "cross_entropy", "loss = 'cross_entropy'.*function"),
            (
                "loss",
                nn.CrossEntropyLoss,
                r"CrossEntropyLoss is a class.*loss=CrossEntropyLoss\(\)",
            ),
            ("loss", nn.CrossEntropyLoss(reduction="none"), r'CrossEntropyLoss.*\(3,\).*="mean"'),
            ("loss", nn.MSELoss(), r"MSELoss.*float32 of shape \(3, 2\).*int64 of shape \(3,\)"),
            ("loss", lambda output, targets: 0.5, r"<lambda> gives a float.*tensor.*\.item\(\)"),
            (
                "loss",
                lambda output, _: output.sum().detach(),
                r"<lambda>.*no gradient.*\.detach\(\)",
            ),
            ("loss", lambda output, _: (output.argmax(1) == 0).sum(), "no gradient.*argmax"),
            ("loss", lambda output: output.sum(), "<lambda> cannot be computed.*argument"),
            ("model", LogisticRegression(5, 2), r"LogisticRegression.*shape \(3, 3\).*this shape"),
            ("model", LogisticRegression(3, 1), "1 outputs.*num_classes=2.*last layer"),
            ("model", nn.Embedding(3, 2), r"Embedding cannot.*torch.float32 of shape \(3, 3\)"),
            ("local_sgd", None, r"local_sgd = None.*LocalSGD\("),
            ("local_sgd", 0.1, r"local_sgd = 0.1.*LocalSGD\("),
            ("local_sgd", LocalSGD, r"local_sgd = .*LocalSGD\("),
            ("rounds", 0, "rounds = 0.*at least 1"),
            ("rounds", -3, "rounds = -3.*at least 1"),
            ("rounds", "10", "rounds = '10'.*whole number"),
            ("rounds", 2.5, "rounds = 2.5.*whole number"),
            ("rounds", True, "rounds = True.*whole number"),
            ("rounds", None, "rounds = None.*whole number"),
            ("clients_per_round", 0, "clients_per_round = 0.*at least 1"),
            ("clients_per_round", 5, "5 of 4 clients.*between 1 and 4"),
            ("clients_per_round", None, "clients_per_round = None.*UniformSampler"),
            ("clients_per_round", True, "clients_per_round = True.*UniformSampler"),
            ("clients_per_round", 0.5, "clients_per_round = 0.5.*whole number"),
            ("clients_per_round", class_itself, "clients_per_round = .*UniformSampler"),
            ("clients_per_round", UniformSampler(9, 2, 0), "9 clients.*4"),
            ("algorithm", "fedvrap", "fedvrap.*did you mean fedvarp"),
            ("algorithm", "", "algorithm"),
            ("algorithm", None, "algorithm = None"),
            ("algorithm", "cluster_fedvarp", r"table\.clusters"),
            ("algorithm", "no.such:module", "no.such:module.*cannot be imported"),
            ("seed", -1, "seed = -1.*at least 0"),
            ("seed", "0", "seed = '0'.*whole number"),
            ("seed", 1.5, "seed = 1.5.*whole number"),
            ("server_optimizer", 0.1, r"server_optimizer = 0.1.*ServerSGD\("),
            ("server_optimizer", ServerSGD, r"server_optimizer = .*ServerSGD\("),
            ("server_optimizer", "adan", "server_optimizer.* 'adan' .*did you mean adam"),
            ("table", "disk", r"table = 'disk'.*Table\("),
            ("table", MemoryTable(4, 8), r"table = .*Table\("),
            ("table", Table(clusters=[0, 1]), "2 numbers.*4 clients"),
            ("trainer", "paralel", "paralel.*did you mean parallel"),
            ("trainer", 3, "trainer = 3.*parallel"),
            ("trainer", None, "trainer = None"),
            ("trainer", Trainer(threads=10_000), "threads=10000.*cores"),
            ("evaluation", 10, r"evaluation = 10.*Evaluation\("),
            ("evaluation", Evaluation, r"evaluation = .*Evaluation\("),
            ("recording", 3, "recording = 3.*runs/mine"),
            ("recording", True, "recording = True.*runs/mine"),
            ("recording", Recording(resume=True), "resume=True.*out="),
            ("callbacks", print, r"callbacks = .*OnRoundEnd"),
            ("callbacks", [print], r"callbacks = .*OnRoundEnd"),
            ("callbacks", None, "callbacks = None.*OnRoundEnd"),
            ("evaluate_every", 3, "evaluate_every is no argument"),
            ("workers", 2, "workers is no argument"),
        ]
    ).items()
}
OF_A_RUN: dict[str, tuple[Call, str]] = {
    "recording into a file": (lambda a: a.simulate(recording=a.file), "is a file.*directory"),
    "recording among a stranger's files": (
        lambda a: a.simulate(recording=a.folder),
        "holds file.txt.*new or empty",
    ),
    "rows on disk, but no directory": (
        lambda a: a.simulate(recording=None, table=Table(where="disk")),
        "disk.*recording=",
    ),
    "a target without classes": (
        lambda a: a.simulate(dataset=a.classless, evaluation=Evaluation(target_accuracy=0.5)),
        "target_accuracy.*num_classes",
    ),
    "a trace that is too short": (
        lambda a: a.simulate(clients_per_round=UniformSampler(4, 2, 0, Trace({0: [1, 2]}))),
        "1 rounds.*rounds=2.*repeat",
    ),
    "simulate without local_sgd": (
        lambda a: simulate(a.data, a.model, rounds=1, clients_per_round=1),
        "local_sgd",
    ),
}
SETTINGS: dict[str, tuple[Call, str]] = {
    "LocalSGD lr=0": (lambda a: LocalSGD(lr=0, batch_size=1, epochs=1), "lr = 0.*greater than 0"),
    "LocalSGD lr=1e39": (
        lambda a: LocalSGD(lr=1e39, batch_size=1, epochs=1),
        r"lr = 1e\+39.*at most 1e38",
    ),
    "LocalSGD lr=nan": (lambda a: LocalSGD(lr=NAN, batch_size=1, epochs=1), "lr = nan.*finite"),
    "LocalSGD lr='0.1'": (
        lambda a: LocalSGD(lr="0.1", batch_size=1, epochs=1),
        "lr = '0.1'.*number",
    ),
    "LocalSGD without lr": (
        lambda a: LocalSGD(batch_size=1, epochs=1),
        "lr is missing",
    ),
    "LocalSGD batch_size=0": (
        lambda a: LocalSGD(lr=1, batch_size=0, epochs=1),
        "batch_size = 0.*at least 1",
    ),
    "LocalSGD epochs and steps": (
        lambda a: LocalSGD(lr=1, batch_size=1, epochs=1, steps=3),
        "one of epochs and steps",
    ),
    "LocalSGD neither": (lambda a: LocalSGD(lr=1, batch_size=1), "one of epochs and steps"),
    "LocalSGD epochs=1.5": (
        lambda a: LocalSGD(lr=1, batch_size=1, epochs=1.5),
        "epochs = 1.5.*whole number",
    ),
    "LocalSGD momentum=1": (
        lambda a: LocalSGD(lr=1, batch_size=1, epochs=1, momentum=1.0),
        "momentum = 1.*less than 1",
    ),
    "LocalSGD optimizer": (
        lambda a: LocalSGD(lr=1, batch_size=1, epochs=1, optimizer="adm"),
        "optimizer = 'adm'.*did you mean adam",
    ),
    "LocalSGD schedule": (
        lambda a: LocalSGD(lr=1, batch_size=1, epochs=1, schedule=3),
        "schedule.*function of the round",
    ),
    "LocalSGD schedule's name": (
        lambda a: LocalSGD(lr=1, batch_size=1, epochs=1, schedule="cosin"),
        "cosin.*did you mean cosine",
    ),
    "LocalSGD learning_rate": (
        lambda a: LocalSGD(learning_rate=1, batch_size=1, epochs=1),
        "did you mean lr",
    ),
    "Table where": (lambda a: Table(where="cloud"), "where = 'cloud'.*memory"),
    "Table codec": (lambda a: Table(codec="int4"), "codec = 'int4'.*int8"),
    "Table clusters=3": (lambda a: Table(clusters=3), 'clusters = 3.*"auto:3"'),
    "Table clusters by name": (lambda a: Table(clusters="auto"), "clusters = 'auto'.*auto:K"),
    "Table clusters of texts": (
        lambda a: Table(clusters=["north", "south"]),
        "clusters.*whole number",
    ),
    "Table recluster_every": (lambda a: Table(recluster_every=5), 'recluster_every.*"auto:K"'),
    "Table clip_updates": (lambda a: Table(clip_updates=0.5), "clip_updates = 0.5.*greater than 1"),
    "Table clip_updates by name": (lambda a: Table(clip_updates="mean"), "'mean'.*median"),
    "Trainer name": (lambda a: Trainer(name="gpu"), "name = 'gpu'.*sequential"),
    "Trainer workers": (lambda a: Trainer(workers=0), "workers = 0.*at least 1"),
    "Trainer threads": (lambda a: Trainer(threads=-1), "threads = -1.*at least 1"),
    "Trainer compile": (lambda a: Trainer(compile="yes"), "compile = 'yes'.*true or false"),
    "Evaluation every": (lambda a: Evaluation(every=0), "every = 0.*at least 1"),
    "Evaluation metrics": (lambda a: Evaluation(metrics=[len]), "metrics = .*functions by name"),
    "Evaluation metrics, none": (lambda a: Evaluation(metrics={}), "metrics.*functions by name"),
    "Evaluation metrics, name": (lambda a: Evaluation(metrics={"loss": max}), "called 'loss'"),
    "Evaluation metrics, number": (lambda a: Evaluation(metrics={"f": 3}), "f = 3.*no function"),
    "Evaluation metrics, path": (lambda a: Evaluation(metrics={"f": "f1"}), "'f1'.*import path"),
    "Evaluation per_client": (lambda a: Evaluation(per_client=True), "per_client = True"),
    "Evaluation target in per cent": (
        lambda a: Evaluation(target_accuracy=80),
        "target_accuracy = 80.*at most 1",
    ),
    "Evaluation test examples": (
        lambda a: Evaluation(num_test_examples=-1),
        "num_test_examples = -1.*at least 0",
    ),
    "Recording out": (lambda a: Recording(out=3), "out = 3.*text"),
    "Recording commit_every": (lambda a: Recording(commit_every=0), "commit_every = 0.*at least"),
    "Recording resume": (lambda a: Recording(resume="yes"), "resume = 'yes'.*true or"),
    "Recording positional": (lambda a: Recording("runs"), "Recording.*out"),
    "Exponential decay": (lambda a: Exponential(decay=1.5), "decay = 1.5.*at most 1"),
    "Cosine rounds": (lambda a: Cosine(rounds=0), "rounds = 0.*at least 1"),
    "Cosine floor": (lambda a: Cosine(rounds=5, floor=0), "floor = 0.*greater than 0"),
    "load_settings of nothing": (lambda a: load_settings("digit"), "digit.*Did you mean digits"),
    "load_settings of a folder": (lambda a: load_settings(a.folder), "no config file"),
    "load_settings of no TOML": (lambda a: load_settings(a.file), "cannot be read as TOML"),
    "epochs and steps by --set": (
        lambda a: load_settings("digits", ["local_sgd.epochs=1", "local_sgd.steps=3"]),
        "epochs=1 --set local_sgd.steps=3.*one of the two",
    ),
}
CLIENTS: dict[str, tuple[Call, str]] = {
    "UniformSampler M > N": (lambda a: UniformSampler(4, 9, 0), "9 of 4 clients.*between 1 and 4"),
    "UniformSampler N=None": (
        lambda a: UniformSampler(None, 2, 0),
        "num_clients = None.*whole number",
    ),
    "UniformSampler seed": (
        lambda a: UniformSampler(4, 2, "a"),
        "seed = 'a'.*whole number",
    ),
    "UniformSampler dropout": (lambda a: UniformSampler(4, 2, 0, dropout=1.5), "dropout.*1.5"),
    "UniformSampler dropouts": (
        lambda a: UniformSampler(4, 2, 0, dropout=[0.1, 0.2]),
        r"dropout.*\(2,\).*one for each",
    ),
    "UniformSampler availability": (
        lambda a: UniformSampler(4, 2, 0, availability=0.5),
        "availability = 0.5.*Availability",
    ),
    "UniformSampler round": (lambda a: UniformSampler(4, 2, 0).cohort(-1), "round -1"),
    "WeightedSampler sizes=None": (
        lambda a: WeightedSampler(None, 2, 0),
        "sizes.*numbers",
    ),
    "WeightedSampler texts": (
        lambda a: WeightedSampler(["a", "b"], 1, 0),
        "sizes.*numbers",
    ),
    "WeightedSampler negative": (lambda a: WeightedSampler([1, -1], 1, 0), "sizes.*not negative"),
    "WeightedSampler NaN": (lambda a: WeightedSampler([1, NAN], 1, 0), "sizes.*finite"),
    "WeightedSampler empty": (lambda a: WeightedSampler([], 1, 0), "1 of 0 clients"),
    "WeightedSampler objective": (
        lambda a: WeightedSampler([1, 1], 1, 0, objective=[1, 2, 3]),
        "objective.*one for each",
    ),
    "StratifiedSampler clusters=None": (
        lambda a: StratifiedSampler(None, 2, 0),
        "clusters.*numbers",
    ),
    "StratifiedSampler halves": (
        lambda a: StratifiedSampler([0.5, 1.0], 1, 0),
        "clusters.*0.5 for client 0.*whole numbers",
    ),
    "StratifiedSampler M > N": (lambda a: StratifiedSampler([0, 1], 3, 0), "3 of 2 clients"),
    "RoundRobinSampler M=0": (
        lambda a: RoundRobinSampler(4, 0, 0),
        "clients_per_round = 0.*least 1",
    ),
    "RoundRobinSampler objective": (
        lambda a: RoundRobinSampler(4, 2, 0, objective=[1, 2]),
        "objective.*one for each",
    ),
    "ImportanceSampler uniform_share": (
        lambda a: ImportanceSampler(4, 2, 0, uniform_share=0),
        "uniform_share = 0.*greater than 0",
    ),
    "ImportanceSampler M > N": (lambda a: ImportanceSampler(4, 9, 0), "9 of 4 clients"),
    "Bernoulli 2": (lambda a: Bernoulli(2), "between 0 and 1.*2"),
    "Bernoulli None": (lambda a: Bernoulli(None), "numbers"),
    "Bernoulli text": (lambda a: Bernoulli("often"), "numbers"),
    "Bernoulli NaN": (lambda a: Bernoulli(NAN), "between 0 and 1"),
    "Markov zeros": (lambda a: Markov(0, 0), "on_to_off = off_to_on = 0.*Bernoulli"),
    "Markov negative": (lambda a: Markov(-0.1, 0.5), "on_to_off.*-0.1"),
    "Cyclic empty": (lambda a: Cyclic([]), "profile"),
    "Cyclic number": (lambda a: Cyclic(0.5), "profile.*per round"),
    "Trace empty": (lambda a: Trace({}), "trace needs rounds"),
    "Trace list": (lambda a: Trace([[0, 1]]), "clients of each round.*list"),
    "Trace negative": (lambda a: Trace({-1: [0]}), "trace needs rounds.*-1"),
    "Trace after_end": (
        lambda a: Trace({0: [0]}, after_end="stop"),
        "after_end.*repeat.*stop",
    ),
    "Trace file": (lambda a: Trace.from_csv(a.missing), "Cannot read.*missing"),
    "Trace wrong file": (lambda a: Trace.from_csv(a.file), "line 1.*round,client"),
}
DATA: dict[str, tuple[Call, str]] = {
    "digits num_clients=0": (lambda a: digits(num_clients=0), "num_clients = 0.*at least 1"),
    "digits num_clients='10'": (
        lambda a: digits(num_clients="10"),
        "num_clients = '10'.*whole number",
    ),
    "digits indivisible": (lambda a: digits(num_clients=7), "7 clients.*nearest"),
    "digits partition": (
        lambda a: digits(partition="random"),
        "partition = 'random'.*iid",
    ),
    "digits unused": (lambda a: digits(partition="iid", alpha=0.3), "alpha = 0.3.*no effect"),
    "digits stranger": (lambda a: digits(clients=3), "clients is no argument.*num_clients"),
    "quadratics dim": (lambda a: quadratics(dim=3), "dim = 3.*at least 4"),
    "quadratics NaN": (lambda a: quadratics(sigma2=NAN), "sigma2 = nan.*finite"),
    "quadratics clusters": (lambda a: quadratics(10, num_clusters=3), "10 clients.*3 clusters"),
    "quadratics sigma_K2": (lambda a: quadratics(sigma_K2=2.0), "sigma_K2=2.0 exceeds"),
    "logistic alpha": (lambda a: logistic(-1), "alpha = -1.*at least 0"),
    "logistic classes": (lambda a: logistic(classes=1), "classes = 1.*at least 2"),
    "cifar10 root": (lambda a: cifar10(a.missing), "missing.*does not exist.*download"),
    "cifar10 folder": (lambda a: cifar10(a.folder), "holds none of.*download"),
    "shakespeare root": (lambda a: shakespeare(a.missing), "missing.*does not exist.*download"),
    "from_tensors None": (lambda a: from_tensors(None), "clients = None"),
    "from_tensors empty": (lambda a: from_tensors([]), "num_clients = 0.*at least 1"),
    "from_tensors no pair": (lambda a: from_tensors([X]), "pair of tensors"),
    "from_tensors unpaired": (
        lambda a: from_tensors([(X, Y[:3])]),
        "Client 0.*6 inputs x but 3 targets y",
    ),
    "from_tensors of texts": (
        lambda a: from_tensors([(["a"], [0])]),
        "Client 0.*numbers",
    ),
    "from_tensors no examples": (lambda a: from_tensors([(X[:0], Y[:0])]), "no examples"),
    "from_tensors clusters": (
        lambda a: from_tensors(PAIRS, cluster_of=[0, 1]),
        r"cluster_of has shape \(2,\).*\(4,\)",
    ),
    "from_tensors column": (
        lambda a: from_tensors(PAIRS, cluster_of=torch.zeros(4, 1, dtype=torch.int64)),
        r"cluster_of has shape \(4, 1\).*\(4,\)",
    ),
    "from_tensors fractions": (
        lambda a: from_tensors(PAIRS, cluster_of=np.array([0, 0.5, 1, 1])),
        "cluster_of holds 0.5.*whole",
    ),
    "from_tensors gaps": (
        lambda a: from_tensors(PAIRS, cluster_of=torch.tensor([0, 2, 2, 2])),
        "cluster_of.*0 to K-1",
    ),
    "from_tensors names": (
        lambda a: from_tensors(PAIRS, client_names=["Ada"]),
        "1 client_names for 4",
    ),
    "from_tensors classes": (
        lambda a: from_tensors(PAIRS, num_classes=0),
        "num_classes = 0.*at least 1",
    ),
    "from_tensors test": (lambda a: from_tensors(PAIRS, test=X), "test set.*pair"),
    "from_tensors stranger": (
        lambda a: from_tensors(PAIRS, clusters=[0]),
        "clusters is no argument.*cluster_of",
    ),
    "from_function load": (lambda a: from_function(None, 3), "load = None.*function"),
    "from_function num_clients": (
        lambda a: from_function(PAIRS.__getitem__, 2.5),
        "num_clients = 2.5.*whole",
    ),
    "from_function num_examples": (
        lambda a: from_function(PAIRS.__getitem__, 4, num_examples=torch.tensor([6, 0, 6, 6])),
        "1 of 4 clients have no examples",
    ),
    "from_indices outside": (
        lambda a: from_indices(torch.utils.data.TensorDataset(X, Y), [[0], [6]]),
        "example 6.*0 to 5",
    ),
    "from_indices fractions": (
        lambda a: from_indices(torch.utils.data.TensorDataset(X, Y), [[0.5]]),
        "client 0.*0.5.*whole",
    ),
    "from_partition unpaired": (lambda a: from_partition(X, Y[:2], [ONE]), "6 inputs.*2 targets"),
    "from_partition nothing": (lambda a: from_partition(X, Y, None), "partition = None"),
    "client beyond": (lambda a: a.data.client(9), "no client 9.*0 to 3"),
    "shards labels=None": (
        lambda a: partition.shards(None, num_clients=2),
        "labels.*numbers",
    ),
    "shards of fractions": (
        lambda a: partition.shards(LABELS + 0.5, num_clients=2),
        "labels.*0.5.*whole",
    ),
    "shards of a matrix": (
        lambda a: partition.shards(LABELS.view(2, 4), num_clients=2),
        r"labels.*\(2, 4\)",
    ),
    "shards indivisible": (lambda a: partition.shards(LABELS, num_clients=3), "8 examples.*3"),
    "shards too many": (lambda a: partition.shards(LABELS, num_clients=9), "9 clients.*1 to 8"),
    "dirichlet alpha": (
        lambda a: partition.dirichlet(LABELS, num_clients=2, alpha=0),
        "alpha = 0.*greater than 0",
    ),
    "iid num_clients": (lambda a: partition.iid(LABELS, num_clients=-1), "num_clients = -1"),
    "split how": (
        lambda a: partition.split(LABELS, "x", num_clients=2, seed=0),
        "how = 'x'.*shards",
    ),
    "coverage": (lambda a: partition.clusters_by_labels(LABELS, [ONE], coverage=0), "coverage = 0"),
    "FederatedDataset N": (
        lambda a: FederatedDataset(load=PAIRS.__getitem__, num_clients=True),
        "num_clients = True",
    ),
}
MODELS: dict[str, tuple[Call, str]] = {
    "LogisticRegression features": (lambda a: LogisticRegression(0, 2), "features = 0.*at least 1"),
    "LogisticRegression classes": (
        lambda a: LogisticRegression(3, None),
        "classes = None.*whole",
    ),
    "LogisticRegression for": (
        lambda a: LogisticRegression.for_dataset(a.classless),
        "num_classes",
    ),
    "LeNet5": (lambda a: LeNet5(classes=-1), "classes = -1.*at least 1"),
    "LeNet5 text": (lambda a: LeNet5("10"), "classes = '10'.*whole"),
    "ResNet18": (lambda a: ResNet18(groups=3), "groups = 3.*2, 4"),
    "CharGRU": (lambda a: CharGRU(hidden=0), "hidden = 0.*at least 1"),
    "Quadratic": (lambda a: Quadratic(2.5), "dim = 2.5.*whole"),
    "initialised": (lambda a: initialised(LeNet5, -1), "seed = -1.*at least 0"),
    "initialised object": (lambda a: initialised(a.model, "a"), "seed = 'a'"),
    "FlatModel None": (lambda a: FlatModel(None), "module = None.*Module"),
    "FlatModel nothing": (lambda a: FlatModel(nn.ReLU()), "train"),
    "FlatModel double": (lambda a: FlatModel(a.linear.double()), "float32"),
    "FlatModel bind": (lambda a: FlatModel(a.linear).bind(torch.zeros(3)), r"\(3,\).*6 num"),
}
TABLES: dict[str, tuple[Call, str]] = {
    "MemoryTable N=0": (lambda a: MemoryTable(0, 3), "num_clients = 0.*at least 1"),
    "MemoryTable N='4'": (lambda a: MemoryTable("4", 3), "num_clients = '4'.*whole"),
    "MemoryTable dim=-1": (lambda a: MemoryTable(4, -1), "dim = -1.*at least 1"),
    "MemoryTable dim=2.5": (lambda a: MemoryTable(4, 2.5), "dim = 2.5.*whole"),
    "MemoryTable codec": (lambda a: MemoryTable(4, 3, "int4"), "int4.*int8"),
    "MemoryTable weights": (
        lambda a: MemoryTable(4, 3, client_weights=[1, 2]),
        r"\(2,\).*\(4,\)",
    ),
    "MemoryTable negative weights": (
        lambda a: MemoryTable(2, 3, client_weights=[1, -2]),
        "client_weights holds -2.*not negative",
    ),
    "MemoryTable weights of zero": (
        lambda a: MemoryTable(2, 3, client_weights=np.zeros(2)),
        "client_weights.*above zero",
    ),
    "get unknown": (lambda a: a.table.get(torch.tensor([4])), "Client 4.*4 clients"),
    "get a list": (lambda a: a.table.get([1]), "Clients.*int64 tensor.*list"),
    "get floats": (lambda a: a.table.get(torch.tensor([1.0])), "int64 tensor, not torch.float32"),
    "get a matrix": (lambda a: a.table.get(torch.tensor([[1]])), r"one dimension.*\(1, 1\)"),
    "put twice": (lambda a: a.table.put(torch.tensor([1, 1]), torch.ones(2, 8)), r"\[1, 1\].*once"),
    "put NaN": (lambda a: a.table.put(ONE, torch.full((1, 8), NAN)), "client 1.*NaN"),
    "put too short": (lambda a: a.table.put(ONE, torch.ones(1, 7)), r"\(1, 7\).*\(1, 8\)"),
    "put doubles": (lambda a: a.table.put(ONE, torch.ones(1, 8).double()), "float64.*float32"),
    "put a list": (lambda a: a.table.put(ONE, [[1.0] * 8]), "Rows.*tensor.*list"),
    "exchange weights": (
        lambda a: a.table.exchange(ONE, torch.ones(1, 8), torch.ones(2), 1.0),
        r"\(2,\) for 1",
    ),
    "exchange beta": (
        lambda a: a.table.exchange(ONE, torch.ones(1, 8), torch.ones(1), NAN),
        "beta=nan",
    ),
    "DiskTable in a file": (lambda a: DiskTable(a.file, 4, 3), "file.txt.*folder"),
    "DiskTable path": (lambda a: DiskTable(None, 4, 3), "path = None"),
    "DiskTable dim": (lambda a: DiskTable(a.missing, 4, 0), "dim = 0.*at least 1"),
    "DiskTable codec": (lambda a: DiskTable(a.missing, 4, 3, "int4"), "int4.*int8"),
    "ClusteredTable column": (
        lambda a: ClusteredTable(torch.zeros(4, 1, dtype=torch.int64), MemoryTable(1, 2)),
        r"cluster_of has shape \(4, 1\)",
    ),
    "ClusteredTable empty": (
        lambda a: ClusteredTable([], MemoryTable(1, 2)),
        "cluster_of is empty",
    ),
    "ClusteredTable beyond": (
        lambda a: ClusteredTable(torch.tensor([0, 5]), MemoryTable(2, 2)),
        "0 … 5.*2 rows",
    ),
    "ClusteredTable rows": (
        lambda a: ClusteredTable(torch.tensor([0]), None),
        "rows = None.*RowTable",
    ),
    "ClusteredTable weights": (
        lambda a: ClusteredTable(torch.tensor([0, 0]), MemoryTable(1, 2), torch.ones(3)),
        r"client_weights has shape \(3,\).*\(2,\)",
    ),
}
SERVER: dict[str, tuple[Call, str]] = {
    "Server w=None": (lambda a: Server(None, FedAvg(), ServerSGD()), "w = None.*Tensor"),
    "Server a model": (lambda a: Server(a.model, FedAvg(), ServerSGD()), "w = .*Tensor"),
    "Server matrix": (
        lambda a: Server(torch.zeros(2, 2), FedAvg(), ServerSGD()),
        r"\(2, 2\).*FlatModel",
    ),
    "Server NaN": (lambda a: Server(torch.tensor([NAN]), FedAvg(), ServerSGD()), "finite"),
    "Server class": (
        lambda a: Server(torch.zeros(2), FedAvg, ServerSGD()),
        "aggregator = .*Aggregator",
    ),
    "Server optimiser": (
        lambda a: Server(torch.zeros(2), FedAvg(), 1.0),
        "optimizer = 1.0.*ServerOptimizer",
    ),
    "Server table": (lambda a: Server(torch.zeros(2), FedVARP(a.table), ServerSGD()), "dim=2"),
    "FedVARP None": (lambda a: FedVARP(None), "y = None.*ClientTable"),
    "FedVARP settings": (lambda a: FedVARP(Table()), "y = .*ClientTable"),
    "ClusterFedVARP": (lambda a: ClusterFedVARP("own"), "y = 'own'.*Table"),
    "MIFA": (lambda a: MIFA("memory"), "y = 'memory'.*ClientTable"),
    "FedProx": (lambda a: FedProx(-1.0), "mu = -1.0.*at least 0"),
    "FedDyn": (lambda a: FedDyn(3), "h = 3.*ClientTable"),
    "FedDyn alpha=0": (lambda a: FedDyn(a.table, 0.0), "alpha = 0.0.*greater than 0"),
    "Scaffold": (lambda a: Scaffold(3), "c = 3.*ClientTable"),
    "TrimmedMean": (lambda a: TrimmedMean(a.table, trim=0.6), "trim = 0.6.*at most 0.5"),
    "Clipped": (lambda a: Clipped("fedvarp"), "aggregator = 'fedvarp'.*Aggregator"),
    "Clipped at 1": (lambda a: Clipped(FedAvg(), 1.0), "multiple = 1.0.*greater than 1"),
    "ServerSGD 0": (lambda a: ServerSGD(lr=0), "lr = 0.*greater than 0"),
    "ServerSGD text": (lambda a: ServerSGD(lr="1"), "lr = '1'.*number"),
    "ServerSGD inf": (lambda a: ServerSGD(lr=math.inf), "lr = inf.*finite"),
    "ServerMomentum": (lambda a: ServerMomentum(beta=1.0), "beta = 1.0.*less than 1"),
    "ServerAdam beta1": (lambda a: ServerAdam(beta1=1.5), "beta1 = 1.5.*less than 1"),
    "ServerYogi tau": (lambda a: ServerYogi(tau=0), "tau = 0.*greater than 0"),
    "ServerAdagrad lr": (lambda a: ServerAdagrad("fast"), "lr = 'fast'.*number"),
    "ServerExP eps": (lambda a: ServerExP(eps=NAN), "eps = nan.*finite"),
    "ServerMomentum NaN": (lambda a: ServerMomentum(lr=NAN), "lr = nan.*finite"),
    "receive None": (lambda a: a.server.receive(None), "updates = None.*RoundUpdates"),
    "receive list": (lambda a: a.receive(clients=[1]), "clients is a list.*tensor"),
    "receive floats": (lambda a: a.receive(clients=torch.tensor([1.0])), "float32.*int64"),
    "receive column": (
        lambda a: a.receive(num_steps=torch.tensor([[1]])),
        r"num_steps has shape \(1, 1\).*\(1,\)",
    ),
    "receive vector": (lambda a: a.receive(deltas=torch.ones(8)), r"deltas has shape \(8,\)"),
    "receive weights": (lambda a: a.receive(weights=torch.tensor([NAN])), "weights.*finite"),
    "receive scale": (lambda a: a.receive(scale=-1.0), "scale is -1.0.*positive"),
    "receive scale NaN": (lambda a: a.receive(scale=NAN), "scale is nan.*positive"),
    "receive scale None": (lambda a: a.receive(scale=None), "scale is None.*positive"),
    "receive stranger": (lambda a: a.receive(clients=torch.tensor([9])), "Client 9.*4 clients"),
    "receive twice": (
        lambda a: a.receive(
            clients=torch.tensor([1, 1]),
            deltas=torch.ones(2, 8),
            num_steps=torch.tensor([1, 1]),
            num_examples=torch.tensor([1, 1]),
        ),
        r"clients holds \[1, 1\].*once",
    ),
    "Checkpoint file": (lambda a: Checkpoint(a.file), "file.txt.*folder"),
    "Checkpoint None": (lambda a: Checkpoint(None), "path = None"),
    "Checkpoint number": (lambda a: Checkpoint(3), "path = 3"),
}
ANALYSIS: dict[str, tuple[Call, str]] = {
    "compare nothing": (lambda a: compare([]), "No run was named"),
    "compare None": (lambda a: compare(None), "None names no runs"),
    "compare a number": (lambda a: compare(3), "3 names no runs"),
    "compare missing": (lambda a: compare([a.missing]), "missing does not exist"),
    "compare one text": (lambda a: compare(str(a.missing)), "missing does not exist"),
    "compare no run": (lambda a: compare([a.folder]), "holds no run"),
    "compare no runs in it": (lambda a: compare([a.file]), "file.txt"),
    "compare smooth": (lambda a: compare([a.folder], smooth=0), "smooth = 0.*at least 1"),
    "compare target": (
        lambda a: compare([a.folder], target="half"),
        "target = 'half'.*number",
    ),
    "read_runs missing": (lambda a: read_runs([a.missing]), "missing does not exist"),
    "read_runs numbers": (lambda a: read_runs([1, 2]), r"\[1, 2\] names no runs"),
    "compact nothing": (lambda a: compact([], a.folder / "x.jsonl"), "No run was named"),
    "compact None": (lambda a: compact([a.folder], None), "out = None"),
    "plot ending": (lambda a: plot([a.folder], a.folder / "x.txt"), "x.txt.*png"),
    "plot axis": (
        lambda a: plot([a.folder], a.folder / "x.png", x="epochs"),
        "x = 'epochs'.*rounds",
    ),
    "plot missing": (lambda a: plot([a.missing], a.folder / "x.png"), "missing does not exist"),
    "plot_against": (
        lambda a: plot_against([a.missing], "rounds", a.folder / "x.png"),
        "missing does not exist",
    ),
    "plot_against nothing": (
        lambda a: plot_against([a.folder], None, a.folder / "x.png"),
        "setting = None.*text",
    ),
    "report ending": (lambda a: write_report([a.folder], a.folder / "x.txt"), "x.txt.*html"),
    "report missing": (
        lambda a: write_report([a.missing], a.folder / "x.html"),
        "missing does not exist",
    ),
    "report title": (
        lambda a: write_report([a.folder], a.folder / "x.html", title=3),
        "title = 3.*text",
    ),
    "diagnose nothing": (lambda a: diagnose("digit"), "digit.*Did you mean digits"),
    "diagnose None": (lambda a: diagnose(None), "source = None"),
    "diagnose sample": (lambda a: diagnose("digits", sample=0), "sample = 0.*at least 1"),
    "diagnose overrides": (lambda a: diagnose("digits", ["rounds"]), "rounds.*key=value"),
    "advise": (lambda a: advise(None), "found = None.*Diagnosis"),
}
THEORY: dict[str, tuple[Call, str]] = {
    "sampling_variance 0": (lambda a: sampling_variance(0, 1), "num_clients = 0.*at least 1"),
    "sampling_variance M > N": (lambda a: sampling_variance(4, 5), "clients_per_round=5"),
    "sampling_variance text": (
        lambda a: sampling_variance("4", 2),
        "num_clients = '4'.*whole",
    ),
    "chance_of_absence": (lambda a: chance_of_absence(4, 2, 9), "cluster_size=9"),
    "Problem N": (
        lambda a: Problem(num_clients=0, clients_per_round=1, num_steps=1, smoothness=1),
        "num_clients = 0",
    ),
    "Problem steps": (
        lambda a: Problem(num_clients=4, clients_per_round=1, num_steps=0, smoothness=1),
        "num_steps = 0.*at least 1",
    ),
    "Problem L": (
        lambda a: Problem(num_clients=4, clients_per_round=1, num_steps=1, smoothness=NAN),
        "smoothness = nan.*finite",
    ),
    "Problem sigma2": (
        lambda a: Problem(num_clients=4, clients_per_round=1, num_steps=1, smoothness=1, sigma2=-1),
        "sigma2 = -1.*at least 0",
    ),
    "Problem clusters": (
        lambda a: Problem(
            num_clients=4, clients_per_round=1, num_steps=1, smoothness=1, num_clusters=9
        ),
        "num_clusters=9.*4",
    ),
    "error_terms name": (
        lambda a: error_terms("sgd", a.problem, rounds=1, client_lr=0.1),
        "sgd.*fedavg",
    ),
    "error_terms problem": (
        lambda a: error_terms("fedavg", None, rounds=1, client_lr=0.1),
        "problem = None.*Problem",
    ),
    "error_terms lr": (
        lambda a: error_terms("fedavg", a.problem, rounds=1, client_lr=0),
        "client_lr = 0",
    ),
    "error_terms sigma": (
        lambda a: error_terms("fedavg", a.problem, rounds=1, client_lr=0.1),
        "needs sigma",
    ),
    "conditions": (lambda a: conditions("fedvarp", a.problem, client_lr=NAN), "client_lr = nan"),
    "corollary": (lambda a: corollary("fedvarp", a.problem, rounds=0), "rounds = 0.*at least 1"),
    "measure data": (
        lambda a: measure(None, a.model, LOSS, local_sgd=SGD),
        "dataset = None.*FederatedDataset",
    ),
    "measure a loss for each example": (
        lambda a: measure(a.data, a.model, nn.CrossEntropyLoss(reduction="none"), local_sgd=SGD),
        'CrossEntropyLoss.*="mean"',
    ),
    "measure sample": (
        lambda a: measure(a.data, a.model, LOSS, local_sgd=SGD, sample=1),
        "sample=1.*3 clients",
    ),
    "measure clusters": (
        lambda a: measure(a.data, a.model, LOSS, local_sgd=SGD, cluster_of=torch.zeros(2).long()),
        r"cluster_of has shape \(2,\)",
    ),
    "by_gradients": (
        lambda a: by_gradients(
            a.data, FlatModel(a.model), LOSS, local_sgd=SGD, w=torch.zeros(8), num_clusters=9
        ),
        "4 clients cannot form 9",
    ),
    "by_labels": (lambda a: by_labels(a.classless), "num_classes.*auto:K"),
    "k_means": (lambda a: k_means(X, 0), "num_clusters = 0.*at least 1"),
    "k_means too many": (lambda a: k_means(X, 7), "6 clients cannot form 7"),
}
CALLS = (
    SIMULATE | OF_A_RUN | SETTINGS | CLIENTS | DATA | MODELS | TABLES | SERVER | ANALYSIS | THEORY
)


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Around:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDVARP_DATA", raising=False)
    return Around(tmp_path)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_answered_in_a_sentence_and_changes_nothing(
    name: str, around: Around
) -> None:
    call, words = CALLS[name]
    before = around.state()
    with pytest.raises(FedvarpError) as caught:
        call(around)
    said = str(caught.value)
    assert re.search(words, said, re.DOTALL), said
    assert said.endswith((".", "?")), said
    assert len(said) < 600, said
    assert around.state() == before


def test_there_are_enough_of_them() -> None:
    assert len(CALLS) >= 120
    assert issubclass(fedvarp.SettingsError, ValueError)  # what callers may catch


FLOWER: dict[str, tuple[dict[str, Any], str]] = {
    _name(f"{name}={value!r}"): ({name: value}, words)
    for name, value, words in [
        ("num_clients", 0, "num_clients = 0.*at least 1"),
        ("num_clients", "4", "num_clients = '4'.*whole"),
        ("clients_per_round", 2.5, "clients_per_round = 2.5.*whole"),
        ("clients_per_round", True, "clients_per_round = True.*whole"),
        ("fraction_train", 2, "fraction_train = 2.*at most 1"),
        ("fraction_evaluate", 1.5, "fraction_evaluate = 1.5.*at most 1"),
        ("seed", -1, "seed = -1.*at least 0"),
        ("server_lr", NAN, "server_lr = nan.*finite"),
        ("server_lr", "1", "server_lr = '1'.*number"),
        ("client_lr", 0, "client_lr = 0.*greater than 0"),
        ("server_optimizer", ServerSGD, "server_optimizer = .*ServerOptimizer"),
        ("checkpoint", 3, "checkpoint = 3"),
        ("where", "disk", "checkpoint='some/folder'"),
        ("codec", "int4", "int4.*int8"),
        ("identity", "", "identity = ''.*partition-id"),
        ("min_replies", 0, "min_replies = 0.*at least 1"),
        ("late_replies", -1, "late_replies = -1.*at least 0"),
        ("max_update_norm", -1, "max_update_norm = -1.*greater than 0"),
        ("claims_within", 1, "claims_within = 1.*greater than 1"),
    ]
}


@pytest.mark.parametrize("name", FLOWER)
def test_a_strategy_refuses_what_cannot_be_meant(name: str) -> None:
    pytest.importorskip("flwr")
    from fedvarp.flower import FedVARP as Strategy

    settings, words = FLOWER[name]
    with pytest.raises(ValueError, match=words):
        Strategy(**settings)
