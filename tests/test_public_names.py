"""What the rooms offer: every name of their lists is there."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedvarp

ROOMS = sorted(
    ".".join(("fedvarp", *stub.parent.relative_to(Path(str(fedvarp.__file__)).parent).parts))
    for stub in Path(str(fedvarp.__file__)).parent.rglob("__init__.pyi")
)


def test_there_are_rooms() -> None:
    assert {"fedvarp", "fedvarp.tables", "fedvarp.trainers", "fedvarp.clients"} <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_room_is_there(room: str) -> None:
    if room == "fedvarp.flower" and find_spec("flwr") is None:
        pytest.skip("the extra fedvarp[flower] is not installed")
    module = importlib.import_module(room)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)
