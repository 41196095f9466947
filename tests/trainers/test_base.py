"""A trainer of one's own needs `train` alone; everything else has a meaning without it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedvarp import Broadcast, RoundUpdates
from fedvarp.clients.evaluation import Evaluator
from fedvarp.trainers import ClientTrainer, SequentialTrainer
from small_federation import Changed, bits, linear, plain, run, seeded


class Forwarding(ClientTrainer):
    def __init__(self, inner: SequentialTrainer) -> None:
        self.inner = inner

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        return self.inner.train(broadcast, clients, round)


def test_a_trainer_with_train_alone_trains_a_run() -> None:
    module = seeded(linear)
    inner = plain(module=module, seed=0)
    with Forwarding(inner) as own:
        assert bits(run(module=module, trainer=own)) == bits(run(module=seeded(linear)))
        evaluator = Evaluator(inner.dataset, inner.model, inner.loss)
        assert own.evaluation(evaluator, torch.zeros(inner.model.dim), {}) is None


def test_a_trainer_without_train_cannot_be_made() -> None:
    class Idle(ClientTrainer):
        pass

    with pytest.raises(TypeError, match="train"):
        Idle()  # type: ignore[abstract]


def test_a_trainer_closes_itself_after_with() -> None:
    with Changed(plain()) as trainer:
        assert not trainer.closed
    assert trainer.closed
