"""Reading a store that somebody may be writing to."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch

from fedvarp.tables.copying import undisturbed
from fedvarp.tables.store import Store, StoreError


def test_what_changes_while_it_is_read_and_cannot_be_held_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user who may read another's run, and not write to its lock file."""
    with contextlib.closing(Store.open(tmp_path)) as store:
        store.write({("rows", "0"): torch.zeros(3)})
        monkeypatch.setattr(os, "access", lambda *_: False)
        monkeypatch.setattr(Store, "environment_here", staticmethod(lambda _: None))

        def read(*, while_it_is_written: bool) -> None:
            with undisturbed(tmp_path):
                if while_it_is_written:
                    store.write({("rows", "0"): torch.ones(3)})
                raise StoreError("seems damaged")

        with pytest.raises(StoreError, match="seems damaged"):
            read(while_it_is_written=False)
        with pytest.raises(StoreError, match="as the user who trains it"):
            read(while_it_is_written=True)
