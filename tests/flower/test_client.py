"""The helpers that a user may add to a client app."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedvarp import LocalSGD
from fedvarp.flower import LocalSteps, answer_identity
from fedvarp.flower.client import correction_record


def message(**records: ConfigRecord) -> Message:
    return Message(RecordDict({**records}), 1, "train")


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_are_corrected_and_counted(momentum: float) -> None:
    """f = sum(w): each gradient is 1, corrected by 2 to 3; without momentum w = -0.1 * 3 * 4."""
    model = nn.Linear(2, 1, bias=False)
    model.weight.data.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    correction = correction_record(ArrayRecord({"weight": torch.full((1, 2), 2.0)}))
    steps = LocalSteps(message(correction=correction), model, optimizer)
    for _ in range(4):
        optimizer.zero_grad()
        model.weight.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found = steps.metrics()
    assert (found["num-steps"], found["client-lr"]) == (4, 0.1)
    # Momentum repeats gradients: 1 + 1.5 + 1.75 + 1.875. Without it they are as many as steps.
    assert found.get("num-gradients") == (6.125 if momentum else None)
    # The normalised update is the corrected gradient, whatever the momentum.
    walk = 0.1 * found.get("num-gradients", 4)
    torch.testing.assert_close(-model.weight.data / walk, torch.full((1, 2), 3.0))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("step_decay", [1.0, 0.5])
def test_gradients_are_counted_as_in_the_simulation(momentum: float, step_decay: float) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=momentum)
    steps = LocalSteps(message(), model, optimizer)
    for _ in range(7):
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= step_decay
    found = steps.metrics()
    simulated = LocalSGD(lr=0.3, batch_size=1, steps=7, momentum=momentum, step_decay=step_decay)
    assert found["client-lr"] == 0.3
    assert found.get("num-gradients", found["num-steps"]) == pytest.approx(
        simulated.num_gradients(7), rel=1e-12
    )
    assert ("num-gradients" in found) == (momentum > 0 or step_decay < 1)


def test_a_rate_that_warms_up_from_zero_counts_from_its_first_step_that_moves() -> None:
    """Rates 0, 0.1, 0.3: no gradient of the rate 0.1, one of them, and three of them."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    steps = LocalSteps(message(), model, optimizer)
    for rate in (0.0, 0.1, 0.3):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    found = {"num-steps": 3, "client-lr": 0.1, "num-gradients": pytest.approx(4.0)}
    assert steps.metrics() == found


def test_the_proximal_term_draws_back_to_the_model_that_was_sent() -> None:
    """f = sum(w) from w = 5, ρ = 2, lr = 0.1: steps 0.1 (1 + 2 (w − 5)), each 0.8 of the last."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked = Message(RecordDict({"config": ConfigRecord({"proximal-mu": 2.0})}), 1, "train")
    steps = LocalSteps(asked, model, optimizer)
    model.weight.data.fill_(5.0)  # loaded afterwards, as some apps do
    for _ in range(3):
        optimizer.zero_grad()
        model.weight.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    walk = 0.1 + 0.08 + 0.064
    torch.testing.assert_close(model.weight.data, torch.full((1, 2), 5 - walk))
    assert steps.metrics()["num-steps"] == 3


def test_without_a_correction_steps_are_only_counted() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    steps = LocalSteps(message(), model, optimizer)
    before = model.weight.item()
    model(torch.zeros(1, 1)).sum().backward()
    optimizer.step()
    assert model.weight.item() == before
    assert steps.metrics() == {"num-steps": 1, "client-lr": 0.5}


def test_only_the_keys_that_were_named_are_told() -> None:
    app = ClientApp()
    answer_identity(app, "hospital")
    context = Context(
        run_id=1,
        node_id=1,
        node_config={"hospital": "north", "data-path": "/secret"},
        state=RecordDict(),
        run_config={},
    )
    reply = app(Message(RecordDict(), 1, "query.identity"), context)
    assert reply.content.config_records["identity"] == {"hospital": "north"}


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (torch.optim.Adam, "Adam"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "SGD"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), ""),
    ],
)
def test_steps_other_than_those_of_sgd_are_refused_where_gradients_are_needed(
    make: Any, refused: str
) -> None:
    model = nn.Linear(1, 1)
    LocalSteps(message(), model, make(model.parameters()))  # does no harm elsewhere
    asked = message(config=ConfigRecord({"needs-gradients": True}))
    if not refused:
        LocalSteps(asked, model, make(model.parameters()))
        return
    with pytest.raises(ValueError, match=f"sums of gradients, and those of {refused} are none"):
        LocalSteps(asked, model, make(model.parameters()))
