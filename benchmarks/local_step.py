"""One local step of LeNet-5 on one thread, beside other ways to take it; and where it goes."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, max_pool2d, pad, relu, unfold

from benchmarks.timing import beside_the_first, interleaved, table, with_spread
from fedvarp import stream
from fedvarp.models import LeNet5, initialised
from fedvarp.system.processes import keep_freed_memory
from fedvarp.trainers.threads import torch_threads

BATCH = 64
_LAST = torch.channels_last


def six_channels(net: LeNet5, x: Tensor) -> Tensor:
    """The forward pass without the two channels of zeros."""
    x = relu(max_pool2d(net.conv1(x), 2))
    x = relu(max_pool2d(net.conv2(x), 2))
    x = relu(net.fc1(x.flatten(1)))
    logits: Tensor = net.fc3(relu(net.fc2(x)))
    return logits


def padded_inputs(channels: int) -> Callable[[LeNet5, Tensor], Tensor]:
    """The forward pass with channels of zeros beside the images' three as well."""

    def forward(net: LeNet5, x: Tensor) -> Tensor:
        beyond = (0, 0, 0, 0, 0, channels - 3)
        weight = pad(net.conv1.weight, (*beyond, 0, 2))
        x = conv2d(pad(x, beyond), weight, pad(net.conv1.bias, (0, 2)))  # type: ignore[arg-type]
        x = relu(max_pool2d(x, 2))
        x = conv2d(x, pad(net.conv2.weight, (0, 0, 0, 0, 0, 2)), net.conv2.bias)
        x = relu(net.fc1(relu(max_pool2d(x, 2)).flatten(1)))
        logits: Tensor = net.fc3(relu(net.fc2(x)))
        return logits

    return forward


def as_products(net: LeNet5, x: Tensor) -> Tensor:
    """The forward pass with each convolution as one matrix product over unfolded images."""
    for layer in (net.conv1, net.conv2):
        columns = unfold(x, 5)  # (n, channels * 25, height * width)
        x = layer.weight.flatten(1) @ columns + layer.bias.unsqueeze(1)  # type: ignore[union-attr]
        side = math.isqrt(columns.shape[2])
        x = relu(max_pool2d(x.unflatten(2, (side, side)), 2))
    x = relu(net.fc1(x.flatten(1)))
    logits: Tensor = net.fc3(relu(net.fc2(x)))
    return logits


def measure(repeats: int = 60) -> str:
    keep_freed_memory()
    with torch_threads(1):
        return "\n".join([_ways(repeats), _parts(repeats)])


def _ways(repeats: int) -> str:
    net = initialised(LeNet5, seed=0)
    draw = stream(0, "images")
    images = torch.randn(BATCH, 3, 32, 32, generator=draw)
    x, y = images.contiguous(memory_format=_LAST), torch.arange(BATCH) % 10
    parameters = list(net.parameters())

    def step(
        forward: Callable[[LeNet5, Tensor], Tensor] = LeNet5.forward,
        inputs: Tensor = x,
    ) -> Callable[[], object]:
        def run() -> object:
            loss = cross_entropy(forward(net, inputs), y[: len(inputs)])
            return torch.autograd.grad(loss, parameters)

        return run

    def without_onednn() -> object:
        with warnings.catch_warnings():  # that another setting, put back too, is for other machines
            warnings.simplefilter("ignore")
            with torch.backends.mkldnn.flags(enabled=False):
                return step()()

    seconds = interleaved(
        {
            "as it is": step(),
            "conv1's six channels, not eight": step(six_channels),
            "images padded to 4 channels": step(padded_inputs(4)),
            "images padded to 8 channels": step(padded_inputs(8)),
            "channels first": step(inputs=images),
            "without oneDNN": without_onednn,
            "convolutions as one matrix product each": step(as_products, images),
            "the last batch, of 8 images": step(inputs=x[:8]),
        },
        repeats,
        clock=time.thread_time,
    )
    title = f"Loss and gradient of {BATCH} images, LeNet-5, one thread"
    header = ["", "step, processor time", "ratio to the first"]
    return table(title, header, beside_the_first(seconds, 1))


def _parts(repeats: int) -> str:
    """The costly parts of a step, with what a matrix product of this machine reaches."""
    draw = stream(0, "layers")
    runs: dict[str, Callable[[], object]] = {}
    operations: dict[str, int] = {}
    for name, inputs, outputs, size in (("conv1", 3, 8, 32), ("conv2", 8, 16, 14)):
        x = torch.randn(BATCH, inputs, size, size, generator=draw).to(memory_format=_LAST)
        weight = torch.randn(outputs, inputs, 5, 5, generator=draw).to(memory_format=_LAST)
        bias = torch.zeros(outputs)
        above = conv2d(x, weight, bias)
        runs[f"{name}, forwards"] = partial(conv2d, x, weight, bias)
        runs[f"{name}, gradient of its weights"] = partial(
            _backward, above, x, weight, [False, True, True]
        )
        if name == "conv2":  # nobody asks for the gradient of the images
            runs[f"{name}, gradient of its inputs"] = partial(
                _backward, above, x, weight, [True, False, False]
            )
        count = 2 * above.numel() * inputs * 25  # a product and a sum for each weight it meets
        operations |= {part: count for part in runs if part.startswith(name)}
        pooled, where = max_pool2d(above, 2, return_indices=True)
        runs[f"pooling after {name}, forwards"] = partial(max_pool2d, above, 2, return_indices=True)
        runs[f"pooling after {name}, backwards"] = partial(_pool_backward, pooled, above, where)
    square = torch.randn(512, 512, generator=draw)
    runs["a matrix product, 512 x 512"] = partial(torch.mm, square, square)
    operations["a matrix product, 512 x 512"] = 2 * 512**3
    seconds = interleaved(runs, repeats, clock=time.thread_time)
    rows = []
    for name, each in seconds.items():
        rates = [operations[name] / s / 1e9 for s in each if name in operations]
        milliseconds = f"{statistics.median(each) * 1e3:.2f} ms"
        rows.append([name, milliseconds, with_spread(rates, 0) if rates else ""])
    title = f"Convolutions and pooling of that step, {BATCH} images, one thread"
    return table(title, ["", "processor time", "billion operations a second"], rows)


def _backward(gradient: Tensor, x: Tensor, weight: Tensor, of: list[bool]) -> object:
    strides, nothing = [1, 1], [0, 0]
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, [len(weight)], strides, nothing, [1, 1], False, nothing, 1, of
    )


def _pool_backward(gradient: Tensor, x: Tensor, where: Tensor) -> object:
    return torch.ops.aten.max_pool2d_with_indices_backward(
        gradient, x, [2, 2], [2, 2], [0, 0], [1, 1], False, where
    )
