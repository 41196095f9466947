from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

from fedvarp.errors import InvalidError
from fedvarp.models import (
    CharGRU,
    LeNet5,
    LogisticRegression,
    Quadratic,
    ResNet18,
    initialised,
    quadratic_loss,
)
from fedvarp.randomness import stream


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 32, 32, generator=stream(0, "images"))


def windows(n: int) -> Tensor:
    return torch.randint(80, (n, 20), generator=stream(0, "windows")).byte()


def vectors(n: int) -> Tensor:
    return torch.randn(n, 64, generator=stream(0, "vectors"))


Case = tuple[Callable[[], nn.Module], int, Callable[[int], Tensor], int]
CASES: dict[str, Case] = {
    # conv 3·6·25+6 and 6·16·25+16, linear 400·120+120, 120·84+84, 84·10+10
    "LeNet5": (LeNet5, 456 + 2416 + 48_120 + 10_164 + 850, images, 10),
    "ResNet18": (ResNet18, 11_173_962, images, 10),
    # convolutions of the stages (36 + 128 + 512 + 2048)·16², else 257·16 and the head's biases
    "ResNet18, narrow": (lambda: ResNet18(width=16), 2724 * 256 + 257 * 16 + 10, images, 10),
    # embedding 80·8, three gates of 8·128 + 128·128 + 2·128, linear 128·80+80
    "CharGRU": (CharGRU, 640 + 3 * (1024 + 16_384 + 256) + 10_320, windows, 80),
    "LogisticRegression": (lambda: LogisticRegression(64, 10), 650, vectors, 10),
}
every_model = pytest.mark.parametrize("name", list(CASES))


@every_model
def test_number_of_parameters(name: str) -> None:
    factory, expected, _, _ = CASES[name]
    assert sum(p.numel() for p in factory().parameters()) == expected


def test_the_numbers_the_paper_notes() -> None:
    assert CASES["LeNet5"][1] == 62_006
    assert CASES["CharGRU"][1] == 63_952


@every_model
def test_output_is_one_logit_a_class(name: str) -> None:
    factory, _, inputs, classes = CASES[name]
    with torch.no_grad():
        assert initialised(factory, 0)(inputs(3)).shape == (3, classes)


@every_model
def test_nothing_but_weights_is_learnt(name: str) -> None:
    model = CASES[name][0]()
    assert not list(model.buffers())
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


@every_model
def test_one_example_does_not_depend_on_its_batch(name: str) -> None:
    factory, _, inputs, _ = CASES[name]
    model, x = initialised(factory, 0), inputs(4)
    with torch.no_grad():
        assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)


@every_model
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    factory = CASES[name][0]
    before = torch.random.get_rng_state()
    first = initialised(factory, 7).state_dict()
    assert torch.random.get_rng_state().equal(before)
    torch.rand(5)  # the global generator moves on
    again, other = initialised(factory, 7).state_dict(), initialised(factory, 8).state_dict()
    assert all(first[key].equal(again[key]) for key in first)
    assert not all(first[key].equal(other[key]) for key in first)


@every_model
def test_a_gradient_step_reduces_the_loss(name: str) -> None:
    factory, _, inputs, classes = CASES[name]
    model, x = initialised(factory, 0), inputs(8)
    y = torch.arange(8) % classes
    loss = cross_entropy(model(x), y)
    weights = list(model.parameters())
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for w, gradient in zip(weights, gradients, strict=True):
            assert gradient.any()  # every layer takes part
            w.sub_(0.001 * gradient)
        assert cross_entropy(model(x), y) < loss


def test_lenet_is_the_textbook_relu_then_pool() -> None:
    model, x = initialised(LeNet5, 1), images(5)

    def textbook(x: Tensor) -> Tensor:
        x = max_pool2d(relu(model.conv1(x)), 2)
        x = max_pool2d(relu(model.conv2(x)), 2)
        x = relu(model.fc2(relu(model.fc1(x.flatten(1)))))
        out: Tensor = model.fc3(x)
        return out

    assert model(x).equal(textbook(x))
    y = torch.arange(5)
    ours = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
    theirs = torch.autograd.grad(cross_entropy(textbook(x), y), list(model.parameters()))
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(ours, theirs, strict=True))


def test_channels_that_cannot_be_grouped_are_refused() -> None:
    with pytest.raises(InvalidError, match="12 channels cannot be divided into 8 groups"):
        ResNet18(groups=8, width=12)


def test_char_gru_reads_the_window_in_order() -> None:
    model = initialised(CharGRU, 0)
    x = windows(1)
    with torch.no_grad():
        hidden = torch.zeros(1, 128)
        cell = nn.GRUCell(8, 128)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(cell, name).copy_(getattr(model.gru, f"{name}_l0"))
        for code in x[0].tolist():
            hidden = cell(model.embedding(torch.tensor([code])), hidden)
        assert torch.allclose(model(x), model.head(hidden), atol=1e-6)


def test_resnet_halves_the_image_three_times() -> None:
    model = initialised(ResNet18, 0)
    with torch.no_grad():
        assert model.stages(model.stem(images(1))).shape == (1, 512, 4, 4)
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 20
    assert {m.num_groups for m in norms} == {2}


def test_quadratic_by_hand() -> None:
    model = Quadratic(2)
    with torch.no_grad():
        model.w.copy_(torch.tensor([1.0, 2.0]))
    x = torch.tensor([[0.0, 0.0], [1.0, 5.0]])
    h = torch.tensor([2.0, 4.0]).expand(2, 2)
    # ½(2·1² + 4·2²) = 9 and ½(2·0² + 4·3²) = 18
    assert quadratic_loss(model(x), h).item() == 13.5
