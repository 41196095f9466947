"""How a result shows itself: at a prompt, in a notebook, and where a metric is asked for."""

from __future__ import annotations

import builtins
import re
from typing import Any

import pytest
import torch
from torch import nn

import fedvarp
from fedvarp import SimulationResult
from fedvarp.data import from_tensors
from fedvarp.models import initialised
from small_federation import run


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return run(algorithm="fedavg")


def test_the_repr_is_a_few_lines(result: SimulationResult) -> None:
    text = repr(result)
    assert len(text) < 300
    assert "FedAvg after 7 rounds: all rounds are done" in text
    assert f"train_loss {result.final('train_loss'):.4g}" in text


def test_a_notebook_shows_a_table_and_a_picture(result: SimulationResult) -> None:
    html = result._repr_html_()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", html)
    losses = [record["train_loss"] for record in result.metrics if "train_loss" in record]
    expected = [f"{value:.4g}" for value in (losses[0], min(losses), losses[-1])]
    assert cells[cells.index("train_loss") + 1 :][:3] == expected
    assert '<img alt="curves"' in html
    assert len(html) < 200_000


def test_without_matplotlib_there_is_the_table(
    result: SimulationResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    html = result._repr_html_()
    assert "train_loss" in html
    assert "<img" not in html


def test_a_metric_that_is_not_there_is_answered_with_those_that_are(
    result: SimulationResult,
) -> None:
    with pytest.raises(KeyError, match=r"'train_los'.*Did you mean 'train_loss'.*There are ") as no:
        result.final("train_los")
    assert "local_loss" in str(no.value)
    with pytest.raises(KeyError, match="No round recorded 'f1'"):
        result.final("f1")


def test_an_accuracy_that_is_not_there_is_answered_with_what_it_needs() -> None:
    x, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 3)
    data = from_tensors([(x, y)], test=(x, y))  # nobody says how many classes there are
    result = fedvarp.simulate(
        data,
        initialised(lambda: nn.Linear(3, 2), seed=0),
        local_sgd=fedvarp.LocalSGD(lr=0.1, batch_size=6, epochs=1),
        rounds=1,
        clients_per_round=1,
    )
    with pytest.raises(KeyError, match=r"'test_accuracy'.*num_classes") as no:
        result.final("test_accuracy")
    assert "bytes_up'?" not in str(no.value)


def test_nothing_evaluated_is_said() -> None:
    empty = SimulationResult(run(rounds=1).server, run(rounds=1).model, [{"round": 0}], "callback")
    assert "a callback ended it" in repr(empty)
    assert "nothing was evaluated" in repr(empty)
    assert "<img" not in empty._repr_html_()
