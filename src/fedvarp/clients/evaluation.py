"""How good the server's model is: on the test set, and on all clients' training data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedvarp.clients.draws import random_subset
from fedvarp.clients.fairness import PerClient, fairness
from fedvarp.clients.known_layers import are_dense, are_known
from fedvarp.clients.local_training import Loss, layers_draw_from
from fedvarp.clients.memory_layout import laid_out
from fedvarp.clients.metrics import Metric, MetricError, measure
from fedvarp.data.federated_dataset import Examples, FederatedDataset
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.server.flat_model import FlatModel

Figures = dict[str, Any]
"""What an evaluation finds, by name: some of `fedvarp.runs.figures.FIGURES`, metrics of one's own,
and how unequally clients fare (`fedvarp.clients.fairness`)."""

_SCORES: Final = 4  # of every part: examples, loss, right answers, answers; then come the metrics


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Computes test loss and accuracy, and the training loss f(w) = Σ p_i f_i(w).

    Where clients hold unequally many examples the training loss is given over examples too, and
    where the p_i are unequal, as the plain mean over clients: a run is judged by none alone.

    Attributes:
        dataset: Where the examples come from. Without a test set only the training loss is given,
            without classes no accuracy.
        model: Computes the output; its parameters are bound to the vector evaluated.
        loss: The mean loss of a batch.
        client_weights: (N,) p_i up to a common factor; None for 1/N each, the paper's equation 1.
        num_train_clients: How many clients, drawn once by the seed, the training loss is averaged
            over; None: all of them, as in the paper's figures; 0: no training loss.
        num_test_examples: How many examples of the test set, drawn once by the seed, are looked at;
            None: all of them; 0: none.
        validation_share: The share of the test set, the same in every run, that is set aside to
            choose settings by, and left out of the test figures; None: none of it.
        seed: The run's seed.
        batch_size: Examples at a time; any size gives the same figures but for rounding.
        metrics: Of one's own, by name; each is called with all test outputs at once.
        per_client: Whether to tell how unequally clients fare, and of each client ("all").
        cluster_of: (N,) int64, for figures of each cluster; None: there are no clusters.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    client_weights: Tensor | None = None
    num_train_clients: int | None = None
    num_test_examples: int | None = None
    validation_share: float | None = None
    seed: int = 0
    batch_size: int = 1000
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    per_client: PerClient | None = None
    cluster_of: Tensor | None = None

    def evaluate(self, w: Tensor, buffers: Mapping[str, Tensor]) -> Figures:
        """Evaluates a model.

        Args:
            w: (d,), its parameters.
            buffers: Its buffers.

        Returns:
            Those of `fedvarp.runs.figures.FIGURES` that the data set and the settings allow, then
            metrics of one's own and what single clients have.

        Raises:
            ValueError: The model's outputs have no number for each class.
            MetricError: A metric failed, or gave no number.
        """
        return self.figures(self.scores(w, buffers, 0, self.num_parts))

    @property
    def num_parts(self) -> int:
        """Into how many parts an evaluation falls: batches held out from clients, then clients."""
        return len(self._held_out) + len(self._train_clients)

    @property
    def num_scores(self) -> int:
        """How many numbers a part is scored by."""
        return _SCORES + len(self.metrics)

    def scores(
        self, w: Tensor, buffers: Mapping[str, Tensor], start: int, stop: int
    ) -> list[list[float]]:
        """Computes what some parts contribute; a part's scores depend on no other piece.

        Args:
            w: (d,), the model's parameters.
            buffers: Its buffers.
            start: The first part, where one of the `pieces` begins.
            stop: One after the last part, where one ends.

        Returns:
            `num_scores` numbers for each part.
        """
        self.model.bind(w)
        if buffers:
            self.model.load_buffers(buffers)
        self.model.module.eval()
        known = are_known(self.model.module, self.loss)
        at_once = known and are_dense(self.model.module)
        found: list[list[float]] = []
        for group in (group for group in self._groups if start <= group.start < stop):
            scored = self._scores_at_once(group, w.device) if at_once and len(group) > 1 else None
            if scored is None:
                scored = [self._score(part, w.device, draws=not known) for part in group]
            found += scored
        assert len(found) == stop - start, "what is scored at once was to stay together"
        return found

    def pieces(self, count: int) -> list[tuple[int, int]]:
        """Divides the parts among those who score them; what is scored at once stays together.

        Args:
            count: How many pieces there may be.

        Returns:
            The first part of each, and one after its last; all parts in their order.
        """
        size, start, pieces = -(-self.num_parts // count), 0, []
        for group in self._groups:
            if group.stop - start >= size or group.stop == self.num_parts:
                pieces.append((start, group.stop))
                start = group.stop
        return pieces

    def figures(self, scores: Sequence[Sequence[float]]) -> Figures:
        """Adds the scores of all parts up.

        Args:
            scores: Those of parts 0, 1, ..., in this order.

        Returns:
            The figures, as from `evaluate`.
        """
        figures: Figures = {}
        clients = scores[len(self._held_out) :]
        for kind in ("test", "validation"):
            of_kind = [
                score for score, (of, _) in zip(scores, self._held_out, strict=False) if of == kind
            ]
            if not of_kind:
                continue
            examples, loss, right, answers, *own = (
                math.fsum(column) for column in zip(*of_kind, strict=True)
            )
            figures[f"{kind}_loss"] = loss / examples
            if self.dataset.num_classes is not None:
                figures[f"{kind}_accuracy"] = right / answers
            figures |= {f"{kind}_{n}": v for n, v in zip(self.metrics, own, strict=True)}
        if clients:
            weights = torch.ones(self.dataset.num_clients, dtype=torch.float64)
            if self.client_weights is not None:
                weights = self.client_weights.double()
            chosen = weights[self._train_clients]
            losses = [loss / examples for examples, loss, *_ in clients]
            mean = chosen @ torch.tensor(losses, dtype=torch.float64) / chosen.sum()
            figures["train_loss"] = float(mean)
            if bool((chosen != chosen[0]).any()):
                figures["train_loss_over_clients"] = math.fsum(losses) / len(losses)
            if len({part[0] for part in clients}) > 1:
                total, loss = (math.fsum(part[k] for part in clients) for k in (0, 1))
                figures["train_loss_over_examples"] = loss / total
            if self.per_client is not None:
                values = {"train_loss": losses}
                if self.dataset.num_classes is not None:
                    values["train_accuracy"] = [part[2] / part[3] for part in clients]
                for k, name in enumerate(self.metrics, start=_SCORES):
                    values[f"train_{name}"] = [part[k] for part in clients]
                of_each = fairness(
                    values, self._train_clients, self.cluster_of, chosen, self.per_client
                )
                figures |= {n: value for n, value in of_each.items() if n not in figures}
        return figures

    @cached_property
    def _held_out(self) -> list[tuple[str, list[Examples]]]:
        """Batches of the validation and the test examples, each a part, with its kind.

        With metrics, which look at all examples of a kind at once, these are one part.
        """
        if self.dataset.test is None:
            return []
        x, y = self.dataset.test
        num_validation = round((self.validation_share or 0.0) * len(x))
        is_validation = torch.zeros(len(x), dtype=torch.bool)
        is_validation[random_subset(len(x), num_validation, stream(0, "validation"))] = True
        test = (~is_validation).nonzero().squeeze(1)
        some = self.num_test_examples
        if some is not None and some < len(test):
            test = test[random_subset(len(test), some, stream(self.seed, "evaluated examples"))]
        parts: list[tuple[str, list[Examples]]] = []
        for kind, chosen in (("validation", is_validation.nonzero().squeeze(1)), ("test", test)):
            batches: list[Examples] = []
            for part in torch.split(chosen, self.batch_size) if len(chosen) else ():
                contiguous = int(part[-1] - part[0]) == len(part) - 1
                rows = slice(int(part[0]), int(part[-1]) + 1) if contiguous else part
                batches.append((x[rows], y[rows]))  # a slice is no copy
            together = [batches] if self.metrics and batches else [[one] for one in batches]
            parts += [(kind, part_of_kind) for part_of_kind in together]
        return parts

    @cached_property
    def _train_clients(self) -> Tensor:
        everyone, some = self.dataset.num_clients, self.num_train_clients
        if some is None or some >= everyone:
            return torch.arange(everyone)
        return random_subset(everyone, some, stream(self.seed, "evaluated clients"))

    @cached_property
    def _groups(self) -> list[range]:
        """Parts by the batch: clients whose examples fit into one, all others alone.

        They are the same whoever asks, for what a client's neighbours are may be seen in the last
        digits of its figures.
        """
        first, sizes = len(self._held_out), self.dataset.num_examples
        groups = [range(part, part + 1) for part in range(first)]
        of_clients = [self.batch_size] * len(self._train_clients)
        if sizes is not None:
            of_clients = sizes[self._train_clients].tolist()
        room = 0
        for part, size in enumerate(of_clients, start=first):
            if size <= room:
                groups[-1] = range(groups[-1].start, part + 1)
                room -= size
            else:
                groups.append(range(part, part + 1))
                room = self.batch_size - size
        return groups

    @torch.no_grad()
    def _scores_at_once(self, group: range, device: torch.device) -> list[list[float]] | None:
        """What several clients contribute, whose outputs are computed together.

        None if they cannot be: examples have unlike shapes, or are single numbers.
        """
        examples = [self.dataset.client(self._client(part)) for part in group]
        kinds = {(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in examples}
        if len(kinds) > 1 or examples[0][0].ndim < 2:
            return None
        x, y = (torch.cat(of_all).to(device) for of_all in zip(*examples, strict=True))
        outputs, lengths = self.model.module(x), [len(own) for own, _ in examples]
        each = list(zip(torch.split(outputs, lengths), torch.split(y, lengths), strict=True))
        losses = torch.stack([self.loss(*own) for own in each]).tolist()
        right, answers = [0] * len(group), 0
        if self.dataset.num_classes is not None:
            of_examples = _are_right(outputs, y).reshape(len(x), -1)
            starts = np.cumsum([0, *lengths[:-1]])
            right = np.add.reduceat(of_examples.sum(1).tolist(), starts).tolist()
            answers = of_examples.shape[1]
        return [
            [n, loss * n, of_own, n * answers, *self._measured(part, [own], device)]
            for part, n, loss, of_own, own in zip(group, lengths, losses, right, each, strict=True)
        ]

    def _client(self, part: int) -> int:
        return int(self._train_clients[part - len(self._held_out)])

    @torch.no_grad()
    def _score(self, part: int, device: torch.device, draws: bool) -> list[float]:
        """What a part contributes: its sums, then its metrics."""
        held_out = part < len(self._held_out)
        batches = self._held_out[part][1] if held_out else [self.dataset.client(self._client(part))]
        seen: list[tuple[Any, Tensor]] | None = [] if self.metrics else None
        # To key the draws of a part takes as long as to evaluate a small client.
        with self._keyed(part, device) if draws else contextlib.nullcontext():
            rows = [self._sums(examples, device, seen) for examples in batches]
            # Batch by batch and exact, so that metrics leave the other figures as they were.
            sums = rows[0] if len(rows) == 1 else [math.fsum(c) for c in zip(*rows, strict=True)]
            return sums + self._measured(part, seen or [], device)

    def _keyed(self, part: int, device: torch.device) -> contextlib.AbstractContextManager[None]:
        return layers_draw_from(stream(self.seed, "evaluation", part), device)

    def _measured(
        self, part: int, seen: Sequence[tuple[Any, Tensor]], device: torch.device
    ) -> list[float]:
        """Metrics of one's own, by outputs and targets of a part; NaN where they are not wanted."""
        held_out = part < len(self._held_out)
        if not self.metrics or not (held_out or self.per_client):
            return [math.nan] * len(self.metrics)
        whose = f"the training examples of client {self._client(part)}"
        if held_out:
            whose = f"the {self._held_out[part][0]} examples"
        outputs = _joined([output for output, _ in seen])
        targets = torch.cat([target for _, target in seen])
        with self._keyed(part, device):
            return [measure(n, m, outputs, targets, whose) for n, m in self.metrics.items()]

    def _sums(
        self, examples: Examples, device: torch.device, seen: list[tuple[Any, Tensor]] | None
    ) -> list[float]:
        """Examples, their summed loss, and of how many answers how many are right.

        Outputs and targets are added to `seen`, unless it is None.
        """
        sums: list[Tensor] = []  # of each batch, on the device
        num_answers = 0
        for x, y in _batches(examples, self.batch_size):
            inputs, targets = laid_out(x.to(device), self.model), y.to(device)
            outputs = self.model.module(inputs)
            loss = self.loss(outputs, targets).double() * len(x)
            right = torch.zeros_like(loss)
            if self.dataset.num_classes is not None:
                right = _are_right(outputs, targets).sum().double()
                num_answers += targets.numel()
            sums.append(torch.stack((loss, right)))
            if seen is not None:
                seen.append((outputs, targets))
        return [len(examples[0]), *sum(sums[1:], start=sums[0]).tolist(), num_answers]


def _joined(outputs: Sequence[object]) -> Tensor:
    tensors = [output for output in outputs if isinstance(output, Tensor)]
    if len(tensors) < len(outputs):
        kind = type(outputs[0]).__name__
        raise MetricError(
            f"The model gives a {kind}, and metrics of one's own are called with one tensor of "
            f"outputs. Let the model give a tensor, or measure in a callback's on_evaluation."
        )
    return torch.cat(tensors)


def _are_right(outputs: object, targets: Tensor) -> Tensor:
    """Which answers are the targets, as these are laid out."""
    if (
        isinstance(outputs, Tensor)
        and outputs.ndim == targets.ndim + 1
        and outputs.shape[2:] == targets.shape[1:]
    ):
        return outputs.argmax(dim=1) == targets
    kind = f"a {type(outputs).__name__}"
    if isinstance(outputs, Tensor):
        kind = f"outputs of shape {tuple(outputs.shape)}"
    raise InvalidError(
        f"The model gives {kind} for targets of shape {tuple(targets.shape)}: accuracy needs one "
        f"number for each class, along dimension 1. Leave num_classes out of the data set if its "
        f"targets are not classes."
    )


def _batches(examples: Examples, batch_size: int) -> Iterable[Examples]:
    x, y = examples
    for start in range(0, len(x), batch_size):
        yield x[start : start + batch_size], y[start : start + batch_size]
