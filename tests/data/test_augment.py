"""Crops and flips of a whole batch are those of a loop over its images."""

from __future__ import annotations

import torch
from torch import Tensor

from fedvarp.data.augment import RandomCropAndFlip
from fedvarp.randomness import stream


def one_at_a_time(x: Tensor, fill: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """The same augmentation as a plain loop over images."""
    n, c, h, w = x.shape
    top = torch.randint(2 * padding + 1, (n, 1), generator=generator)
    left = torch.randint(2 * padding + 1, (n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5
    out = torch.empty_like(x)
    for i in range(n):
        canvas = fill.view(c, 1, 1).repeat(1, h + 2 * padding, w + 2 * padding)
        canvas[:, padding : padding + h, padding : padding + w] = x[i]
        crop = canvas[:, top[i] : top[i] + h, left[i] : left[i] + w]
        out[i] = crop.flip(2) if mirrored[i] else crop
    return out


def test_it_is_the_loop_over_images() -> None:
    x = torch.randn(64, 3, 32, 20, generator=stream(0, "images"))
    fill = (-1.0, -2.0, -3.0)
    fast = RandomCropAndFlip(fill=fill, padding=4)(x, stream(1, "augment"))
    slow = one_at_a_time(x, torch.tensor(fill), 4, stream(1, "augment"))
    assert fast.equal(slow)


def test_without_padding_images_are_as_they_were_or_mirrored() -> None:
    x = torch.randn(400, 1, 5, 5, generator=stream(0, "images"))
    out = RandomCropAndFlip(fill=(0.0,), padding=0)(x, stream(2, "augment"))
    kept = (out == x).flatten(1).all(1)
    mirrored = (out == x.flip(3)).flatten(1).all(1)
    assert (kept ^ mirrored).all()
    assert 150 < int(kept.sum()) < 250  # five standard deviations of 400 fair coins are 50


def test_the_batch_is_left_alone_and_the_generator_decides() -> None:
    x = torch.randn(8, 3, 32, 32, generator=stream(0, "images"))
    before = x.clone()
    augment = RandomCropAndFlip(fill=(0.0, 0.0, 0.0))
    first = augment(x, stream(1, "augment"))
    assert x.equal(before)
    assert augment(x, stream(1, "augment")).equal(first)
    assert not augment(x, stream(2, "augment")).equal(first)
