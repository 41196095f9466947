"""How many threads torch computes with during a run, and not a moment longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Lets torch compute with so many threads in the `with` block; afterwards as before.

    Args:
        count: How many; None: one. Clients have small batches, over which several threads lose more
            time waiting for each other than they gain, most of all on a busy machine; and sums of
            floats depend on their number, so that it must not be whatever the machine has.

    >>> before = torch.get_num_threads()
    >>> with torch_threads(None):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
