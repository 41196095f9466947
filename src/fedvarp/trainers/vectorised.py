"""The clients of a round as one more axis of every tensor: for small dense models, and for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients import local_training
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import LocalResult, Loss
from fedvarp.data.federated_dataset import Augmentation, FederatedDataset
from fedvarp.randomness import stream
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Broadcast
from fedvarp.trainers.base import ClientTrainer
from fedvarp.trainers.sequential import corrections_by_client, gather

_PADDING: Final = -1
_IGNORED: Final = -100  # the target that cross_entropy leaves out of its mean


@dataclass(frozen=True, eq=False)
class VectorisedTrainer(ClientTrainer):
    """Takes step k of all clients at once; equal to `SequentialTrainer` to float tolerance.

    Clients with fewer steps drop out of the later ones, and batches of unequal size are padded; the
    loss never sees the padding. The model must treat each example by itself, for it does see the
    padding; it may draw no random numbers (dropout) and change no buffers while it trains.

    Attributes:
        dataset: The clients' examples.
        model: Computes the output.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        seed: The run's seed.

    Raises:
        ValueError: Clients are to take other steps than those of SGD.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    seed: int

    def __post_init__(self) -> None:
        if self.local_sgd.optimizer is not None:
            raise ValueError(
                f'trainer="vectorised" takes steps of SGD for all clients at once, and '
                f"local_sgd.optimizer is {self.local_sgd.optimizer.name!r}; "
                f'trainer="parallel" takes any optimiser.'
            )

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
            return gather({}, {}, broadcast.w, self.local_sgd.rate(round))
        cohort = _Cohort.of(self, broadcast, clients.tolist(), round)
        self._refuse_ignored(cohort)
        if broadcast.buffers:
            self.model.load_buffers(broadcast.buffers)
        self.model.module.train()
        results = self._train(cohort, broadcast, round)
        self._refuse_changed(broadcast.buffers)
        ordered = {client: results[client] for client in clients.tolist()}
        unchanged = dict.fromkeys(ordered, broadcast.buffers) if broadcast.buffers else {}
        return gather(ordered, unchanged, broadcast.w, self.local_sgd.rate(round))

    def _train(self, cohort: _Cohort, broadcast: Broadcast, round: int) -> dict[int, LocalResult]:
        w, sgd = broadcast.w, self.local_sgd
        local = w.repeat(len(cohort.clients), 1)  # line 1, (M, d)
        velocity = torch.zeros_like(local) if sgd.momentum else None
        total_loss = torch.zeros(len(local), dtype=torch.float64, device=w.device)
        rate = sgd.rate(round)
        for step in range(cohort.num_steps[0]):  # line 2
            going = cohort.num_active(step)
            x, y, mask = cohort.batch(step)
            parameters = self.model.unflatten(local[:going])
            for parameter in parameters.values():
                parameter.requires_grad_()
            losses = self._losses(parameters, x, y, mask)
            parts = torch.autograd.grad(  # line 3
                losses.sum(), list(parameters.values()), materialize_grads=True
            )
            total_loss[:going] += losses.detach()
            direction = local_training.direction(
                sgd,
                torch.cat([part.reshape(going, -1) for part in parts], dim=1),  # each client's own
                local[:going],
                None if velocity is None else velocity[:going],
                None if cohort.corrections is None else cohort.corrections[:going],
                (broadcast.proximal, w) if broadcast.proximal else None,
            )
            local[:going].add_(direction, alpha=-rate)  # line 4
            rate *= sgd.step_decay
        units = [local_training.units(sgd, round, steps) for steps in cohort.num_steps]
        divisors = torch.tensor([divisor for _, divisor in units], device=w.device)
        deltas = (w - local).div_(divisors.unsqueeze(1))  # line 6
        low, high = torch.aminmax(deltas, dim=1)
        magnitudes = torch.maximum(-low, high).tolist()
        return {
            client: LocalResult(
                delta=deltas[m],
                num_steps=cohort.num_steps[m],
                num_gradients=units[m][0],
                mean_loss=total / cohort.num_steps[m],
                num_examples=cohort.num_examples[m],
                magnitude=magnitudes[m],
            )
            for m, (client, total) in enumerate(
                zip(cohort.clients, total_loss.tolist(), strict=True)
            )
        }

    def _losses(
        self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor | None
    ) -> Tensor:
        """(A,) the loss of each client's batch at its own parameters, (A, ...)."""
        try:
            outputs = _tensor(vmap(self._outputs)(parameters, x))  # (A, B, ...)
            if self.loss is cross_entropy:  # the usual one, which needs no loop over clients
                return _mean_cross_entropy(outputs, y, mask)
            if mask is None:
                return _tensor(vmap(self.loss)(outputs, y))
        except RuntimeError as error:
            raise ValueError(
                f"This model or loss cannot be trained for several clients at once: "
                f"{str(error).splitlines()[0]} Layers that draw random numbers (dropout) or change "
                f'buffers are the usual cause; trainer="parallel" takes any model.'
            ) from error
        own = zip(outputs, y, mask, strict=True)
        return torch.stack([self.loss(output[real], target[real]) for output, target, real in own])

    def _outputs(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return _tensor(functional_call(self.model.module, parameters, (inputs,)))

    def _refuse_ignored(self, cohort: _Cohort) -> None:
        """Raises ValueError if cross_entropy would divide by fewer targets than there are."""
        if self.loss is cross_entropy and bool((cohort.y == _IGNORED).any()):
            raise ValueError(
                f"Some targets are {_IGNORED}, which cross_entropy leaves out: its mean is then "
                f'not one over examples. trainer="parallel" takes any loss.'
            )

    def _refuse_changed(self, sent: Mapping[str, Tensor]) -> None:
        """Raises ValueError if the model has written to its buffers, once for all clients."""
        now = self.model.buffers()
        changed = [name for name in sent if not torch.equal(sent[name], now[name])]
        if changed:
            raise ValueError(
                f"The model changes its buffers {', '.join(changed)} while it trains, which cannot "
                f'be done for several clients at once; trainer="parallel" takes any model.'
            )


@dataclass(frozen=True, eq=False)
class _Cohort:
    """The clients of a round, those with the most steps first, and all of their batches."""

    clients: list[int]
    num_examples: list[int]
    num_steps: list[int]
    corrections: Tensor | None  # (M, d)
    x: Tensor  # (n, ...), the examples of all clients
    y: Tensor  # (n, ...)
    batches: Tensor  # (M, steps, batch size) rows of x and y, or _PADDING
    padded: list[bool]  # of each step: whether a batch is smaller than others
    augment: Augmentation | None
    augmenting: list[torch.Generator]

    @classmethod
    def of(
        cls, trainer: VectorisedTrainer, broadcast: Broadcast, clients: list[int], round: int
    ) -> _Cohort:
        """Loads the clients and draws their batches, the same as `local_training.train` would."""
        sgd, seed, device = trainer.local_sgd, trainer.seed, broadcast.w.device
        examples = {client: trainer.dataset.client(client) for client in clients}
        sizes = {client: tuple(sgd.batch_sizes(len(x))) for client, (x, _) in examples.items()}
        order = sorted(clients, key=lambda client: -len(sizes[client]))
        widest = max(max(of_client) for of_client in sizes.values())
        rows = torch.full((len(order), len(sizes[order[0]]), widest), _PADDING)
        first = 0
        for m, client in enumerate(order):
            num_examples = len(examples[client][0])
            (drawn,) = local_training.orders(sgd, num_examples, seed, round, [client]).add_(first)
            places = _places(sizes[client], widest)
            rows[m].view(-1)[places] = drawn
            first += num_examples
        corrections = corrections_by_client(broadcast)
        augment = trainer.dataset.augment
        num_steps = [len(sizes[client]) for client in order]
        return cls(
            clients=order,
            num_examples=[len(examples[client][0]) for client in order],
            num_steps=num_steps,
            corrections=torch.stack([corrections[i] for i in order]) if corrections else None,
            x=_together([examples[client][0] for client in order]).to(device),
            y=_together([examples[client][1] for client in order]).to(device),
            batches=rows.to(device),
            padded=[
                any(s[step : step + 1] not in ((), (widest,)) for s in sizes.values())
                for step in range(num_steps[0])
            ],
            augment=augment,
            augmenting=[stream(seed, "augment", round, i) for i in order] if augment else [],
        )

    def num_active(self, step: int) -> int:
        """How many clients take that step; they are the first ones."""
        return sum(steps > step for steps in self.num_steps)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs (A, B, ...), targets (A, B, ...) and which of them are real; None: all."""
        rows = self.batches[: self.num_active(step), step]
        real = rows != _PADDING
        if self.padded[step]:
            # Padding counts for nothing, but 0 · inf is NaN: it must not be another client's.
            rows = torch.where(real, rows, rows[:, :1])
        x, y = self.x[rows], self.y[rows]
        if self.augment is not None:
            for inputs, own, generator in zip(x, real, self.augmenting, strict=False):
                inputs[own] = self.augment(inputs[own], generator)
        return x, y, real if self.padded[step] else None


@lru_cache(maxsize=1024)
def _places(sizes: tuple[int, ...], widest: int) -> Tensor:
    """Where the examples of a client's batches stand in its padded (steps, widest) rows."""
    steps = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    within = torch.cat([torch.arange(size) for size in sizes])
    return steps * widest + within


def _mean_cross_entropy(outputs: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """(A,) of each client's batch, (A, B, ...), the mean over its examples that are real."""
    by_target = cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    by_example = by_target.reshape(*outputs.shape[:2], -1).mean(2)
    if mask is None:
        return by_example.mean(1)
    return by_example.mul(mask).sum(1) / mask.sum(1)


def _together(parts: list[Tensor]) -> Tensor:
    """The examples of all clients in one tensor."""
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        some = " and ".join(str(shape) for shape in sorted(shapes)[:2])
        raise ValueError(
            f"Clients hold examples of different shapes, {some}, which cannot be trained at once; "
            f'trainer="parallel" takes them.'
        )
    return torch.cat(parts)


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
