"""How the trainers of the registry are made from the parts of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedvarp.clients.compiled_gradient import CompiledGradient
from fedvarp.clients.evaluation import Evaluator
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import GradientOf, Loss
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.errors import InvalidError
from fedvarp.server.flat_model import FlatModel
from fedvarp.system.processes import usable_cores
from fedvarp.trainers.auto import AutoTrainer, Candidate
from fedvarp.trainers.base import ClientTrainer
from fedvarp.trainers.parallel import ParallelTrainer
from fedvarp.trainers.ray import RayTrainer
from fedvarp.trainers.replayed_gradient import ReplayedGradient
from fedvarp.trainers.sequential import SequentialTrainer
from fedvarp.trainers.settings import TRAINERS
from fedvarp.trainers.vectorised import VectorisedTrainer, leaves_out_padding


@dataclass(frozen=True, eq=False)
class TrainerParts:
    """What every trainer is made from.

    Attributes:
        dataset: The clients' examples.
        model: The model, on the device it is trained on.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        seed: The run's seed.
        evaluator: Shared with trainers that evaluate while they train.
        workers: Processes; None: one for each core.
        compile: Whether gradients are compiled.
        exact: Whether "auto" and "parallel" keep to the plain loop's figures, bit for bit.
        on_choice: Called with the name of the trainer that "auto" has chosen, and why.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    seed: int
    evaluator: Evaluator
    workers: int | None = None
    compile: bool = False
    exact: bool = True
    on_choice: Callable[[str, str], None] = lambda name, why: None

    @property
    def on_cpu(self) -> bool:
        """Whether processes can share the model."""
        return all(part.device.type == "cpu" for part in self.model.module.parameters())


def make_trainer(name: str, parts: TrainerParts) -> ClientTrainer:
    """Makes the trainer of a name.

    Args:
        name: One of `TRAINERS`, or the import path of a function of the parts.
        parts: What it is made from.

    Returns:
        The trainer, to be closed after use.

    Raises:
        ValueError: There is no such trainer, or it cannot do what the parts ask for.
    """
    trainer = TRAINERS.find(name)(parts)
    if not isinstance(trainer, ClientTrainer):
        raise InvalidError(
            f"The trainer {name!r} is made into a {type(trainer).__name__}, which does not derive "
            f"from fedvarp.trainers.ClientTrainer. Derive it: what is then left to write is train."
        )
    return trainer


def make_auto(parts: TrainerParts) -> AutoTrainer:
    """The fastest of the others, found by trying."""
    candidates = {"sequential": Candidate(make_sequential(parts))}
    not_tried = {}
    why_not = _why_not_shared(parts)
    if why_not is not None:
        not_tried["parallel"] = why_not
    else:
        exact = parts.exact and torch.get_num_threads() == 1  # as in a worker
        candidates["parallel"] = Candidate(make_parallel(parts), exact=exact, for_long_rounds=True)
    if parts.local_sgd.optimizer is not None:
        not_tried["vectorised"] = "it takes steps of SGD alone"
    elif leaves_out_padding(parts.model.module):
        not_tried["vectorised"] = "it would train the padding of an embedding"
    elif not parts.compile and not (parts.exact and parts.on_cpu):
        # A GPU's kernels add up in an order of their own: there are no bits to keep to.
        candidates["vectorised"] = Candidate(make_vectorised(parts), exact=False)
    return AutoTrainer(candidates, parts.on_choice, not_tried)


def _why_not_shared(parts: TrainerParts) -> str | None:
    """Why workers would not help, or not give the plain loop's figures; None: they may."""
    if not parts.on_cpu:
        return "the model is not on the CPU"
    if parts.compile:
        return "each process would compile its own gradient"
    if (parts.workers or usable_cores()) == 1:
        return "there is one core to use"
    threads = torch.get_num_threads()
    if parts.exact and threads > 1:
        return (
            f"torch sums with {threads} threads here, workers with one, to other bits "
            f"(Trainer(threads=1), or exact=False)"
        )
    return None


def make_sequential(parts: TrainerParts) -> SequentialTrainer:
    """The plain loop; the gradients of small models are recorded and replayed, to its bits."""
    gradient_of: GradientOf | None = (
        CompiledGradient(parts.model, parts.loss)
        if parts.compile
        else ReplayedGradient.where_safe(parts.model, parts.loss)
    )
    return SequentialTrainer(
        parts.dataset, parts.model, parts.loss, parts.local_sgd, parts.seed, gradient_of
    )


def make_parallel(parts: TrainerParts) -> ParallelTrainer:
    """Processes that share the clients."""
    return ParallelTrainer(make_sequential(parts), parts.workers, parts.evaluator, parts.exact)


def make_vectorised(parts: TrainerParts) -> VectorisedTrainer:
    """All clients of a round as one more axis."""
    _refuse_to_compile(parts, "vectorised")
    return VectorisedTrainer(parts.dataset, parts.model, parts.loss, parts.local_sgd, parts.seed)


def make_ray(parts: TrainerParts) -> RayTrainer:
    """Actors of a Ray cluster."""
    _refuse_to_compile(parts, "ray")
    return RayTrainer(
        parts.dataset,
        parts.model,
        parts.loss,
        parts.local_sgd,
        parts.seed,
        num_workers=parts.workers,
    )


def _refuse_to_compile(parts: TrainerParts, name: str) -> None:
    if parts.compile:
        raise InvalidError(
            f'compile=True goes with trainer="sequential", "parallel" or "auto", not {name!r}.'
        )
