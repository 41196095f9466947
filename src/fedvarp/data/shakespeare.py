"""Shakespeare's roles as clients, his plays as clusters: guess the next character."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedvarp.data.errors import DataError
from fedvarp.data.federated_dataset import Examples, FederatedDataset
from fedvarp.data.locate import data_root, first_existing
from fedvarp.data.shakespeare_text import Role, check_edition, parse_plays, read_text, roles_of

# LEAF's 80 symbols, in LEAF's order.
ALPHABET: Final = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
_FILES: Final = tuple(
    folder + name
    for folder in ("", "shakespeare/")
    for name in ("pg100.txt", "1994-01-100.zip", "100.txt")
)
_DOWNLOAD: Final = "download_shakespeare"


def shakespeare(
    root: str | os.PathLike[str] | None = None,
    *,
    window: int = 20,
    stride: int = 1,
    train_fraction: float = 0.8,
    test_stride: int | None = None,
    min_characters: int = 120,
) -> FederatedDataset:
    """The roles with at least 120 characters, 1089 of them in 36 plays, as in the paper.

    An example is ``window`` characters and the one after them. Each client's windows are split by
    time: the first ``train_fraction`` for training, then a gap of window - 1, so that no character
    is input to both sides, then the test windows, which go into one common test set.

    Args:
        root: The text, the zip archive it is published in, or a folder with either; None for the
            folder named by the environment variable FEDVARP_DATA.
        window: Characters in an example.
        stride: Characters from one training example to the next. At 1 there are 4.3 million
            examples in all, but no more than the text is held in memory.
        train_fraction: 1 keeps everything for training, without a test set.
        test_stride: Like ``stride``, for the test set; the same if left out. (A test set is copied
            out: ``window`` bytes an example.)
        min_characters: Roles with less to say are left out.

    Returns:
        Inputs are (n, window) codes in uint8, a view of the text; `fedvarp.models.CharGRU` takes
        them as they are. Targets are (n,) int64. Clients are named "PLAY / ROLE".
    """
    if window < 1 or stride < 1 or (test_stride is not None and test_stride < 1):
        raise ValueError("window, stride and test_stride are counts of characters, at least 1.")
    if not 0 < train_fraction <= 1:
        raise ValueError(f"train_fraction={train_fraction}: a fraction lies in (0, 1].")
    source = first_existing(data_root(root, download=_DOWNLOAD), _FILES, download=_DOWNLOAD)
    plays = parse_plays(read_text(source))
    check_edition(plays, source)
    roles = [role for role in roles_of(plays) if len(role.text) >= min_characters]
    return federated_roles(
        roles,
        window=window,
        stride=stride,
        train_fraction=train_fraction,
        test_stride=test_stride or stride,
    )


def federated_roles(
    roles: list[Role], *, window: int, stride: int, train_fraction: float, test_stride: int
) -> FederatedDataset:
    """One client a role, with its windows split by time; see `shakespeare`."""
    codes = torch.cat([encode(role) for role in roles])
    lengths = torch.tensor([len(role.text) for role in roles])
    starts = lengths.cumsum(0) - lengths
    windows = lengths - window  # at stride 1; the last one needs a character after it
    num_train = (windows.double() * train_fraction).long()
    too_short = (num_train < 1).nonzero().flatten().tolist()
    if too_short:
        role = roles[too_short[0]]
        raise ValueError(
            f"{len(too_short)} roles are too short for a training window of {window}, for instance "
            f"{role.name} in {role.play} with {len(role.text)} characters. Raise min_characters "
            "or train_fraction, or lower window."
        )
    clients = TextWindows(codes, starts, num_train, window, stride)
    titles = list(dict.fromkeys(role.play for role in roles))
    return FederatedDataset(
        load=clients,
        num_clients=len(roles),
        num_examples=(num_train + stride - 1) // stride,
        test=clients.held_out(windows, test_stride) if train_fraction < 1 else None,
        cluster_of=torch.tensor([titles.index(role.play) for role in roles]),
        client_names=[f"{role.play} / {role.name}" for role in roles],
        cluster_names=titles,
        num_classes=len(ALPHABET),
    )


@dataclass(frozen=True, eq=False)
class TextWindows:
    """Sliding windows over all texts laid end to end; a client's windows are a view of them."""

    codes: Tensor  # (characters,) uint8
    starts: Tensor  # (N,) where each client's text begins
    num_train: Tensor  # (N,) training windows at stride 1
    window: int
    stride: int

    def __call__(self, client: int) -> Examples:
        """The training windows of a client, and the character after each."""
        start, count = int(self.starts[client]), int(self.num_train[client])
        text = self.codes[start : start + count + self.window]
        x = text[:-1].unfold(0, self.window, self.stride)
        return x, text[self.window :: self.stride].long()

    def held_out(self, windows: Tensor, stride: int) -> Examples:
        """The test windows of all clients, given how many windows each has in all."""
        begins = self.starts + self.num_train + self.window - 1
        ends = self.starts + windows
        kept = begins < ends
        if not kept.any():
            raise ValueError(
                f"No role has a test window left after training and a gap of {self.window - 1}. "
                "Lower train_fraction, or set it to 1 to do without a test set."
            )
        bounds = zip(begins[kept].tolist(), ends[kept].tolist(), strict=True)
        at = torch.cat([torch.arange(begin, end, stride) for begin, end in bounds])
        return self.codes.unfold(0, self.window, 1)[at], self.codes[at + self.window].long()


_CODE_OF_BYTE: Final = np.full(256, 255, dtype=np.uint8)
_CODE_OF_BYTE[np.frombuffer(ALPHABET.encode("ascii"), dtype=np.uint8)] = np.arange(len(ALPHABET))


def encode(role: Role) -> Tensor:  # (characters,) uint8
    """The text as positions in the alphabet."""
    codes = _CODE_OF_BYTE[np.frombuffer(role.text.encode("latin-1", "replace"), dtype=np.uint8)]
    if (codes == 255).any() or not role.text.isascii():
        unknown = next(c for c in role.text if c not in ALPHABET)
        raise DataError(
            f"{role.name} in {role.play} says {unknown!r}, which is not among LEAF's 80 symbols. "
            "The file is another edition, or was converted on the way."
        )
    return torch.from_numpy(codes)
