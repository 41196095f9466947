"""Every random draw has a name: (seed, purpose, round, client, ...).

Cohorts and batches are then the same for every algorithm (a paired comparison), the same for one
worker or eight, and resuming a run needs only the round number: there is no state to save.

>>> import torch
>>> again = [torch.randperm(5, generator=stream(0, "batches", 3, 17)).tolist() for _ in range(2)]
>>> again[0] == again[1]
True
"""

from __future__ import annotations

import hashlib
import json
import operator
from typing import Final

import numpy as np
import torch

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
    name = json.dumps([operator.index(seed), purpose, *map(operator.index, key)])
    words = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * _WORDS), dtype="<u4")
    state = np.zeros(_STATE_BYTES, dtype=np.uint8)
    state[_LEFT_AT : _LEFT_AT + 8].view(np.int32)[:] = (1, 1)  # no words left to serve; seeded
    state[_WORDS_AT : _WORDS_AT + 8 * _WORDS].view(np.uint64)[:] = words
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(state))
    return generator
