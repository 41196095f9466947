"""Recorded operations: the same bits as the function itself, and the function where that fails."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from fedvarp import stream
from fedvarp.trainers.replay import Function, Replay, Tensors


@dataclass
class Counted:
    """A function of tensors that knows how often Python has run it."""

    calls: int = 0
    scale: float = 1.0
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensors:
        self.calls += 1
        weights = torch.ones_like(x).mul(3).sum(1, keepdim=True)  # depends on the shape alone
        y = (x * weights * self.scale).view(x.shape)
        return (y if mask is None else y * mask, x.exp() * 1)


def inputs(rows: int = 2) -> Iterator[Tensor]:
    draw = stream(0, "replayed")
    while True:
        yield torch.randn(rows, 3, generator=draw)


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert all(map(torch.equal, found, expected))
    assert len(found) == len(expected)


def test_python_runs_a_function_four_times_and_never_again() -> None:
    """Twice as it is, once to record it and once beside the first replay, to check it."""
    counted, oracle, drawn = Counted(), Counted(), inputs()
    replay = Replay(counted)
    for call in range(8):
        x = next(drawn)
        assert_same(replay(x), oracle(x))
        assert counted.calls == min(call + 1, 4)


def test_each_shape_and_state_has_a_recording_of_its_own() -> None:
    counted, oracle = Counted(), Counted()
    replay = Replay(counted)
    for _ in range(6):
        for rows in (2, 5):
            for scale in (1.0, 2.0):
                x = next(inputs(rows))
                counted.scale = oracle.scale = scale
                mask = torch.tensor([True, False, True])
                assert_same(replay(x, state=scale), oracle(x))
                assert_same(replay(x, mask, state=scale), oracle(x, mask))
                assert_same(replay(x.mT.contiguous().mT, state=scale), oracle(x))
    assert counted.calls == 4 * 12
    assert not replay.gave_up


def gradients(module: nn.Module, local: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensors:
    parameters = {name: part.detach().requires_grad_() for name, part in local.items()}
    out = vmap(lambda p, x: functional_call(module, p, (x,)))(parameters, x)
    losses = cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none")
    return torch.autograd.grad(losses.sum(), list(parameters.values()))


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten()),
    ],
    ids=["dense", "convolution"],
)
def test_gradients_under_vmap_are_the_same(
    module: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    """To float tolerance: gradients of weights are multiplied the other way round."""
    names, parts = zip(*module.named_parameters(), strict=True)
    outputs = module(torch.zeros(1, 6)).shape[1]
    replay = Replay(
        lambda x, y, *parts: gradients(module, dict(zip(names, parts, strict=True)), x, y)
    )
    draw = stream(0, "batches")
    for _ in range(6):
        x, y = torch.randn(2, 5, 6, generator=draw), torch.randint(outputs, (2, 5), generator=draw)
        local = [torch.randn(2, *part.shape, generator=draw) for part in parts]
        expected = gradients(module, dict(zip(names, local, strict=True)), x, y)
        torch.testing.assert_close(replay(x, y, *local), expected)
    assert not caplog.messages  # it did not give up


def branching(x: Tensor) -> Tensors:
    return (x if x.sum() > 0 else -x,)


def selecting(x: Tensor) -> Tensors:
    return (x[x > 0].sum(),)


def noisy(x: Tensor) -> Tensors:
    return (x + torch.rand_like(x) * 0,)


@dataclass
class Growing:
    calls: int = 0

    def __call__(self, x: Tensor) -> Tensors:
        self.calls += 1
        return (x * self.calls,)


@pytest.mark.parametrize("function", [branching, selecting, noisy, Growing()])
def test_what_is_not_the_same_again_is_called_as_it_is(
    function: object, caplog: pytest.LogCaptureFixture
) -> None:
    replay, drawn = Replay(function), inputs()  # type: ignore[arg-type]
    oracle = Growing() if isinstance(function, Growing) else function
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            x = next(drawn)
            assert_same(replay(x), oracle(x))  # type: ignore[operator]
    (told,) = caplog.messages
    assert "cannot be recorded and replayed" in told
    assert "figures are the same" in told


def test_a_recording_that_fails_costs_nothing_but_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object, inputs: object) -> Tensors:
        raise RuntimeError("no such kernel\nat line 7")

    monkeypatch.setattr("fedvarp.trainers.replay._Recording.replayed", fails)
    replay, drawn = Replay(Counted()), inputs()
    for _ in range(6):
        x = next(drawn)
        assert_same(replay(x), Counted()(x))
    (told,) = caplog.messages
    assert "no such kernel)" in told


def test_what_would_keep_too_much_memory_is_called_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted, oracle = Counted(), Counted()
    replay = Replay(counted, most_bytes=500)  # between recordings of 2 and of 50 rows
    for _ in range(8):
        for rows in (2, 50):
            x = next(inputs(rows))
            assert_same(replay(x), oracle(x))
    assert counted.calls == 4 + 9  # a recording that grows too large is broken off
    assert not caplog.messages


def test_a_recording_is_broken_off_before_it_is_larger_than_it_may_be() -> None:
    taken: list[int] = []

    def wasteful(x: Tensor) -> Tensors:
        for step in range(100):
            taken.append(step)
            x = x + 1.0
        return (x,)

    replay = Replay(wasteful, most_bytes=10 * 4000)
    for _ in range(4):
        assert_same(replay(torch.zeros(1000)), (torch.full((1000,), 100.0),))
    assert 4 * 100 < len(taken) <= 4 * 100 + 10


def test_copies_record_for_themselves() -> None:
    replay = Replay(weights_gradient)
    x, g = torch.randn(3, 5, 6), torch.randn(3, 5, 4)
    for _ in range(5):
        replay(x, g)
    assert replay.is_ready(x, g)
    copied = copy.deepcopy(replay)
    assert not copied.is_ready(x, g)
    for _ in range(5):
        x, g = torch.randn(3, 5, 6), torch.randn(3, 5, 4)
        torch.testing.assert_close(copied(x, g), (g.mT @ x,))


def weights_gradient(x: Tensor, g: Tensor) -> Tensors:
    return (torch.bmm(x.mT, g).mT.contiguous(),)


@pytest.mark.parametrize("exact", [True, False])
def test_a_product_that_is_wanted_transposed_is_made_so_unless_bits_count(exact: bool) -> None:
    replay = Replay(weights_gradient, exact=exact)
    for _ in range(6):
        x, g = torch.randn(3, 5, 6), torch.randn(3, 5, 4)
        torch.testing.assert_close(replay(x, g), (g.mT @ x,))
    (kind,) = replay._kinds.values()
    assert kind.recording is not None
    assert len(kind.recording.operations) == (2 if exact else 1)  # with a copy, and without


def test_products_may_be_looked_at_otherwise() -> None:
    """Their memory lies as torch lays it, though their transpose is cheaper to make."""

    def viewed(x: Tensor, g: Tensor) -> Tensors:
        product = torch.bmm(x.mT, g)
        return (product.view(3, -1), product.mT.contiguous())

    replay = Replay(viewed)
    for _ in range(6):
        x, g = torch.randn(3, 5, 6), torch.randn(3, 5, 4)
        torch.testing.assert_close(replay(x, g), viewed(x, g))
    assert not replay.gave_up


def renormed(x: Tensor) -> Tensors:
    return (x.clamp_(max=0.5).exp(),)


def sparse(x: Tensor) -> Tensors:
    return (x.to_sparse().to_dense(),)


@pytest.mark.parametrize("function", [renormed, sparse])
@pytest.mark.parametrize("exact", [True, False])
def test_what_cannot_be_recorded_is_done_as_ever(function: Function, exact: bool) -> None:
    replay, drawn = Replay(function, exact=exact), inputs()
    for _ in range(6):
        x = next(drawn)
        other = x.clone()
        assert_same(replay(x), function(other))
        assert torch.equal(x, other)  # what it does to its inputs it does
    assert replay.gave_up


def test_memory_with_gaps_keeps_its_bits() -> None:
    replay, wide = Replay(weights_gradient, exact=True), torch.randn(3, 5, 20)
    for _ in range(6):
        x, g = wide[:, :, 3:9], wide[:, :, 9:19:2]
        assert_same(replay(x, g), weights_gradient(x, g))
    (kind,) = replay._kinds.values()
    assert kind.recording is None


@pytest.mark.parametrize(
    "loss",
    [
        nn.SoftMarginLoss(),
        lambda x, y: nn.functional.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    ],
    ids=["resizes its result", "writes another one"],
)
def test_versions_that_do_not_write_what_they_should_are_not_used(
    loss: Callable[[Tensor, Tensor], Tensor], capfd: pytest.CaptureFixture[str]
) -> None:
    replay, drawn = Replay(lambda x, y: (loss(x, y),), exact=True), inputs()
    for _ in range(12):
        x, y = next(drawn), next(drawn)
        assert_same(replay(x, y), (loss(x, y),))
    assert not replay.gave_up
    assert capfd.readouterr().err == ""


def test_what_is_returned_may_be_written_to() -> None:
    replay = Replay(lambda x: (torch.ones_like(x),))
    for _ in range(6):
        (ones,) = replay(next(inputs()))
        assert torch.equal(ones, torch.ones(2, 3))
        ones.add_(1)
    assert not replay.gave_up


@pytest.mark.parametrize("exact", [True, False])
def test_other_bits_are_borne_unless_they_count(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly(self: object, given: tuple[Tensor, ...]) -> Tensors:
        return tuple(result * (1 + 1e-6) for result in Counted()(*given))

    monkeypatch.setattr("fedvarp.trainers.replay._Recording.replayed", nearly)
    replay, drawn = Replay(Counted(), exact=exact), inputs()
    for _ in range(6):
        x = next(drawn)
        torch.testing.assert_close(replay(x), Counted()(x))
    assert replay.gave_up == exact


def test_no_more_than_64_shapes_are_recorded() -> None:
    counted, oracle = Counted(), Counted()
    replay = Replay(counted)
    for _ in range(6):
        for rows in range(1, 71):
            x = next(inputs(rows))
            assert_same(replay(x), oracle(x))
    assert len(replay._kinds) == 64
    assert counted.calls == 64 * 4 + 6 * 6


def test_shapes_that_change_in_place_are_those_of_the_moment(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As nn.GRU turns its output round; torch would warn of results that do not fit, from C++."""

    def turned(x: Tensor) -> Tensors:
        y = x * 2
        z = y.exp()
        y.transpose_(0, 1)
        return y + 1, z

    replay, drawn = Replay(turned, exact=True), inputs()
    for _ in range(8):
        x = next(drawn)
        assert_same(replay(x), turned(x))
    assert not replay.gave_up
    assert capfd.readouterr().err == ""


def test_writing_in_place_is_replayed_as_it_was() -> None:
    total = torch.zeros(3)

    def added(x: Tensor) -> Tensors:
        sums = torch.zeros_like(x).add_(x).add_(1)
        total.add_(x.sum(0))
        return (sums.clone(),)

    replay, drawn, expected = Replay(added), inputs(), torch.zeros(3)
    for call in range(8):
        x = next(drawn)
        assert torch.equal(replay(x)[0], x + 1)
        expected += x.sum(0) * (2 if call == 3 else 1)  # the check runs both
        torch.testing.assert_close(total, expected)
    assert not replay.gave_up
