"""Algorithm 1: its batches, its counts, its normalisation, and each of its settings."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedvarp import FlatModel, LocalSGD, stream
from fedvarp.clients import local_training
from fedvarp.clients.local_training import LocalResult
from fedvarp.clients.schedules import Constant, Cosine, Exponential
from fedvarp.models import Quadratic, quadratic_loss

D = 3


def examples(count: int = 10) -> tuple[Tensor, Tensor]:
    """Quadratics ½ (w − x)² with curvature 1: the gradient of a batch is w − mean(x)."""
    return torch.randn(count, D, generator=stream(1, "examples")), torch.ones(count, D)


def train(settings: LocalSGD, w: Tensor | None = None, **key: object) -> LocalResult:
    arguments: dict[str, object] = {"seed": 0, "round": 0, "client": 0} | key
    return local_training.train(
        settings,
        FlatModel(Quadratic(D)),
        quadratic_loss,
        torch.ones(D) if w is None else w,
        examples(),
        **arguments,  # type: ignore[arg-type]
    )


def by_hand(
    settings: LocalSGD, correction: Tensor | None = None, round_: int = 0, proximal: float = 0.0
) -> Tensor:
    """The same steps in float64 with the gradient written out: (w − w_i) / η_c(t).

    Where steps are normalised it is (w − w_i)/walk, with the walk that a constant gradient of 1
    would have gone.
    """
    x = examples()[0].double()
    w = torch.ones(D, dtype=torch.float64)
    local, velocity = w.clone(), torch.zeros(D, dtype=torch.float64)
    rate, walk, pace = settings.lr * settings.schedule(round_), 0.0, 0.0
    for batch in local_training.batches(settings, len(x), 0, round_, 0):
        g = local - x[batch].mean(0)
        if settings.clip_norm is not None:
            g = g * min(1.0, settings.clip_norm / float(g.norm()))
        g = g + settings.weight_decay * local
        if correction is not None:
            g = g + correction
        g = g + proximal * (local - w)
        velocity = settings.momentum * velocity + g
        local = local - rate * velocity
        pace = settings.momentum * pace + 1.0
        walk += rate * pace
        rate *= settings.step_decay
    return (w - local) / (walk if settings.normalise_steps else settings.rate(round_))


@pytest.mark.parametrize(
    "settings",
    [
        LocalSGD(lr=0.1, batch_size=4, epochs=2),
        LocalSGD(lr=0.1, batch_size=4, steps=7),
        LocalSGD(lr=0.1, batch_size=4, epochs=2, weight_decay=0.3),
        LocalSGD(lr=0.1, batch_size=4, epochs=2, momentum=0.9),
        LocalSGD(lr=0.1, batch_size=4, epochs=2, clip_norm=0.2),
        LocalSGD(lr=0.1, batch_size=4, epochs=2, step_decay=0.7),
        LocalSGD(lr=0.1, batch_size=4, epochs=2, schedule=Exponential(decay=0.5)),
        LocalSGD(lr=0.1, batch_size=4, epochs=2, momentum=0.5, weight_decay=0.1, clip_norm=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize(("corrected", "proximal"), [(False, 0.0), (True, 0.0), (True, 0.8)])
@pytest.mark.parametrize("normalised", [False, True])
def test_local_sgd_is_the_loop_written_out(
    settings: LocalSGD, corrected: bool, proximal: float, normalised: bool
) -> None:
    settings = settings.replace(normalise_steps=normalised)
    correction = torch.tensor([0.5, -1.0, 0.0]) if corrected else None
    found = train(settings, round=3, correction=correction, proximal=proximal)
    expected = by_hand(settings, None if correction is None else correction.double(), 3, proximal)
    # w - w_i is rounded at the size of w, 6e-8, and then divided by a rate of 0.0125.
    torch.testing.assert_close(found.delta.double(), expected, rtol=1e-5, atol=2e-5)


def test_the_delta_is_over_the_rate_of_its_round() -> None:
    """One full-batch step has Δ = the gradient, whatever the rate."""
    gradient = 1 - examples()[0].mean(0)
    for settings in (
        LocalSGD(lr=0.1, batch_size=10, steps=1),
        LocalSGD(lr=0.4, batch_size=10, steps=1, schedule=Exponential(decay=0.5)),
    ):
        torch.testing.assert_close(train(settings, round=2).delta, gradient, rtol=1e-3, atol=1e-4)


def test_gradients_count_by_what_they_move_the_model() -> None:
    """A decaying rate: 1 + ½ + ¼ steps' worth; normalised, an update is the mean of one."""
    decaying = LocalSGD(lr=0.1, batch_size=10, steps=3, step_decay=0.5)
    assert train(decaying).num_gradients == 1.75
    assert train(decaying).num_steps == 3
    assert train(decaying.replace(normalise_steps=True)).num_gradients == 1.0


@given(
    num_examples=st.integers(1, 50),
    batch_size=st.integers(1, 60),
    epochs=st.integers(1, 4),
)
def test_an_epoch_uses_every_example_once_and_keeps_the_small_batch(
    num_examples: int, batch_size: int, epochs: int
) -> None:
    settings = LocalSGD(lr=0.1, batch_size=batch_size, epochs=epochs)
    batches = list(local_training.batches(settings, num_examples, 0, 5, 7))
    per_epoch = math.ceil(num_examples / batch_size)
    assert len(batches) == epochs * per_epoch
    for e in range(epochs):
        one = torch.cat(batches[e * per_epoch : (e + 1) * per_epoch])
        assert sorted(one.tolist()) == list(range(num_examples))


@given(num_examples=st.integers(1, 20), batch_size=st.integers(1, 25), steps=st.integers(1, 30))
def test_a_fixed_number_of_steps_is_kept_whatever_the_data(
    num_examples: int, batch_size: int, steps: int
) -> None:
    settings = LocalSGD(lr=0.1, batch_size=batch_size, steps=steps)
    assert len(list(local_training.batches(settings, num_examples, 0, 0, 0))) == steps


def test_batches_depend_on_seed_round_and_client_and_on_nothing_else() -> None:
    settings = LocalSGD(lr=0.1, batch_size=20, epochs=1)

    def order(seed: int, round_: int, client: int) -> list[int]:
        (batch,) = local_training.batches(settings, 20, seed, round_, client)
        return batch.tolist()

    torch.manual_seed(1)
    first = order(0, 1, 2)
    torch.manual_seed(2)
    assert order(0, 1, 2) == first
    assert len({tuple(order(*key)) for key in [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3)]}) == 4


def test_epochs_are_shuffled_differently() -> None:
    first, second = local_training.batches(LocalSGD(lr=0.1, batch_size=20, epochs=2), 20, 0, 0, 0)
    assert first.tolist() != second.tolist()


def test_the_servers_model_is_not_touched() -> None:
    w = torch.ones(D)
    train(LocalSGD(lr=0.1, batch_size=4, epochs=2), w)
    assert torch.equal(w, torch.ones(D))


def test_dropout_layers_draw_from_the_keyed_stream_and_leave_the_global_one_alone() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(4, 20), nn.Dropout(0.5), nn.Linear(20, 2)))
    w = model.vector()
    x, y = torch.randn(10, 4), torch.randint(2, (10,))

    def delta(round_: int) -> Tensor:
        settings = LocalSGD(lr=0.1, batch_size=10, steps=3)
        loss = nn.functional.cross_entropy
        return local_training.train(
            settings, model, loss, w, (x, y), seed=0, round=round_, client=0
        ).delta

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = delta(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(delta(0), first)
    assert not torch.equal(delta(1), first)


def test_augmentation_sees_every_batch_and_draws_from_its_own_stream() -> None:
    seen = []

    def augment(batch: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(torch.rand(1, generator=generator).item())
        return torch.zeros_like(batch)

    settings = LocalSGD(lr=0.1, batch_size=4, epochs=1)
    found = train(settings, augment=augment)
    assert len(seen) == 3
    # All inputs became zero, so the loss is ½‖w‖² and every coordinate shrinks alike.
    assert torch.equal(found.delta, found.delta[:1].expand(D))
    first, seen[:] = list(seen), []
    train(settings, augment=augment)
    assert seen == first


@pytest.mark.parametrize("lr", [1e30, 1e3])
def test_divergence_is_noticed(lr: float) -> None:
    settings = LocalSGD(lr=lr, batch_size=2, steps=60)
    assert train(settings).diverged
    assert not train(LocalSGD(lr=0.1, batch_size=2, steps=60)).diverged


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": None}, "give one of epochs and steps"),
        ({"steps": 3}, "give one of epochs and steps"),
        ({"lr": 0.0}, "lr = 0.0 should be greater than 0"),
        ({"lr": math.nan}, "lr = nan should be a finite number"),
        ({"batch_size": 0}, "batch_size = 0 should be at least 1"),
        ({"epochs": 0}, "epochs = 0 should be at least 1"),
        ({"momentum": 1.0}, r"momentum = 1.0 should be less than 1"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0"),
        ({"step_decay": 0.0}, "step_decay = 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], message: str) -> None:
    right: dict[str, object] = {"lr": 0.1, "batch_size": 2, "epochs": 1}
    with pytest.raises(ValueError, match=message):
        LocalSGD(**(right | wrong))  # type: ignore[arg-type]


def test_schedules() -> None:
    assert [Constant()(t) for t in (0, 9)] == [1.0, 1.0]
    assert Exponential(decay=0.5)(3) == 0.125
    cosine = Cosine(rounds=10, floor=0.2)
    assert cosine(0) == pytest.approx(1.0)
    assert cosine(5) == pytest.approx(0.6)
    assert cosine(10) == cosine(50) == pytest.approx(0.2)
    for wrong in (
        lambda: Exponential(decay=0.0),
        lambda: Cosine(rounds=0),
        lambda: Cosine(rounds=10, floor=0.0),
    ):
        with pytest.raises(ValueError, match="should be"):
            wrong()
