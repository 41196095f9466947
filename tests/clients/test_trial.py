"""A model and a loss are tried before a run, as they are trained, and nothing is changed by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import LocalSGD, Recording, simulate
from fedvarp.analysis import compare
from fedvarp.clients.trial import refuse_untrainable
from fedvarp.data import FederatedDataset, from_tensors
from fedvarp.models import initialised

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 3)
DATA = from_tensors([(X, Y)] * 4)
SGD = LocalSGD(lr=0.1, batch_size=4, epochs=1)


class Remembering(nn.Module):
    """Has a buffer that changes in place, one that is replaced, an attribute, modes and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.dropout = nn.Dropout(0.5)
        self.dropout.eval()
        self.calls: Tensor
        self.centre: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("centre", torch.zeros(2))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(self.dropout(x))
        self.calls += 1
        self.centre = 0.9 * self.centre + 0.1 * output.detach().mean(0)
        self.last = output.detach()
        return output


class Counting(nn.Module):
    """A loss with a state."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        self.count += output.detach().square().mean()
        return cross_entropy(output, targets)


@pytest.mark.parametrize("loss", [Counting(), lambda *_: 1.0], ids=["taken", "refused"])
def test_nothing_is_changed(loss: Any) -> None:
    model = Remembering()
    weights = [parameter.clone() for parameter in model.parameters()]
    generator = torch.get_rng_state()
    try:
        refuse_untrainable(model, loss, DATA, SGD)
    except ValueError:
        assert not isinstance(loss, Counting)
    assert int(model.calls) == 0
    assert not model.centre.any()
    assert model.last is None
    assert model.training
    assert not model.dropout.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(map(torch.equal, model.parameters(), weights))
    assert torch.equal(torch.get_rng_state(), generator)
    assert not isinstance(loss, Counting) or float(loss.count) == 0


def test_a_run_is_what_was_passed_and_not_what_the_trial_made_of_it(tmp_path: Path) -> None:
    """Else seeds would be different tasks, and a run would not be resumed with other weights."""

    def run(seed: int, rounds: int, resume: bool = False) -> None:
        simulate(
            DATA,
            initialised(Remembering, seed),
            Counting(),
            local_sgd=SGD,
            rounds=rounds,
            clients_per_round=2,
            seed=seed,
            recording=Recording(out=str(tmp_path / f"{seed}"), resume=resume, progress=False),
        )

    run(0, rounds=1)
    run(1, rounds=1)
    assert len(compare([tmp_path]).rows) == 1
    run(0, rounds=2, resume=True)


def test_it_is_tried_as_it_is_trained_even_where_no_gradients_are_wanted() -> None:
    with torch.no_grad():
        refuse_untrainable(Remembering(), cross_entropy, DATA, SGD)
        result = simulate(DATA, nn.Linear(3, 2), local_sgd=SGD, rounds=1, clients_per_round=2)
    assert result.server.round == 1


def mean_of_the_hardest(output: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(output, targets, reduction="none").topk(4).values.mean()


def apart_by_class(output: Tensor, targets: Tensor) -> Tensor:
    """Has no gradient where all of a batch are of one class."""
    classes = torch.tensor(sorted(set(targets.tolist())))
    if len(classes) < 2:
        return torch.zeros(())
    first, second = (output[targets == one].mean(0) for one in classes[:2])
    return -(first - second).square().sum()


WORDS = torch.zeros(6, 2, dtype=torch.int64)
AS_BYTES = from_tensors([((X > 0).to(torch.uint8), Y)] * 2)
SORTED = from_tensors([(X.repeat(6, 1), torch.arange(36) // 18)] * 2)


@pytest.mark.parametrize(
    ("model", "loss", "data"),
    [
        (nn.Linear(3, 1), nn.MSELoss(), from_tensors([(X, torch.zeros(6, 1))] * 2)),
        (nn.Linear(3, 5), cross_entropy, DATA),  # more outputs than classes seen
        (
            nn.Sequential(nn.Linear(3, 2), nn.Flatten(0)),
            lambda output, _: output.square().sum(),
            DATA,
        ),
        (nn.Linear(3, 2), mean_of_the_hardest, DATA),
        (nn.Linear(3, 2), apart_by_class, SORTED),
        (
            nn.Linear(3, 2),
            cross_entropy,
            FederatedDataset(
                load=AS_BYTES.load, num_clients=2, augment=lambda x, _: x.float(), num_classes=2
            ),
        ),
        (
            nn.Embedding(3, 5),  # (n, T, C), classes last
            lambda output, targets: cross_entropy(output.transpose(1, 2), targets),
            from_tensors([(WORDS, WORDS)] * 2, num_classes=5),
        ),
    ],
    ids=["regression", "wide", "flat", "hardest", "contrast", "augmented", "classes last"],
)
def test_what_can_be_trained_is_taken(
    model: nn.Module, loss: Callable[..., Tensor], data: FederatedDataset
) -> None:
    refuse_untrainable(model, loss, data, LocalSGD(lr=0.1, batch_size=8, epochs=1))


def test_a_client_that_cannot_be_loaded_is_nobodys_fault() -> None:
    def load(client: int) -> tuple[Tensor, Tensor]:
        raise FileNotFoundError(client)

    refuse_untrainable(
        nn.Linear(3, 2), cross_entropy, FederatedDataset(load=load, num_clients=2), SGD
    )


def test_one_example_will_do() -> None:
    refuse_untrainable(nn.Linear(3, 2), cross_entropy, from_tensors([(X[:1], Y[:1])]), SGD)


def test_a_loss_in_brackets_is_refused_as_training_would() -> None:
    with pytest.raises(ValueError, match=r"shape \(1,\).*\.mean\(\)"):
        refuse_untrainable(
            nn.Linear(3, 2), lambda output, y: cross_entropy(output, y).reshape(1), DATA, SGD
        )


def test_the_cause_is_kept() -> None:
    class Broken(nn.Linear):
        def forward(self, _: Tensor) -> Tensor:
            raise KeyError("no such layer")

    with pytest.raises(ValueError, match=r"Broken cannot compute.*'no such layer'") as caught:
        refuse_untrainable(Broken(3, 2), cross_entropy, DATA, SGD)
    assert isinstance(caught.value.__cause__, KeyError)
