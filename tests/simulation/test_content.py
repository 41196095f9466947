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

from fedvarp import Aggregator, FedVARP, LocalSGD, MemoryTable, ServerMomentum, ServerSGD
from fedvarp.algorithms.round_updates import RoundUpdates
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


class SlowServer(ServerSGD):
    """Inherits a `describe()` that knows nothing of its own field."""

    def __init__(self, patience: int) -> None:
        super().__init__(lr=1.0)
        self.patience = patience


class DescribedFurther(Described):
    def __init__(self, extra: int) -> None:
        super().__init__(3)
        del self.lock
        self.extra = extra


class Wrapped(Aggregator):
    """An aggregator around one of the package's."""

    def __init__(self, beta: float) -> None:
        self.inner = FedVARP(MemoryTable(4, 2))
        self.inner.beta = beta  # type: ignore[misc]

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        return self.inner.aggregate(updates)


class HasCode:
    """Its attributes have names that descriptions of classes have as well."""

    def __init__(self) -> None:
        self.kind, self.code = "kind", "code"


class HasOtherCode(HasCode):
    def more(self) -> str:
        return self.kind + self.code


def hooked(factor: float) -> nn.Module:
    module = nn.Identity()
    module.register_forward_hook(lambda module, inputs, output: factor * output)
    return module


def two_methods(first: float, second: float) -> type:
    """Methods whose closures have different values under one name."""

    def scaling(factor: float) -> Callable[[Any, float], float]:
        return lambda self, x: factor * x

    members = {"one": scaling(first), "other": scaling(second), "__module__": __name__}
    return type("TwoMethods", (), members)


def with_member(member: object) -> type:
    return type("WithMember", (), {"member": member, "__module__": __name__})


def with_attribute(value: float) -> Callable[[float], float]:
    def function(x: float) -> float:
        return x

    function.scale = value  # type: ignore[attr-defined]
    return function


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
    (lambda: SlowServer(3), lambda: SlowServer(6)),
    (lambda: DescribedFurther(3), lambda: DescribedFurther(6)),
    (lambda: Wrapped(0.3), lambda: Wrapped(0.7)),
    (lambda: HasCode(), lambda: HasOtherCode()),
    (lambda: hooked(1.0), lambda: hooked(2.0)),
    (lambda: two_methods(1.0, 2.0), lambda: two_methods(3.0, 2.0)),
    (lambda: two_methods(1.0, 2.0), lambda: two_methods(1.0, 3.0)),
    (lambda: with_member(functools.partial(round, ndigits=1)),
     lambda: with_member(functools.partial(round, ndigits=2))),
    (lambda: with_member(functools.partialmethod(Fixed.cohort, 1)),
     lambda: with_member(functools.partialmethod(Fixed.cohort, 2))),
    (lambda: with_attribute(1.0), lambda: with_attribute(2.0)),
    (lambda: {0: 1}.get, lambda: {0: 2}.get),
    (lambda: torch.zeros(2), lambda: torch.zeros(2, dtype=torch.float64)),
    (lambda: {1: 5, "1": 2}, lambda: {1: 6, "1": 2}),
]  # fmt: skip


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


def test_the_mode_of_a_loss_is_part_of_it_and_that_of_a_model_is_not() -> None:
    training, evaluating = nn.Dropout(), nn.Dropout().eval()
    assert content(training, "loss") != content(evaluating, "loss")
    assert content(training, "model", initial_weights=False) == content(
        evaluating, "model", initial_weights=False
    )


IMPORTS = """
def by_name(x):
    import own_constants
    return x * own_constants.SCALE
def from_it(x):
    from own_constants import SCALE
    return x * SCALE
def from_package(x):
    from own_package import inner
    return x * inner.SCALE
def by_dots(x):
    import own_package.inner
    return x * own_package.inner.SCALE
def of_closure():
    import own_constants
    return lambda x: x * own_constants.SCALE
from_closure = of_closure()
def if_there(x):
    try:
        import not_installed_anywhere
    except ImportError:
        return x
"""


@pytest.mark.parametrize("name", ["by_name", "from_it", "from_package", "by_dots", "from_closure"])
def test_what_a_function_imports_is_part_of_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_constants.py").write_text("SCALE = 1.0")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()
    (tmp_path / "own_package" / "inner.py").write_text("SCALE = 1.0")
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(IMPORTS, space)
    before = content(space[name], "loss")
    assert 1.0 in before["with"].values()
    module = "own_package.inner" if "package" in name or "dots" in name else "own_constants"
    monkeypatch.setattr(sys.modules[module], "SCALE", 2.0)
    assert content(space[name], "loss") != before
    assert content(space["if_there"], "loss")["kind"] == "if_there"
    for loaded in [each for each in sys.modules if each.startswith("own_")]:
        monkeypatch.delitem(sys.modules, loaded)


LOCK = threading.Lock()


def uses_lock(x: float) -> float:
    return 0.0 if LOCK.locked() else x


def uses_any_name(x: float) -> float:
    return x * float(globals()["SCALE"])


class SaysNothing:
    def describe(self) -> None:
        pass


class UsesLock:
    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, x: float) -> float:
        self.seen.append(uses_lock(x))
        return x

    def describe(self) -> str:
        return "mine"


def test_what_is_named_needs_no_description() -> None:
    loss = UsesLock()
    before = content(loss, "loss")
    assert before["is"] == "mine"
    loss(1.0)
    assert content(loss, "loss") == before

    def named(x: float) -> float:
        return uses_lock(uses_any_name(x))

    named.describe = lambda: {"size": 3}  # type: ignore[attr-defined]
    assert content(named, "loss")["size"] == 3


def test_whole_numbers_stay_whole() -> None:
    assert repr(content([0, 1, 1], "clusters")) == "[0, 1, 1]"
    assert repr(content(np.array([0, 1, 1]), "clusters")) == "[0, 1, 1]"


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
        (lambda: uses_lock, r"loss\.LOCK is an object of lock"),
        (lambda: uses_any_name, r"loss\.globals can read whatever"),
        (lambda: SaysNothing(), r"loss has a describe\(\) that gives None"),
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
