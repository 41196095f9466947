"""What a user may add to a client app."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedvarp.flower import LocalSteps, answer_identity
from fedvarp.flower.arrays import Layout, UnusableArraysError
from flower.in_process import be_the_server_app


@pytest.fixture(autouse=True)
def server_app() -> None:
    be_the_server_app()


def message(**records: ArrayRecord) -> Message:
    return Message(RecordDict({**records}), 1, "train")


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_are_corrected_and_counted(momentum: float) -> None:
    """f = sum(w): each gradient is 1, corrected by 2 to 3; without momentum w = -0.1 * 3 * 4."""
    model = nn.Linear(2, 1, bias=False)
    model.weight.data.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    correction = ArrayRecord({"weight": torch.full((1, 2), 2.0)})
    steps = LocalSteps(message(correction=correction), model, optimizer)
    for _ in range(4):
        optimizer.zero_grad()
        model.weight.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found = steps.metrics()
    assert found["num-steps"] == 4
    walk = found["num-steps"] * found["client-lr"]
    # The normalised update is the corrected gradient, whatever the momentum.
    torch.testing.assert_close(-model.weight.data / walk, torch.full((1, 2), 3.0))
    if not momentum:
        assert found["client-lr"] == pytest.approx(0.1)


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


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_go_there_and_back_whatever_their_type_and_order(dtype: str, order: str) -> None:
    numbers = np.arange(6, dtype=dtype).reshape(2, 3)
    stored = Array(np.asfortranarray(numbers) if order == "F" else numbers)
    arrays = ArrayRecord({"a": stored, "b": Array(np.array(0.5, dtype=dtype))})
    layout = Layout.of(arrays)
    vector = layout.vector(arrays)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 0.5]
    back = layout.record(vector, {})
    assert back["a"].dtype == dtype
    assert np.array_equal(back["a"].numpy(), numbers)
    assert back["b"].shape == ()
    out = torch.empty(7)
    assert layout.difference(torch.ones(7), arrays, out) == 4, "the largest absolute value"
    assert out.tolist() == [1, 0, -1, -2, -3, -4, 0.5]


def test_a_model_without_numbers_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        Layout.of(ArrayRecord({"steps": Array(np.array(1))}))
    layout = Layout.of(ArrayRecord({"a": Array(np.zeros(2, dtype=np.float32))}))
    with pytest.raises(UnusableArraysError, match="not known"):
        layout.check({"b": Array(np.zeros(2, dtype=np.float32))})


WITHOUT_FLOWER = """
import sys

class NoFlower:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "flwr":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoFlower())
import fedvarp, fedvarp.cli.app
assert not any(name.split(".")[0] == "flwr" for name in sys.modules)
try:
    import fedvarp.flower
except ImportError as error:
    print(error)
"""


def test_without_flower_the_package_imports_and_says_what_to_install() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_FLOWER], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert 'pip install "fedvarp[flower]"' in ended.stdout
