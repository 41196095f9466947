"""Descriptions of what is passed: equal for equal content, in every process, and only then."""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import json
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import FedVARP, LocalSGD, ServerMomentum, ServerSGD
from fedvarp.clients import UniformSampler
from fedvarp.data import digits, from_tensors
from fedvarp.runs.identity import without_none
from fedvarp.settings.problems import SettingsError
from fedvarp.simulation.content import content

SCALE = 1.0  # a global that functions below read


def scaled(output: Tensor, targets: Tensor, power: float = 1.0) -> Tensor:
    """A loss with a default, a global and a constant."""
    return SCALE * cross_entropy(output, targets) ** power


def times(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, targets: factor * cross_entropy(output, targets)


def recursive(n: int) -> int:
    return 1 if n == 0 else n * recursive(n - 1)


class Fixed:
    """A sampler of one's own."""

    where: object = None

    def __init__(self, size: int) -> None:
        self._size = size

    def cohort(self, round: int) -> int:
        return round + self._size


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


@dataclasses.dataclass
class Parameters:
    size: int
    names: tuple[str, ...] = ()


class Described:
    """Says itself what it is, whatever else it holds."""

    def __init__(self, size: int) -> None:
        self.lock, self.size = threading.Lock(), size

    def describe(self) -> dict[str, Any]:
        return {"size": self.size}


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def with_weight(*values: float) -> nn.Module:
    return nn.CrossEntropyLoss(weight=torch.tensor(values))


def halved(beta: float) -> type:
    return type("Halved", (FedVARP,), {"beta": beta, "__module__": __name__})


def rates(lr: float, schedule: Any = "constant") -> LocalSGD:
    return LocalSGD(lr=lr, batch_size=1, epochs=1, schedule=schedule)


def inner_constant(n: int) -> Callable[[int], int]:
    """Functions that differ in a constant of their code alone."""
    space: dict[str, Any] = {"__name__": __name__}
    exec(f"def f(x):\n    return x + {n}", space)
    return space["f"]  # type: ignore[no-any-return]


DIFFERENT: list[tuple[Callable[[], object], Callable[[], object]]] = [
    (lambda: 0.1, lambda: 0.2),
    (lambda: "a", lambda: "b"),
    (lambda: float("nan"), lambda: 0.0),
    (lambda: torch.arange(100), lambda: torch.arange(100).flip(0)),
    (lambda: torch.zeros(100), lambda: torch.zeros(10, 10)),
    (lambda: np.arange(3), lambda: np.arange(4)),
    (lambda: {1, 2}, lambda: {1, 3}),
    (lambda: b"a", lambda: b"b"),
    (lambda: {"a": [1, None]}, lambda: {"a": [1, 2]}),
    (lambda: Path("a"), lambda: Path("b")),
    (lambda: Colour.RED, lambda: Colour.BLUE),
    (lambda: torch.float32, lambda: torch.float64),
    (lambda: rates(0.1), lambda: rates(0.2)),
    (lambda: rates(0.1, lambda t: 1.0), lambda: rates(0.1, lambda t: 0.5)),
    (lambda: ServerSGD(1.0), lambda: ServerMomentum()),
    (lambda: UniformSampler(8, 3, 0), lambda: UniformSampler(8, 6, 0)),
    (lambda: nn.CrossEntropyLoss(), lambda: nn.CrossEntropyLoss(label_smoothing=0.5)),
    (lambda: with_weight(1, 2), lambda: with_weight(1, 3)),
    (lambda: nn.Linear(3, 2), lambda: nn.Linear(3, 2, bias=False)),
    (lambda: nn.Sequential(nn.ReLU()), lambda: nn.Sequential(nn.Tanh())),
    (lambda: cross_entropy, lambda: nn.functional.nll_loss),
    (lambda: times(1.0), lambda: times(0.1)),
    (lambda: inner_constant(1), lambda: inner_constant(2)),
    (lambda: scaled, lambda: functools.partial(scaled, power=2.0)),
    (lambda: functools.partial(scaled, power=1.0), lambda: functools.partial(scaled, power=2.0)),
    (lambda: torch.func.vmap(times(1.0)), lambda: torch.func.vmap(times(2.0))),
    (lambda: functools.cache(times(1.0)), lambda: functools.cache(times(2.0))),
    (lambda: Fixed(3), lambda: Fixed(6)),
    (lambda: Fixed(3).cohort, lambda: Fixed(6).cohort),
    (lambda: Slotted(3), lambda: Slotted(6)),
    (lambda: Parameters(3), lambda: Parameters(6)),
    (lambda: Parameters(3, ("a",)), lambda: Parameters(3, ("b",))),
    (lambda: Described(3), lambda: Described(6)),
    (lambda: halved(0.5), lambda: halved(0.3)),
    (lambda: torch.Generator().manual_seed(1), lambda: torch.Generator().manual_seed(2)),
    (lambda: np.random.default_rng(1), lambda: np.random.default_rng(2)),
    (lambda: digits(), lambda: digits(seed=1)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_equal_content_is_described_alike_and_other_content_otherwise(
    one: Callable[[], object], other: Callable[[], object]
) -> None:
    def told(make: Callable[[], object]) -> Any:
        return content(make(), "it", initial_weights=False)

    assert told(one) == told(one)
    assert told(one) != told(other)
    kept = without_none({"it": told(one)})
    assert tomllib.loads(tomli_w.dumps(kept)) == kept
    json.dumps(kept)


def test_plain_fields_stay_readable() -> None:
    assert content(times(0.1), "loss")["with"] == {"factor": 0.1}
    assert content(scaled, "loss")["with"] == {"power": 1.0, "SCALE": 1.0}
    assert content(Fixed(3), "sampler")["_size"] == 3
    assert content(halved(0.3), "aggregator")["beta"] == 0.3
    assert content(np.random.default_rng(7), "rng")["seed"] == 7
    assert content(torch.Generator().manual_seed(7), "rng") == {
        "kind": "torch._C.Generator",
        "seed": 7,
    }


def test_a_global_that_a_function_reads_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(scaled, "loss")
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    after = content(scaled, "loss")
    assert after["with"]["SCALE"] == 2.0
    assert after["code"] == before["code"]


def test_where_code_stands_and_what_is_said_of_it_make_no_difference() -> None:
    def made(text: str) -> Any:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(text, space)
        return content(space["f"], "loss")

    plain = made("def f(x):\n    return x + 1")
    assert made("# moved\n\n\ndef f(x):\n    'Says what.'\n    # why\n    return x + 1") == plain
    assert made("def f(x):\n    return x + 2") != plain


def test_only_trainable_weights_may_be_left_out() -> None:
    torch.manual_seed(0)
    one, other = nn.Linear(30, 3), nn.Linear(30, 3)
    assert content(one, "model", initial_weights=False) == content(
        other, "model", initial_weights=False
    )
    assert content(one, "teacher") != content(other, "teacher")
    one.requires_grad_(False)
    other.requires_grad_(False)
    assert content(one, "model", initial_weights=False) != content(
        other, "model", initial_weights=False
    )


def test_drawing_from_a_generator_changes_it() -> None:
    generator = torch.Generator().manual_seed(1)
    before = content(generator, "rng")
    torch.rand(1, generator=generator)
    assert content(generator, "rng") != before


def test_what_holds_itself_is_described_all_the_same() -> None:
    ring = Fixed(3)
    ring.where = ring
    assert content(ring, "sampler")["_size"] == 3
    assert content(recursive, "loss")["kind"] == "recursive"


def test_a_large_module_is_summed_up() -> None:
    layers = [nn.Linear(2, 2) for _ in range(60)]
    told = content(nn.Sequential(*layers), "model", initial_weights=False)
    assert len(json.dumps(told)) < 4000
    layers[30] = nn.Linear(2, 2, bias=False)
    assert content(nn.Sequential(*layers), "model", initial_weights=False) != told


@pytest.mark.parametrize(
    ("thing", "what"),
    [
        (lambda: threading.Lock(), "lock"),
        (lambda: (i for i in range(3)), "generator"),
        (lambda: io.FileIO(0, closefd=False), "FileIO"),
        (
            lambda: functools.partial(print, threading.Lock()),
            r"loss\.with\.0 is an object of lock",
        ),
    ],
)
def test_what_cannot_be_described_is_refused_with_the_way_out(
    thing: Callable[[], object], what: str
) -> None:
    with pytest.raises(SettingsError, match=rf"(?s){what}.*describe\(\)") as refusal:
        content(thing(), "loss")
    assert str(refusal.value).startswith("loss")


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(NESTED)
def test_a_description_survives_a_file(value: object) -> None:
    told = without_none({"it": content(value, "it")})
    assert tomllib.loads(tomli_w.dumps(told)) == told


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_closures_are_the_same_if_and_only_if_their_values_are(one: float, other: float) -> None:
    same = content(times(one), "loss") == content(times(other), "loss")
    assert same == (one == other)


IN_ANOTHER_PROCESS = """
import json, functools, torch
import torch.nn.functional as F
from torch import nn
from fedvarp import FedVARP, LocalSGD
from fedvarp.simulation.content import content
SCALE, NAMES = 0.3, {"b", "a", "c"}
class Mine(FedVARP):
    "An algorithm."
    beta = 0.3
    def aggregate(self, updates):
        return SCALE * super().aggregate(updates) if "a" in {"x", "a"} else NAMES
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(3, 2), lambda x: F.relu(x)
    def forward(self, x):
        return self.act(self.layer(x))
def closed(c):
    return lambda x, y: c * F.cross_entropy(x, y)
things = [Mine, Net(), closed(0.5), functools.partial(closed(2), 1), NAMES, object(),
          LocalSGD(lr=0.1, batch_size=1, epochs=1, schedule=lambda t: 0.9**t)]
print(json.dumps([content(thing, "it", initial_weights=False) for thing in things]))
"""


def test_two_processes_say_the_same() -> None:
    def told(seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    first = told("1")
    assert first == told("2")
    assert "0x" not in first


def test_a_data_set_says_what_is_in_it() -> None:
    def data(value: float, augment: Any = None) -> Any:
        examples = [(torch.full((2, 3), value), torch.zeros(2, dtype=torch.int64))] * 4
        return content(dataclasses.replace(from_tensors(examples), augment=augment), "dataset")

    assert data(1.0) == data(1.0)
    assert data(1.0)["fingerprint"] != data(2.0)["fingerprint"]
    assert data(1.0, times(1.0)) != data(1.0, times(2.0))
