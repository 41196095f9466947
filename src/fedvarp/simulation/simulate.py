"""Train one model over many clients on one machine: what `simulate` is told, put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp.algorithms import Aggregator
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.clients.evaluation import Evaluator
from fedvarp.clients.local_sgd import LocalSGD, Loss
from fedvarp.clients.sampling import ClientSampler, UniformSampler, WeightedSampler
from fedvarp.clusters.names import clusters_by_name
from fedvarp.clusters.reclustering import reclustering
from fedvarp.data import FederatedDataset
from fedvarp.runs.directory import RunDirectory
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.optimizers import ServerOptimizer, ServerSGD
from fedvarp.server.server import Server
from fedvarp.simulation.checks import (
    refuse_another_run,
    refuse_impossible,
    refuse_target,
    refuse_two_objectives,
)
from fedvarp.simulation.description import fingerprint, name_of, plain, plain_value
from fedvarp.simulation.recording import RecordedRun
from fedvarp.simulation.round_loop import Callback, Simulation, SimulationResult
from fedvarp.trainers import ClientTrainer
from fedvarp.trainers.auto import close
from fedvarp.trainers.registry import TrainerName, TrainerParts, make_trainer


def simulate(
    dataset: FederatedDataset,
    model: nn.Module,
    loss: Loss = cross_entropy,
    *,
    local_sgd: LocalSGD,
    rounds: int,
    clients_per_round: int | None = None,
    algorithm: str | Callable[[TableSettings], Aggregator] = "fedvarp",
    seed: int = 0,
    server_optimizer: ServerOptimizer | None = None,
    sampler: ClientSampler | None = None,
    cluster_of: Tensor | str | None = None,
    recluster_every: int | None = None,
    client_weights: Tensor | None = None,
    states: Literal["memory", "disk"] = "memory",
    dtype: str = "float32",
    trainer: TrainerName | ClientTrainer = "sequential",
    workers: int | None = None,
    compile: bool = False,
    exact: bool = True,
    evaluate_every: int = 10,
    num_train_clients: int | None = None,
    num_test_examples: int | None = None,
    target_accuracy: float | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    commit_every: int = 1,
    fsync: bool = True,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    device: torch.device | str = "cpu",
) -> SimulationResult:
    """Trains `model` over the clients of `dataset`, a few of them in each round.

    With `out` the run is kept in that directory, round by round: kill it at any moment and call
    again with ``resume=True`` and the same settings, and it goes on as if nothing had happened.

    Args:
        dataset: The clients' examples.
        model: Any module without BatchNorm, on the CPU; it ends up with the final weights.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does: rate, batch size, epochs.
        rounds: T.
        clients_per_round: M, drawn uniformly; or give a `sampler`.
        algorithm: "fedavg", "fedvarp", "cluster_fedvarp", "mifa", "scaffold", or a function that
            makes an `Aggregator` of your own.
        seed: Keys every draw. The same seed gives all algorithms the same cohorts and batches.
        server_optimizer: The paper's ServerSGD(lr=1) unless given.
        sampler: Who takes part; see `fedvarp.clients.sampling`.
        cluster_of: (N,) clusters for "cluster_fedvarp", or "labels" for clients with the same
            labels, or "auto:K" for K clusters by k-means on sketched gradients at the first model
            ("auto:K:updates": on sketched updates); the data set's own unless given.
        recluster_every: With "auto:K", rounds after which clusters are made anew; None: never.
        client_weights: (N,) p_i of the objective Σ p_i f_i; None for 1/N each, as in the paper.
        states: Where the table of client states lives; "disk" needs `out`.
        dtype: How its rows are stored: float32, bfloat16, float16 or int8.
        trainer: Who trains the clients: "sequential" (the plain loop), "parallel" (processes, to
            the same bits), "vectorised" (for small dense models and GPUs), "ray" (several
            machines), "auto" (tries on the first rounds which is fastest), or one of your own.
        workers: Processes of "parallel", actors of "ray"; None: one for each core.
        compile: Whether gradients are compiled, which takes a while and then may be faster.
        exact: Whether "auto" keeps to trainers that give the plain loop's figures bit for bit.
        evaluate_every: Rounds between evaluations; the last round is evaluated too, unless a longer
            run had trained it already.
        num_train_clients: Clients that the training loss is averaged over; None: all; 0: none.
        num_test_examples: Examples of the test set that are looked at; None: all; 0: none.
        target_accuracy: Stops at the first evaluation that reaches it.
        callbacks: Called with each round's record and the server.
        out: Directory of the run.
        resume: Goes on with the run in `out`; starts it if there is none.
        commit_every: Rounds between checkpoints.
        fsync: Whether a checkpoint waits for the disk, which guards against power failures too.
        settings: What config.toml records and a resumed run must agree with; described from the
            arguments unless given.
        progress: Whether to show a progress bar; None: in a terminal.
        device: Where to train, such as "cuda".
    """
    refuse_impossible(rounds, evaluate_every, commit_every, states, out)
    refuse_target(target_accuracy, dataset, num_test_examples)
    clusters = clusters_by_name(cluster_of, recluster_every, dataset)
    refuse_two_objectives(client_weights, clusters.at_first, sampler, clients_per_round, dataset)
    sampler = sampler or _sampler(dataset, clients_per_round, client_weights, seed)
    flat = FlatModel(model.to(device))
    directory = None if out is None else RunDirectory(out)
    table = TableSettings(
        num_clients=dataset.num_clients,
        dim=flat.dim,
        codec=dtype,
        folder=str(directory.checkpoint_folder) if directory and states == "disk" else None,
        cluster_of=clusters.at_first,
        clustering=clusters.changing,
        client_weights=client_weights,
        device=device,
    )
    name = algorithm if isinstance(algorithm, str) else name_of(algorithm)
    described = {
        "algorithm": name,
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "target_accuracy": target_accuracy,
        "model": name_of(model),
        "loss": name_of(loss),
        "local_sgd": plain(local_sgd),
        "sampler": plain(sampler),
        "server_optimizer": dict((server_optimizer or ServerSGD(lr=1.0)).describe()),
        "states": {"dtype": dtype},
        "trainer": trainer if isinstance(trainer, str) else name_of(trainer),
        "workers": workers,
        "compile": compile,
        "exact": exact,
        "num_train_clients": num_train_clients,
        "num_test_examples": num_test_examples,
        "client_weights": plain_value(client_weights),
        "dataset": repr(dataset),
        "num_clients": dataset.num_clients,
    }
    kept = dict(described if settings is None else settings)
    if directory is not None:
        refuse_another_run(directory, kept, resume)
        if directory.exists and trainer == "auto":
            kept |= directory.chosen_by_auto()
            trainer, workers = kept["trainer"], kept.get("workers")
    evaluator = Evaluator(
        dataset, flat, loss, client_weights, num_train_clients, num_test_examples, seed
    )
    parts = TrainerParts(
        dataset, flat, loss, local_sgd, seed, evaluator, workers, compile=compile, exact=exact
    )

    chosen: dict[str, str] = {}

    def remember(name: str, why: str) -> None:
        chosen.update(trainer=name, auto=why)

    def write_choice() -> None:
        # Not before a checkpoint holds the rounds tried out: after a crash those that are trained
        # again must be trained as they were.
        if directory is not None and chosen:
            directory.write_settings({**kept, **chosen})
            chosen.clear()

    training = make_trainer(trainer, parts, remember) if isinstance(trainer, str) else trainer
    aggregator = (
        make_algorithm(algorithm, table) if isinstance(algorithm, str) else algorithm(table)
    )
    try:
        simulation = Simulation(
            server=Server(flat.vector(), aggregator, server_optimizer or ServerSGD(lr=1.0)),
            sampler=sampler,
            trainer=training,
            evaluator=evaluator,
            model=flat,
            evaluate_every=evaluate_every,
            target_accuracy=target_accuracy,
            callbacks=callbacks,
            buffers=flat.buffers(),
            title=name,
            reclustering=reclustering(clusters, aggregator, dataset, flat, loss, local_sgd, seed),
        )
        if directory is None:
            return simulation.run(rounds, progress)
        if not directory.exists:
            directory.create(kept)
        what = fingerprint(dataset.fingerprint(), model, loss)
        with RecordedRun(
            directory, simulation, what, kept, commit_every, fsync, write_choice
        ) as recorded:
            return recorded.run(rounds, progress, announce=settings is None)
    finally:
        if isinstance(trainer, str):
            close(training)
        for rows in () if aggregator.table is None else aggregator.table.tables():
            rows.close()


def _sampler(
    dataset: FederatedDataset, size: int | None, client_weights: Tensor | None, seed: int
) -> ClientSampler:
    if size is None:
        raise ValueError(
            "Say how many clients take part in a round: clients_per_round, or sampler."
        )
    if client_weights is None:
        return UniformSampler(dataset.num_clients, size, seed)
    equal = torch.ones(dataset.num_clients)
    return WeightedSampler(equal, size, seed, objective=client_weights)
