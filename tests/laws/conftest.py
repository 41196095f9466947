"""Which of the laws run every time, and which with `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

HEART = ("fedvarp", "cluster_fedvarp")
OFTEN = {("memory", "float64"), ("memory", "int8"), ("disk", "float32")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Every algorithm over every codec in every place is slow; the paper's own two always run.

    Tables meet every codec in every place in laws of their own. What an algorithm adds to that is
    seen in the places and codecs above.
    """
    for item in items:
        told = (
            item.callspec.params
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else {}
        )
        where = (told.get("place", "memory"), told.get("codec", "float64"))
        if told.get("algorithm", HEART[0]) not in HEART and where not in OFTEN:
            item.add_marker(pytest.mark.slow)
