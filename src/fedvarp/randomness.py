"""Every random draw has a name: (seed, purpose, round, client, ...).

Cohorts and batches are then the same for every algorithm (a paired comparison), the same for one
worker or eight, and resuming a run needs only the round number: there is no state to save.

>>> import torch
>>> again = [torch.rand(5, generator=stream(0, "augment", 3, 17)).tolist() for _ in range(2)]
>>> again[0] == again[1]
True
>>> shuffles(0, "batches", 3, [17, 4], size=5, count=2).shape  # two of 0 ... 4 for each client
torch.Size([2, 2, 5])
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

# How torch stores its Mersenne Twister (624 words of 32 bits, one in each 64-bit cell): 24 bytes of
# counters, the words, then caches of the normal distribution. `tests/test_randomness.py` holds this
# against NumPy's own Mersenne Twister.
_STATE_BYTES: Final = 5056
_WORDS: Final = 624
_WORDS_AT: Final = 24
_LEFT_AT: Final = 8


def stream(seed: int, purpose: str, *key: int) -> torch.Generator:
    """Makes an independent CPU generator for one purpose; equal arguments give equal draws.

    The key is expanded by SHAKE-256 to the whole state of the generator. Seeding with a hash of the
    key would not do: torch keeps 32 bits of a seed, so among 10⁵ streams two would be the same one.

    Args:
        seed: The run's seed.
        purpose: What is drawn, for instance ``"cohort"`` or ``"batches"``.
        *key: What it is drawn for, for instance the round and the client.

    Returns:
        A generator at the beginning of its stream.
    """
    hashed = hashlib.shake_256(_name(seed, purpose, *key).encode()).digest(4 * _WORDS)
    words = np.frombuffer(hashed, dtype="<u4")
    state = np.zeros(_STATE_BYTES, dtype=np.uint8)
    state[_LEFT_AT : _LEFT_AT + 8].view(np.int32)[:] = (1, 1)  # no words left to serve; seeded
    state[_WORDS_AT : _WORDS_AT + 8 * _WORDS].view(np.uint64)[:] = words
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(state))
    return generator


def shuffles(
    seed: int, purpose: str, round: int, clients: Sequence[int], size: int, count: int
) -> Tensor:
    """Shuffles 0 ... size - 1 several times for each of some clients, in a few operations for all.

    Every number is given a random word, and the words are sorted. A client's words are the hash of
    its own key, so that its shuffles depend neither on who else is asked for nor on how many of
    them are; equal arguments give equal shuffles.

    Args:
        seed: The run's seed.
        purpose: What is drawn, for instance ``"batches"``.
        round: The round they are drawn for.
        clients: The clients.
        size: How many numbers are shuffled.
        count: How many shuffles each client has.

    Returns:
        (clients, count, size) int64.
    """
    before = _name(seed, purpose, round)[:-1]  # of a client's own name
    names = [f"{before}, {operator.index(client)}]" for client in clients]
    hashed = [hashlib.shake_256(name.encode()).digest(8 * count * size) for name in names]
    words = np.frombuffer(b"".join(hashed), dtype="<u8").reshape(len(hashed), count, size)
    # A word ends in its own number: no two are equal, and sorting carries the numbers along.
    number = np.uint64((1 << (size - 1).bit_length()) - 1)
    words = words & ~number | np.arange(size, dtype=np.uint64)
    words.sort(axis=2)
    return torch.from_numpy((words & number).view(np.int64))


def _name(seed: int, purpose: str, *key: int) -> str:
    """What is hashed: two keys never have the same name."""
    return json.dumps([operator.index(seed), purpose, *map(operator.index, key)])
