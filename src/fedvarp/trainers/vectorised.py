"""The clients of a round as one more axis of every tensor: for small dense models, and for GPUs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients import local_training
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.errors import InvalidError
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Broadcast
from fedvarp.trainers.base import ClientTrainer
from fedvarp.trainers.batched_cohort import BatchedCohort
from fedvarp.trainers.cohort_plan import CohortPlans
from fedvarp.trainers.replay import Replay
from fedvarp.trainers.sequential import gather, updates
from fedvarp.trainers.shared_gradient import IGNORED
from fedvarp.trainers.step_state import step_state

_MOST_STEPS: Final = 64  # of a round that are recorded as one
# Numbers that torch's operations take at once on this processor.
_LANES: Final = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8


@dataclass(frozen=True, eq=False)
class VectorisedTrainer(ClientTrainer):
    """Takes step k of all clients at once; equal to `SequentialTrainer` to float tolerance.

    Clients with fewer steps drop out of the later ones, and batches of unequal size are padded; the
    loss never sees the padding. The model must treat each example by itself, for it does see the
    padding; it may draw no random numbers (dropout) and change no buffers while it trains. Model
    and loss are to depend on their inputs, parameters and attributes alone: the operations of a
    step are recorded once for each shape, and replayed (`Replay`).

    Attributes:
        dataset: The clients' examples.
        model: Computes the output.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        seed: The run's seed.

    Raises:
        ValueError: Clients are to take other steps than those of SGD, or the model has an embedding
            with padding.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    seed: int

    def __post_init__(self) -> None:
        if self.local_sgd.optimizer is not None:
            raise InvalidError(
                f'trainer="vectorised" takes steps of SGD for all clients at once, and '
                f"local_sgd.optimizer is {self.local_sgd.optimizer.name!r}; "
                f'trainer="parallel" takes any optimiser.'
            )
        if leaves_out_padding(self.model.module):
            raise InvalidError(
                'trainer="vectorised": the padding of an nn.Embedding (padding_idx) is left out of '
                "its gradients, but not of those that torch takes for several clients at once. "
                'trainer="parallel" takes any model.'
            )

    def foretell(self, cohorts: Mapping[int, Tensor]) -> None:
        """Plans these rounds; see `ClientTrainer.foretell`."""
        self._plans.foretell({t: clients.tolist() for t, clients in cohorts.items()})

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """Runs LocalSGD at all of the clients together.

        Args:
            broadcast: What the server sent.
            clients: (M,) int64, those who answer.
            round: t.

        Returns:
            What these clients send back; see `ClientTrainer.train`.

        Raises:
            ValueError: The model, the loss or the data cannot be trained for several clients at
                once.
        """
        if len(clients) == 0:
            nobody = broadcast.w.new_empty(0, len(broadcast.w))
            return gather({}, {}, nobody, self.local_sgd.rate(round))
        plan = self._plans.of(round, clients.tolist())
        cohort = BatchedCohort.of(plan, broadcast, self.dataset.augment, self.seed)
        self._refuse_ignored(cohort)
        if broadcast.buffers:
            self.model.load_buffers(broadcast.buffers)
        if any(map(_has_to_be_told, self.model.module.modules())):
            self.model.module.train()
        local, mean_losses = self._walk(cohort, broadcast, round)
        self._refuse_changed(broadcast.buffers)
        units = {n: local_training.units(self.local_sgd, round, n) for n in set(plan.num_steps)}
        divisors = [units[n][1] for n in plan.num_steps]
        by = divisors[0] if len(units) == 1 else local.new_tensor(divisors).unsqueeze(1)
        deltas = torch.sub(broadcast.w, local).div_(by)  # line 6
        told: dict[str, list[Any]] = {
            "magnitudes": deltas.abs().amax(1).tolist(),
            "mean_losses": mean_losses,
            "num_steps": plan.num_steps,
            "num_examples": plan.num_examples,
            "num_gradients": [units[n][0] for n in plan.num_steps],
        }
        if len(units) > 1:  # those with the most steps stand first
            back = sorted(range(len(clients)), key=plan.order.__getitem__)
            deltas = deltas[torch.tensor(back, device=deltas.device)]
            told = {name: [column[m] for m in back] for name, column in told.items()}
        return updates(
            clients.tolist(),
            deltas,
            **told,
            buffers=dict.fromkeys(clients.tolist(), broadcast.buffers) if broadcast.buffers else {},
            rate=self.local_sgd.rate(round),
        )

    def _walk(
        self, cohort: BatchedCohort, broadcast: Broadcast, round: int
    ) -> tuple[Tensor, list[float]]:
        """(M, d) where the clients have come to, in the order of the cohort, and their losses."""
        w, sgd, corrections = broadcast.w, self.local_sgd, cohort.corrections
        first, num_steps = sgd.rate(round), len(cohort.plan.sizes)
        rates = w.new_tensor([first * sgd.step_decay**step for step in range(num_steps)])
        state = step_state(self.model.module, self.loss)
        whole = (w, rates, cohort.x, cohort.y, corrections)
        if self._is_one_recording(cohort, broadcast, whole, state):
            local, total_loss = self._walks(*whole, state=state)
        else:
            local = w.expand(len(cohort.plan.order), -1).clone()  # line 1, (M, d)
            batches = ((*cohort.batch(step), sizes) for step, sizes in enumerate(cohort.plan.sizes))
            pull = (broadcast.proximal, w) if broadcast.proximal else None
            total_loss = self._steps(local, rates, batches, corrections, pull, state)
        totals = zip(total_loss.tolist(), cohort.plan.num_steps, strict=True)
        return local, [total / num_steps for total, num_steps in totals]

    def _is_one_recording(
        self,
        cohort: BatchedCohort,
        broadcast: Broadcast,
        whole: tuple[Tensor | None, ...],
        state: Hashable,
    ) -> bool:
        """Whether all steps of a round are a function of a few tensors, and of replayed steps.

        Steps that are not replayed have results of their own each, which would all be kept.
        """
        plain = cohort.batches is None and cohort.augment is None and not broadcast.proximal
        if not plain or not 1 < len(cohort.plan.sizes) <= _MOST_STEPS:
            return False
        if self._walks.is_ready(*whole, state=state):
            return True
        local = broadcast.w.new_empty(len(cohort.plan.order), len(broadcast.w))
        return self._replay.is_ready(local, cohort.x[0], cohort.y[0], None, state=state)

    @cached_property
    def _plans(self) -> CohortPlans:
        return CohortPlans(self.dataset, self.local_sgd, self.seed)

    @cached_property
    def _walks(self) -> Replay:
        """All steps of a round, where the clients are alike: a recording of single replays."""
        return Replay(self._walk_of_clients_alike)

    def _walk_of_clients_alike(
        self, w: Tensor, rates: Tensor, x: Tensor, y: Tensor, corrections: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        local = w.expand(x.shape[1], -1).clone()  # line 1, (M, d)
        sizes = [x.shape[2]] * x.shape[1]
        batches = ((*batch, None, sizes) for batch in zip(x, y, strict=True))
        state = step_state(self.model.module, self.loss)
        return local, self._steps(local, rates, batches, corrections, None, state)

    def _steps(
        self,
        local: Tensor,
        rates: Tensor,
        batches: Iterable[tuple[Tensor, Tensor, Tensor | None, Sequence[int]]],
        corrections: Tensor | None,
        pull: tuple[float, Tensor] | None,
        state: Hashable,
    ) -> Tensor:
        """Moves the clients' models, (M, d); (M,) float64 the sums of their batches' losses."""
        velocity = torch.zeros_like(local) if self.local_sgd.momentum else None
        total_loss = torch.zeros(len(local), dtype=torch.float64, device=local.device)
        for rate, (x, y, mask, sizes) in zip(rates, batches, strict=True):  # line 2
            going = len(sizes)
            walking = local[:going]
            if mask is not None and self.loss is not cross_entropy:  # goes through client by client
                losses, gradient = self._gradients(walking, x, y, mask, sizes)
            else:
                losses, gradient = self._replay(walking, x, y, mask, state=state)  # line 3
            total_loss[:going].add_(losses)
            direction = local_training.direction(
                self.local_sgd,
                gradient,
                walking,
                None if velocity is None else velocity[:going],
                None if corrections is None else corrections[:going],
                pull,
            )
            walking.addcmul_(direction, rate, value=-1)  # line 4
        return total_loss

    @cached_property
    def _replay(self) -> Replay:
        return Replay(self._gradients)

    def _gradients(
        self,
        local: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        sizes: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:
        """(A,) the loss of each client's batch, and (A, d) its gradient at the client's own row."""
        parameters = self.model.unflatten(local.detach())
        for parameter in parameters.values():
            parameter.requires_grad_()
        losses = self._losses(parameters, x, y, mask, sizes)
        # No client's loss depends on another's parameters: the gradient of the sum is each one's.
        parts = torch.autograd.grad(losses.sum(), list(parameters.values()), materialize_grads=True)
        gradient = torch.cat([part.reshape(len(local), -1) for part in parts], dim=1)
        return losses.detach(), gradient

    def _losses(
        self,
        parameters: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        sizes: Sequence[int],
    ) -> Tensor:
        """(A,) the loss of each client's batch at its own parameters, (A, ...)."""
        try:
            outputs = _tensor(vmap(self._outputs)(parameters, x))  # (A, B, ...)
            if self.loss is cross_entropy:  # the usual one, which needs no loop over clients
                return _mean_cross_entropy(outputs, y, mask)
            if mask is None:
                return _tensor(vmap(self.loss)(outputs, y))
        except RuntimeError as error:
            raise InvalidError(
                f"This model or loss cannot be trained for several clients at once: "
                f"{str(error).splitlines()[0]} Layers that draw random numbers (dropout) or change "
                f'buffers are the usual cause; trainer="parallel" takes any model.'
            ) from error
        # By sizes, which Python knows: a mask would have it wait for the device in every step.
        own = zip(outputs, y, sizes, strict=True)
        return torch.stack([self.loss(output[:n], target[:n]) for output, target, n in own])

    def _outputs(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return _tensor(functional_call(self.model.module, parameters, (inputs,)))

    def _refuse_ignored(self, cohort: BatchedCohort) -> None:
        """Raises ValueError if cross_entropy would divide by fewer targets than there are."""
        if self.loss is cross_entropy and bool((cohort.y == IGNORED).any()):
            raise InvalidError(
                f"Some targets are {IGNORED}, which cross_entropy leaves out: its mean is then "
                f'not one over examples. trainer="parallel" takes any loss.'
            )

    def _refuse_changed(self, sent: Mapping[str, Tensor]) -> None:
        """Raises ValueError if the model has written to its buffers, once for all clients."""
        if not sent:
            return
        now = self.model.buffers()
        changed = [name for name in sent if not torch.equal(sent[name], now[name])]
        if changed:
            raise InvalidError(
                f"The model changes its buffers {', '.join(changed)} while it trains, which cannot "
                f'be done for several clients at once; trainer="parallel" takes any model.'
            )


def leaves_out_padding(module: nn.Module) -> bool:
    """Whether some rows of an embedding are not to be trained, which `vmap` does not know.

    Args:
        module: The model.
    """
    layers = (part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag))
    return any(layer.padding_idx is not None for layer in layers)


def _has_to_be_told(part: nn.Module) -> bool:
    """Whether `train()` may change a layer; it takes as long as a step where it changes none."""
    return not part.training or type(part).train is not nn.Module.train


def _mean_cross_entropy(outputs: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """(A,) of each client's batch, (A, B, ...), the mean over its examples that are real."""
    examples, labels = outputs.flatten(0, 1), targets.flatten(0, 1)
    if examples.ndim == 2 and examples.shape[1] < _LANES and examples.is_cpu:
        # Too few to take at once, example by example: with classes first, many examples are.
        examples, labels = (part.movedim(0, -1).unsqueeze(0) for part in (examples, labels))
    by_target = cross_entropy(examples, labels, reduction="none")
    by_example = by_target.reshape(*outputs.shape[:2], -1)
    by_example = by_example.squeeze(2) if by_example.shape[2] == 1 else by_example.mean(2)
    if mask is None:
        return by_example.mean(1)
    return by_example.mul(mask).sum(1) / mask.sum(1)


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
