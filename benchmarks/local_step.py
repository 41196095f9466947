"""One local step of LeNet-5 on one thread, beside other ways to take it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, max_pool2d, pad, relu

from benchmarks.timing import interleaved, table
from fedvarp import stream
from fedvarp.models import LeNet5, initialised
from fedvarp.trainers.threads import torch_threads

BATCH = 64
AS_IT_IS = "as it is"
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


def measure(repeats: int = 60) -> str:
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

    with torch_threads(1):
        seconds = interleaved(
            {
                AS_IT_IS: step(),
                "conv1's six channels, not eight": step(six_channels),
                "images padded to 4 channels": step(padded_inputs(4)),
                "images padded to 8 channels": step(padded_inputs(8)),
                "channels first": step(inputs=images),
                "without oneDNN": without_onednn,
                "the last batch, of 8 images": step(inputs=x[:8]),
            },
            repeats,
            clock=time.thread_time,
        )
    least = seconds[AS_IT_IS]
    rows = [[name, f"{s * 1e3:.1f} ms", f"{s / least:.2f}"] for name, s in seconds.items()]
    title = f"Loss and gradient of {BATCH} images, LeNet-5, one thread"
    return table(title, ["", "step, processor time", "ratio to the first"], rows)
