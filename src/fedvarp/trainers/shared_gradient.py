"""One client trained by several processes: each takes its share of every batch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from fedvarp.clients.local_training import Loss
from fedvarp.server.flat_model import FlatModel

IGNORED: Final = -100
"""The target that cross_entropy leaves out of its mean."""

_SPINS: Final = 200  # looks at the others before the core is offered to them


@dataclass(frozen=True, eq=False)
class Meeting:
    """Shared memory in which processes add their gradients up, step by step.

    There are two places for each gradient, used in turn: while the slowest still reads those of one
    step, nobody can be further than the next.
    """

    gradients: Tensor  # (2, processes, d + 1), each gradient with its loss behind it
    arrived: Tensor  # (processes,) int64, steps for which each has written its gradient

    def reset(self) -> None:
        """Before a client; nobody may be in a step."""
        self.arrived.zero_()

    def wait(self, step: int) -> None:
        """Returns once everybody has written the gradient of a step.

        It would wait for the dead: the parent ends all who share a client with one of them.

        Args:
            step: The step.
        """
        looks = 0
        while int(self.arrived.min()) <= step:
            looks += 1
            if looks > _SPINS:
                time.sleep(0)


@dataclass(eq=False)
class SharedGradient:
    """The gradient of a batch of which this process computes a part; all get the same bits.

    The loss must be a mean over examples, each of which the model treats by itself.

    Args:
        model: Computes the output.
        loss: (output, targets) → mean loss of a batch.
        meeting: Where the parts are added up.
        part: Which of the processes this is.
    """

    model: FlatModel
    loss: Loss
    meeting: Meeting
    part: int
    full_batches_only: bool = field(default=False, init=False)
    _step: int = field(default=0, init=False)

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
        """See `GradientOf`."""
        parts = self.meeting.gradients[self._step % 2]
        own = parts[self.part]
        first, stop = (len(x) * k // len(parts) for k in (self.part, self.part + 1))
        if bool((y == IGNORED).any()):  # the mean is not one over examples: the last takes them all
            first, stop = (0 if stop == len(x) else len(x)), len(x)
        mine = slice(first, stop)
        share = (mine.stop - mine.start) / len(x)
        if share:
            value = self.loss(self.model.module(x[mine]), y[mine])
            self.model.backward(value)  # to `out`, where the model is bound to
            torch.mul(out, share, out=own[:-1])
            own[-1] = value.detach() * share
        else:
            own.zero_()
        self.meeting.arrived[self.part] = self._step + 1
        self.meeting.wait(self._step)
        self._step += 1
        torch.sum(parts[:, :-1], dim=0, out=out)
        return parts[:, -1].sum()
