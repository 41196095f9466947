"""Random changes to a whole batch of images at once, drawn from one generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomCropAndFlip:
    """Shifts each image by up to ``padding`` pixels either way and mirrors half of them.

    One gather does the crop and the flip of all images. What comes in from outside the image has
    the colour ``fill``: black in the units of the batch, which for normalised images is not zero.

    Attributes:
        fill: The colour outside the image, one value for each channel.
        padding: How far an image is shifted at most, in pixels.
    """

    fill: tuple[float, ...]
    padding: int = 4

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Crops and mirrors each image in its own way.

        Args:
            x: (n, c, h, w), the images.
            generator: Draws the shifts and who is mirrored.

        Returns:
            (n, c, h, w), new images.
        """
        n, c, h, w = x.shape
        p = self.padding
        fill = torch.tensor(self.fill, dtype=x.dtype, device=x.device).view(1, c, 1, 1)
        padded = fill.repeat(n, 1, h + 2 * p, w + 2 * p)
        padded[:, :, p : p + h, p : p + w] = x

        top = torch.randint(2 * p + 1, (n, 1), generator=generator)
        left = torch.randint(2 * p + 1, (n, 1), generator=generator)
        mirrored = torch.rand(n, 1, generator=generator) < 0.5
        column = torch.arange(w).expand(n, w)
        rows = (top + torch.arange(h)).to(x.device)  # (n, h)
        columns = (left + torch.where(mirrored, w - 1 - column, column)).to(x.device)  # (n, w)
        image = torch.arange(n, device=x.device).view(n, 1, 1, 1)
        channel = torch.arange(c, device=x.device).view(1, c, 1, 1)
        return padded[image, channel, rows.view(n, 1, h, 1), columns.view(n, 1, 1, w)]
