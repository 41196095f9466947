from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedvarp.trainers.step_state import step_state

VALUES = (None, 1, 0.5, "text", (1, [2]), [1], {3}, {"a": 1}, b"4", torch.ones(2), torch.float32)


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(VALUES, 2)))
def test_an_attribute_that_becomes_something_else_is_noticed(before: object, after: object) -> None:
    module = nn.Linear(2, 2)
    object.__setattr__(module, "own", before)
    state = step_state(module, cross_entropy)
    assert step_state(module, cross_entropy) == state
    object.__setattr__(module, "own", after)
    assert step_state(module, cross_entropy) != state


def test_hooks_layers_and_frozen_parameters_count() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    states = [step_state(module, cross_entropy)]
    handle = module[0].register_forward_hook(lambda *given: None)
    states.append(step_state(module, cross_entropy))
    handle.remove()
    assert step_state(module, cross_entropy) == states[0]
    module[0].weight.requires_grad_(False)
    states.append(step_state(module, cross_entropy))
    module.append(nn.ReLU())
    states.append(step_state(module, cross_entropy))
    assert len(set(states)) == 4
