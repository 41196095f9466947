"""`simulate`: train one model over many clients on one machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, InstanceOf
from torch import nn
from torch.nn.functional import cross_entropy

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.clients.cohorts import ClientSampler
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.clients.sampling import UniformSampler
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.errors import DivergenceWarning
from fedvarp.runs.divergence import judged
from fedvarp.server.names import make_server_optimizer
from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked
from fedvarp.simulation.callbacks import Callback
from fedvarp.simulation.result import SimulationResult
from fedvarp.simulation.settings import Evaluation, Recording
from fedvarp.simulation.task import AlgorithmMaker, Task
from fedvarp.tables.settings import Table
from fedvarp.trainers.base import ClientTrainer
from fedvarp.trainers.settings import Trainer


@checked
def simulate(
    dataset: Annotated[InstanceOf[FederatedDataset], Field(examples=["fedvarp.data.digits()"])],
    model: Annotated[nn.Module, Field(examples=["fedvarp.models.LogisticRegression(64, 10)"])],
    loss: Annotated[Loss, Field(examples=["torch.nn.functional.cross_entropy"])] = cross_entropy,
    *,
    local_sgd: Annotated[LocalSGD, Field(examples=["LocalSGD(lr=0.1, batch_size=64, epochs=5)"])],
    rounds: Count,
    clients_per_round: Annotated[
        Count | ClientSampler,
        Field(examples=["the number 5, or fedvarp.clients.UniformSampler(250, 5, seed=0)"]),
    ],
    algorithm: Annotated[
        str | AlgorithmMaker | type[Aggregator] | Aggregator, Field(examples=['"fedvarp"'])
    ] = "fedvarp",
    seed: Seed = 0,
    server_optimizer: Annotated[
        str | ServerOptimizer | None, Field(examples=['"adam", or ServerSGD(lr=1.0)'])
    ] = None,
    table: Annotated[Table | None, Field(examples=['Table(where="disk")'])] = None,
    trainer: Annotated[
        Trainer | str | ClientTrainer, Field(examples=['"parallel"'])
    ] = "sequential",
    evaluation: Annotated[Evaluation | None, Field(examples=["Evaluation(every=10)"])] = None,
    recording: Annotated[
        Recording | str | os.PathLike[str] | None, Field(examples=['"runs/mine"'])
    ] = None,
    callbacks: Annotated[
        Sequence[Callback], Field(examples=["[OnRoundEnd(function of (record, server))]"])
    ] = (),
) -> SimulationResult:
    """Trains `model` over the clients of `dataset`, a few of them in each round.

    With ``recording="runs/mine"`` the run is kept in that directory, round by round: kill it at any
    moment and call again with ``recording=Recording(out="runs/mine", resume=True)`` and the same
    settings, and it goes on as if nothing had happened. Ctrl-C finishes the round that is under way
    and returns what there is, with `result.stopped` "interrupted".

    Args:
        dataset: The clients' examples.
        model: Any module without BatchNorm, on the CPU; it ends up with the final weights.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does: rate, batch size, epochs.
        rounds: T.
        clients_per_round: M, drawn uniformly; or a sampler, which knows its own number, who is
            online and what each client counts for (`fedvarp.clients`).
        algorithm: A name in `fedvarp.algorithms.ALGORITHMS`, with options as in
            "fedstale(beta=0.3)"; the import path of one of your own, its class, a function that
            makes it from `TableSettings`, or an aggregator, which is copied: the run's own is that
            of `result.server`.
        seed: Keys every draw. The same seed gives all algorithms the same cohorts and batches.
        server_optimizer: "sgd" (the paper's, with a rate of 1) unless given; another name in
            `fedvarp.server.SERVER_OPTIMIZERS`, the import path of one of your own, or an optimiser
            with settings of its own, such as ``ServerAdam(lr=0.1)``.
        table: Where the table of client states lives, how rows are stored, who shares one.
        trainer: Who trains the clients: a name, `Trainer` for more, or one of your own.
        evaluation: How often the model is judged, on what, and when it is good enough.
        recording: The directory to keep the run in, or `Recording` for more.
        callbacks: Told of each step; they may add metrics and stop the run.

    Returns:
        The server, the trained model, a record for each round, and why it ended.

    Raises:
        ValueError: Something cannot be as it was asked for; nothing was begun.
        RunError: The directory holds another run, or one that is not to be resumed.

    Warns:
        DivergenceWarning: Once, at the end, if replies were refused or nothing was learned; says
            how many, why, and what to try. The rules are those of `fedvarp.runs.judged`.
    """
    sampler = clients_per_round
    if isinstance(sampler, int):
        sampler = UniformSampler(dataset.num_clients, sampler, seed)
    if recording is None or isinstance(recording, str | os.PathLike):
        recording = Recording(out=None if recording is None else os.fspath(recording))
    result = Task(
        dataset=dataset,
        model=model,
        loss=loss,
        local_sgd=local_sgd,
        rounds=rounds,
        sampler=sampler,
        algorithm=algorithm,
        seed=seed,
        server_optimizer=make_server_optimizer(server_optimizer or "sgd"),
        table=table or Table(),
        trainer=Trainer(name=trainer) if isinstance(trainer, str) else trainer,
        evaluation=evaluation or Evaluation(),
        recording=recording,
        callbacks=callbacks,
    ).run()
    warning = judged(result.metrics).warning
    if warning is not None:
        warnings.warn(warning, DivergenceWarning, stacklevel=3)  # `checked` stands in between
    return result
