"""Metrics of one's own: what they see, what is recorded, and what is said of wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvarp import Evaluation, LocalSGD, Recording, simulate
from fedvarp.clients import MetricError
from fedvarp.data import digits
from fedvarp.errors import FedvarpError
from fedvarp.models import LogisticRegression, initialised
from fedvarp.runs import RunError

DIGITS = digits(num_clients=20)


def top2(outputs: Tensor, targets: Tensor) -> Tensor:
    """A share that no mean over batches could be exact about, were they unequal."""
    return (outputs.topk(2, dim=1).indices == targets[:, None]).any(1).double().mean()


def top3(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.topk(3, dim=1).indices == targets[:, None]).any(1).double().mean())


def failing(outputs: Tensor, targets: Tensor) -> float:
    raise RuntimeError(f"{len(targets)} are too many")


def trained(metrics: dict[str, Any] | None, rounds: int = 2, **settings: Any) -> Any:
    return simulate(
        DIGITS,
        initialised(lambda: LogisticRegression(64, 10), seed=0),
        local_sgd=LocalSGD(lr=0.1, batch_size=8, epochs=1),
        rounds=rounds,
        clients_per_round=2,
        evaluation=Evaluation(
            every=1, metrics=metrics, per_client=settings.pop("per_client", None)
        ),
        **settings,
    )


def test_a_metric_sees_all_test_examples_at_once() -> None:
    seen: list[tuple[int, ...]] = []

    def look(outputs: Tensor, targets: Tensor) -> float:
        seen.append((*outputs.shape, len(targets)))
        return float(top2(outputs, targets))

    result = trained({"look": look}, rounds=1)
    assert seen == [(197, 10, 197)] * 2, "once an evaluation, and not at the clients"
    assert DIGITS.test is not None
    x, y = DIGITS.test
    assert result.final("test_look") == float(top2(result.model(x), y))


@pytest.mark.parametrize("trainer", ["sequential", "parallel", "vectorised"])
def test_metrics_leave_all_else_as_it_is_whoever_trains(trainer: str) -> None:
    without = trained(None, trainer=trainer)
    with_them = trained({"top2": top2}, trainer=trainer, per_client="summary")
    plain = trained({"top2": top2}, per_client="summary")
    for old, new in zip(without.metrics, with_them.metrics, strict=True):
        assert {name: new[name] for name in old} == old
    if trainer == "parallel":
        assert with_them.metrics == plain.metrics
    assert {"test_top2", "train_top2_worst_decile", "train_accuracy_spread", "by_cluster"} <= set(
        with_them.metrics[-1]
    )


@pytest.mark.parametrize("trainer", ["sequential", "parallel"])
@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (failing, "'mine' failed on the test examples: RuntimeError: 197 are too many"),
        (lambda outputs, targets: None, "'mine' gave None .* no number"),
        (lambda outputs, targets: "0.5", "'mine' gave '0.5' .* no number"),
        (lambda outputs, targets: outputs, "'mine' gave .* no number"),
    ],
)
def test_a_wrong_metric_is_named_and_leaves_nothing_behind(
    metric: Callable[..., Any], said: str, trainer: str, tmp_path: Path
) -> None:
    with pytest.raises(FedvarpError, match=said) as caught:
        trained({"mine": metric}, trainer=trainer, recording=str(tmp_path / "run"))
    assert "Traceback" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_tensor_of_outputs_cannot_be_measured() -> None:
    class Pair(LogisticRegression):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    data = digits(num_clients=5)
    object.__setattr__(data, "num_classes", None)  # no accuracy, which says so itself
    with pytest.raises(MetricError, match=r"tuple.*one tensor"):
        simulate(
            data,
            Pair(64, 10),
            lambda outputs, y: torch.nn.functional.cross_entropy(outputs[0], y),
            local_sgd=LocalSGD(lr=0.1, batch_size=8, epochs=1),
            rounds=1,
            clients_per_round=2,
            evaluation=Evaluation(metrics={"top2": top2}),
        )


def test_a_resumed_run_measures_by_the_same_code(tmp_path: Path) -> None:
    def run(metric: Callable[..., Any], rounds: int, folder: str = "run") -> Any:
        recording = Recording(out=str(tmp_path / folder), resume=True)
        return trained({"top": metric}, rounds=rounds, recording=recording)

    run(top2, 1)
    with pytest.raises(RunError, match=r"metrics\.top"):
        run(top3, 2)
    assert run(top2, 2).metrics == run(top2, 2, folder="whole").metrics


def test_metrics_need_examples() -> None:
    data = digits(num_clients=5)
    object.__setattr__(data, "test", None)
    how: dict[str, Any] = {"local_sgd": LocalSGD(lr=0.1, batch_size=8, epochs=1), "rounds": 1}
    model = LogisticRegression(64, 10)
    with pytest.raises(ValueError, match=r"test examples.*per_client"):
        simulate(
            data, model, clients_per_round=2, evaluation=Evaluation(metrics={"top": top2}), **how
        )
    none_of_them = Evaluation(per_client="all", num_train_clients=0)
    with pytest.raises(ValueError, match="num_train_clients = 0"):
        simulate(data, model, clients_per_round=2, evaluation=none_of_them, **how)
