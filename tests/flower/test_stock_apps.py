"""Flower's own apps with one import changed: the same numbers where they should be the same."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

from fedvarp.flower import FedAvg, FedVARP
from flower import stock_apps as apps
from flower.in_process import InProcessGrid

CLIENTS: dict[str, Any] = {
    "numpy": (apps.numpy_app, apps.numpy_model),
    "sklearn": (apps.sklearn_app, apps.sklearn_model),
    "pytorch": (apps.torch_app, apps.torch_model),
}


def a_grid(client: str) -> InProcessGrid:
    grid = InProcessGrid(CLIENTS[client][0]())
    for number in range(apps.NUM_CLIENTS):
        grid.connect(1000 + number, {"partition-id": number, "num-partitions": apps.NUM_CLIENTS})
    return grid


@pytest.mark.parametrize("ours", [FedAvg, FedVARP])
@pytest.mark.parametrize(
    ("client", "server"),
    [
        ("numpy", apps.plain),
        ("sklearn", apps.plain),
        ("pytorch", apps.plain),
        ("pytorch", apps.advanced),
        ("pytorch", apps.tuning),
    ],
)
def test_with_everybody_taking_part_the_model_is_that_of_flowers_fedavg(
    client: str, server: Any, ours: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """All settings are those of Flower; models differ by rounding: theirs is done in float64."""
    start = CLIENTS[client][1]()
    theirs = server(FlowersFedAvg, a_grid(client), start, 4)
    found = server(ours, a_grid(client), start, 4)
    assert apps.difference(theirs, found, start) < 1e-5
    assert "clipped" not in caplog.text


@pytest.mark.slow
def test_with_few_clients_a_round_fedvarp_is_ahead() -> None:
    """Two of six clients a round, each with other digits: FedAvg goes where they pull it."""
    losses: dict[str, float] = {}
    compared: list[tuple[str, Any, dict[str, Any]]] = [
        ("Flower's FedAvg", FlowersFedAvg, {"fraction_train": 0.34}),
        ("FedVARP", FedVARP, {"clients_per_round": 2, "num_clients": 6, "seed": 0}),
    ]
    for name, kind, more in compared:
        seen: dict[int, float] = {}

        def look(round: int, arrays: ArrayRecord, seen: dict[int, float] = seen) -> MetricRecord:
            seen[round] = apps.loss_on_all(arrays) if round > 130 else 0.0
            return MetricRecord({"loss": seen[round]})

        strategy = kind(fraction_evaluate=0.0, **more)
        strategy.start(
            a_grid("pytorch"),
            apps.torch_model(),
            num_rounds=150,
            train_config=ConfigRecord({"lr": 0.1}),
            evaluate_fn=look,
        )
        losses[name] = sum(seen[t] for t in range(131, 151)) / 20
    assert losses["FedVARP"] < losses["Flower's FedAvg"], losses
