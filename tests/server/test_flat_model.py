"""Modules as vectors: views, tied and frozen parameters, buffers, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedvarp import FlatModel
from fedvarp.server.flat_model import average_buffers


class Tied(nn.Module):
    """An embedding whose weight is the output layer's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(self.embedding(x))
        return logits


def small_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.GroupNorm(2, 6), nn.Linear(6, 2))


def test_there_and_back_again() -> None:
    module = small_network()
    model = FlatModel(module)
    assert model.dim == sum(p.numel() for p in module.parameters())
    w = model.vector()
    x = torch.randn(3, 4)
    before = module(x)
    model.bind(torch.zeros(model.dim))
    assert not torch.equal(module(x), before)
    model.bind(w)
    assert torch.equal(module(x), before)
    assert torch.equal(model.vector(), w)


def test_a_bound_model_is_a_view() -> None:
    model = FlatModel(small_network())
    w = model.vector()
    model.bind(w)
    start = w.data_ptr()
    for name, parameter in model.module.named_parameters():
        inside = start <= parameter.data_ptr() < start + w.nbytes
        assert inside, name
    w.fill_(3.0)
    assert all(bool((p == 3.0).all()) for p in model.module.parameters())


def test_a_step_on_the_vector_is_a_step_of_torchs_sgd() -> None:
    """Bit for bit: the same gradients, the same arithmetic."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    module = small_network()
    twin = small_network()
    twin.load_state_dict(module.state_dict())
    model = FlatModel(module)
    w, gradient = model.vector(), torch.zeros(model.dim)
    model.bind(w, gradient)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(5):
        model.backward(nn.functional.cross_entropy(module(x), y))
        w.add_(gradient, alpha=-0.1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert torch.equal(w, FlatModel(twin).vector())


def test_the_gradient_of_unused_and_of_sparse_parameters_is_dense() -> None:
    """As `loss.backward()` on zeroed gradients gives it."""
    module = nn.ModuleDict({"used": nn.Embedding(4, 2, sparse=True), "unused": nn.Linear(2, 1)})
    model = FlatModel(module)
    gradient = torch.full((model.dim,), torch.nan)
    model.bind(model.vector(), gradient)
    model.backward(module["used"](torch.tensor([1, 1, 3])).sum())
    assert gradient.tolist() == [0, 0, 2, 2, 0, 0, 1, 1, 0, 0, 0]


def test_tied_parameters_take_their_place_once_and_stay_tied() -> None:
    model = FlatModel(Tied())
    assert model.dim == 15
    model.bind(torch.arange(15.0))
    module = model.module
    assert isinstance(module, Tied)
    assert module.output.weight.data_ptr() == module.embedding.weight.data_ptr()
    state = model.state_dict(torch.ones(15))
    assert torch.equal(state["output.weight"], torch.ones(5, 3))
    assert torch.equal(state["embedding.weight"], torch.ones(5, 3))


def test_frozen_parameters_stay_behind() -> None:
    module = small_network()
    first = module[0]
    assert isinstance(first, nn.Linear)
    first.requires_grad_(False)
    frozen = first.weight.clone()
    model = FlatModel(module)
    assert model.dim == 2 * 6 + 6 * 2 + 2
    assert model.names == ["2.weight", "2.bias", "3.weight", "3.bias"]
    model.bind(torch.zeros(model.dim))
    assert torch.equal(first.weight, frozen)
    assert torch.equal(model.state_dict(torch.zeros(model.dim))["0.weight"], frozen)


def test_the_state_dict_loads_into_a_module_that_never_heard_of_us() -> None:
    model = FlatModel(small_network())
    w = torch.randn(model.dim)
    plain = small_network()
    plain.load_state_dict(model.state_dict(w))
    assert torch.equal(FlatModel(plain).vector(), w)


def test_what_leaves_the_model_is_a_copy() -> None:
    model = FlatModel(nn.Linear(2, 1, bias=False))
    model.vector().fill_(7.0)
    assert not bool((model.vector() == 7.0).any())
    w = torch.ones(2)
    state = model.state_dict(w)
    w.zero_()
    assert bool((state["weight"] == 1.0).all())


def test_unflatten_gives_views_by_name() -> None:
    model = FlatModel(nn.Linear(2, 1))
    w = torch.tensor([1.0, 2.0, 3.0])
    parts = model.unflatten(w)
    assert parts["weight"].tolist() == [[1.0, 2.0]]
    parts["bias"].zero_()
    assert w[2] == 0


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.BatchNorm1d(6), "BatchNorm1d"), (nn.SyncBatchNorm(6), "SyncBatchNorm")],
)
def test_batch_norm_is_refused_with_its_name_and_the_remedy(layer: nn.Module, name: str) -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Sequential(layer))
    with pytest.raises(ValueError, match=rf"'1\.0' is {name}.*nn\.GroupNorm\(2, 6\)"):
        FlatModel(module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Tanh(), "no trainable parameter"),
        (nn.Linear(2, 2).double(), "'weight' is torch.float64"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
    ],
)
def test_modules_without_a_float32_vector_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlatModel(module)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_are_refused_until_they_have_shapes() -> None:
    with pytest.raises(ValueError, match="Run one batch"):
        FlatModel(nn.LazyLinear(3))


@pytest.mark.parametrize(
    "vector",
    [torch.zeros(3), torch.zeros(44).double(), torch.zeros(88)[::2], torch.zeros(44, 1)],
)
def test_a_vector_that_does_not_fit_is_refused(vector: Tensor) -> None:
    model = FlatModel(nn.Linear(10, 4))
    before = model.vector()
    with pytest.raises(ValueError, match="contiguous float32 vector of 44 numbers"):
        model.bind(vector)
    assert torch.equal(model.vector(), before)


class Counting(nn.Module):
    """A float statistic, a step counter and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("statistic", torch.tensor([1.5]))
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("seen", torch.tensor(False))


def test_buffers_are_kept_beside_the_vector() -> None:
    model = FlatModel(Counting())
    assert model.dim == 2
    buffers = model.buffers()
    assert set(buffers) == {"statistic", "steps", "seen"}
    buffers["steps"] += 1
    assert int(model.buffers()["steps"]) == 7
    model.load_buffers(buffers)
    assert int(model.buffers()["steps"]) == 8
    with pytest.raises(ValueError, match="'statistic' has shape"):
        model.load_buffers(buffers | {"statistic": torch.tensor(0.0)})
    with pytest.raises(ValueError, match="seen"):
        model.load_buffers({"statistic": torch.zeros(1), "steps": torch.tensor(1)})


def test_float_buffers_are_averaged_and_counters_take_the_maximum() -> None:
    replies = [
        {"statistic": torch.tensor([x]), "steps": torch.tensor(s), "seen": torch.tensor(f)}
        for x, s, f in [(1.0, 3, False), (2.0, 9, True), (6.0, 4, False)]
    ]
    merged = average_buffers(replies)
    assert merged["statistic"].item() == 3.0
    assert merged["steps"].item() == 9
    assert merged["steps"].dtype == torch.int64
    assert merged["seen"].item() is True
    assert average_buffers(replies, weights=[1.0, 1.0, 0.0])["statistic"].item() == 1.5
    for wrong in ([1.0], [0.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match="3 replies need as many weights"):
            average_buffers(replies, weights=wrong)
