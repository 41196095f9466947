"""Shakespeare's roles as clients, his plays as clusters: guess the next character."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedvarp.data.federated_dataset import DataError, Examples, FederatedDataset
from fedvarp.data.locate import data_root, first_existing
from fedvarp.data.shakespeare_text import Role, check_edition, parse_plays, read_text, roles_of
from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked

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


@checked
def shakespeare(
    root: str | os.PathLike[str] | None = None,
    *,
    window: Count = 20,
    stride: Count = 1,
    train_fraction: Annotated[float, Field(gt=0, le=1)] = 0.8,
    test_stride: Count | None = None,
    min_characters: Count = 120,
) -> FederatedDataset:
    """Makes a client of each role with at least 120 characters: 1089 in 36 plays, as in the paper.

    An example is ``window`` characters and the one after them. Each client's windows are split by
    time: the first ``train_fraction`` for training, then a gap of window - 1, so that no character
    is input to both sides, then the test windows, which go into one common test set.

    Args:
        root: The text, the zip archive it is published in, or a folder with either; None for the
            folder named by the environment variable FEDVARP_DATA.
        window: How many characters an example shows.
        stride: How many characters lie from one training example to the next. At 1 there are 4.3
            million examples in all, but no more than the text is held in memory.
        train_fraction: The share of a role's text, from its beginning, that is trained on; 1 keeps
            everything for training, without a test set.
        test_stride: Like stride, for the test set, which takes window bytes an example; the same as
            stride unless given.
        min_characters: The fewest characters of a role that is a client; others are left out.

    Returns:
        Inputs are (n, window) codes in uint8, a view of the text; `fedvarp.models.CharGRU` takes
        them as they are. Targets are (n,) int64. Clients are named "PLAY / ROLE".

    Raises:
        ValueError: An argument is out of bounds, or leaves a role without a training window.
        DataError: The text is not there, damaged, or another edition.
    """
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
    """Makes one client of each role, with its windows split by time.

    Args:
        roles: Who says what.
        window: As in `shakespeare`.
        stride: As in `shakespeare`.
        train_fraction: As in `shakespeare`.
        test_stride: As in `shakespeare`.

    Returns:
        The clients in the order of the roles, clustered by play.

    Raises:
        ValueError: A role is too short for a training window.
        DataError: A role says a symbol that LEAF's alphabet does not have.
    """
    codes = torch.cat([encode(role) for role in roles])
    lengths = torch.tensor([len(role.text) for role in roles])
    starts = lengths.cumsum(0) - lengths
    windows = lengths - window  # at stride 1; the last one needs a character after it
    num_train = (windows.double() * train_fraction).long()
    too_short = (num_train < 1).nonzero().flatten().tolist()
    if too_short:
        role = roles[too_short[0]]
        raise InvalidError(
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
        """Cuts out the training windows of a client.

        Args:
            client: The client's number.

        Returns:
            The windows, (n, window) uint8, a view; and the character after each, (n,) int64.
        """
        start, count = int(self.starts[client]), int(self.num_train[client])
        text = self.codes[start : start + count + self.window]
        x = text[:-1].unfold(0, self.window, self.stride)
        return x, text[self.window :: self.stride].long()

    def held_out(self, windows: Tensor, stride: int) -> Examples:
        """Copies out the test windows of all clients.

        Args:
            windows: (N,) how many windows each client has in all, at stride 1.
            stride: Characters from one test window to the next.

        Returns:
            The windows, (n, window) uint8, and the character after each, (n,) int64.

        Raises:
            ValueError: No client has any.
        """
        begins = self.starts + self.num_train + self.window - 1
        ends = self.starts + windows
        kept = begins < ends
        if not kept.any():
            raise InvalidError(
                f"No role has a test window left after training and a gap of {self.window - 1}. "
                "Lower train_fraction, or set it to 1 to do without a test set."
            )
        bounds = zip(begins[kept].tolist(), ends[kept].tolist(), strict=True)
        at = torch.cat([torch.arange(begin, end, stride) for begin, end in bounds])
        return self.codes.unfold(0, self.window, 1)[at], self.codes[at + self.window].long()


_CODE_OF_BYTE: Final = np.full(256, 255, dtype=np.uint8)
_CODE_OF_BYTE[np.frombuffer(ALPHABET.encode("ascii"), dtype=np.uint8)] = np.arange(len(ALPHABET))


def encode(role: Role) -> Tensor:
    """Turns what a role says into positions in the alphabet.

    Args:
        role: The role.

    Returns:
        (characters,) uint8.

    Raises:
        DataError: The text holds a symbol that LEAF's alphabet does not have.
    """
    codes = _CODE_OF_BYTE[np.frombuffer(role.text.encode("latin-1", "replace"), dtype=np.uint8)]
    if (codes == 255).any() or not role.text.isascii():
        unknown = next(c for c in role.text if c not in ALPHABET)
        raise DataError(
            f"{role.name} in {role.play} says {unknown!r}, which is not among LEAF's 80 symbols. "
            "The file is another edition, or was converted on the way."
        )
    return torch.from_numpy(codes)
