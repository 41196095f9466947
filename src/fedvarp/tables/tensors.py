"""Takes tensors from whatever holds the same numbers: NumPy arrays, lists, ranges.

>>> import numpy as np
>>> whole_numbers("cluster_of", [0, 0, 1])
tensor([0, 0, 1])
>>> whole_numbers("cluster_of", np.array([0.0, 2.0]), length=2).dtype
torch.int64
>>> whole_numbers("cluster_of", torch.zeros(3, 1).long(), length=3)  # doctest: +ELLIPSIS
Traceback (most recent call last):
fedvarp.errors.InvalidError: cluster_of has shape (3, 1); it must have shape (3,), one ...
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator
from torch import Tensor

from fedvarp.errors import InvalidError


def whole_numbers(
    name: str, given: Any, length: int | None = None, of_what: str = "client"
) -> Tensor:
    """Takes one whole number for each client.

    Args:
        name: What they are called, for messages.
        given: A tensor, an array or a sequence.
        length: How many there must be; None: any number.
        of_what: What each number belongs to, for messages.

    Returns:
        (n,) int64; the given tensor itself if it is one already.

    Raises:
        ValueError: They are no whole numbers, or not so many in one row.
    """
    numbers = _one_for_each(name, given, length, f"one whole number for each {of_what}")
    if numbers.dtype == torch.int64:
        return numbers
    if numbers.dtype == torch.bool or numbers.is_complex():
        raise InvalidError(f"{name} is {_dtype(numbers)}; it must hold whole numbers (int64).")
    whole = numbers.long()
    lost = (whole != numbers).nonzero().flatten()
    if len(lost):
        i = int(lost[0])
        raise InvalidError(
            f"{name} holds {numbers[i].item():g} for {of_what} {i}; it must hold whole numbers."
        )
    return whole


def weights(name: str, given: Any, length: int | None = None, of_what: str = "client") -> Tensor:
    """Takes one number for each client, finite and not negative, and some above zero.

    Args:
        name: What they are called, for messages.
        given: A tensor, an array or a sequence.
        length: How many there must be; None: any number.
        of_what: What each number belongs to, for messages.

    Returns:
        (n,) of a floating-point type; the given tensor itself if it is one already.

    Raises:
        ValueError: They are no such numbers, or not so many in one row.
    """
    numbers = _one_for_each(name, given, length, f"one number for each {of_what}")
    if not numbers.is_floating_point():
        numbers = numbers.double()
    wrong = ((numbers < 0) | ~numbers.isfinite()).nonzero().flatten()
    if len(wrong):
        i = int(wrong[0])
        raise InvalidError(
            f"{name} holds {numbers[i].item():g} for {of_what} {i}; a weight is finite and not "
            f"negative."
        )
    if not bool((numbers > 0).any()):
        raise InvalidError(f"{name} must have a weight above zero; all are 0.")
    return numbers


def cluster_numbers(name: str, given: Any, num_clients: int) -> Tensor:
    """Takes the cluster of each client.

    Args:
        name: What they are called, for messages.
        given: A tensor, an array or a sequence.
        num_clients: N.

    Returns:
        (N,) int64, from 0 to K-1.

    Raises:
        ValueError: They are no whole numbers, not one a client, or leave out some of 0 to K-1.
    """
    cluster_of = whole_numbers(name, given, num_clients)
    used = sorted(set(cluster_of.tolist()))
    if used != list(range(len(used))):
        raise InvalidError(
            f"{name} uses {len(used)} numbers from {used[0]} to {used[-1]}; clusters are numbered "
            f"0 to K-1 with every number used. torch.unique({name}, return_inverse=True)[1] "
            f"renumbers them so."
        )
    return cluster_of


def examples(given: Any) -> Tensor:
    """Takes inputs or targets, one row an example.

    Args:
        given: A tensor, which stays as it is; or an array or nested lists, whose fractions become
            torch's default type, float32, and whose whole numbers become int64, as models and
            losses expect them.

    Returns:
        The tensor.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(given, Tensor):
        return given
    numbers = as_tensor("A part of the examples", given)
    if numbers.is_floating_point():
        return numbers.to(torch.get_default_dtype())
    return numbers if numbers.dtype == torch.bool or numbers.is_complex() else numbers.long()


def as_tensor(name: str, given: Any) -> Tensor:
    """Takes numbers in any shape.

    Args:
        name: What they are called, for messages.
        given: A tensor, an array, a number or nested sequences.

    Returns:
        The tensor.

    Raises:
        ValueError: They are no numbers, or the rows have unequal lengths.
    """
    if isinstance(given, Tensor):
        return given
    kind = type(given).__name__
    try:
        if isinstance(given, list | tuple) and any(isinstance(part, Tensor) for part in given):
            return torch.stack([torch.as_tensor(part) for part in given])
        return torch.from_numpy(np.array(given))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidError(
            f"{name} must be numbers: a tensor, a NumPy array or a list. This {kind} is none, or "
            f"its rows are of unequal lengths."
        ) from error


Weights = Annotated[Tensor, BeforeValidator(lambda given: weights("client_weights", given))]
"""(N,), one for each client; lists and NumPy arrays are taken too."""


def _one_for_each(name: str, given: Any, length: int | None, what: str) -> Tensor:
    numbers = as_tensor(name, given)
    wanted = f"({'n' if length is None else length},)"
    if numbers.ndim != 1 or (length is not None and len(numbers) != length):
        raise InvalidError(
            f"{name} has shape {tuple(numbers.shape)}; it must have shape {wanted}, {what}."
        )
    if len(numbers) == 0:
        raise InvalidError(f"{name} is empty; give {what}.")
    return numbers


def _dtype(numbers: Tensor) -> str:
    return str(numbers.dtype).removeprefix("torch.")
