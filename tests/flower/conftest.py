"""What all tests of the room share. The apps are packed and sent by Flower; they are no modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flower.deployment import Deployment
    from flower.handmade_replies import Round

collect_ignore = ["deployed_app", "stock_app"]

# Flower is imported in the fixtures only: this file is read where it is not installed, too.


@pytest.fixture(autouse=True)
def server_app() -> None:
    """Messages are stamped with who sends them."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


@pytest.fixture
def one_round() -> Round:
    """Twelve clients that have never been asked, of FedVARP."""
    from flower.handmade_replies import Round, a_strategy

    return Round(a_strategy())


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Three SuperNodes at a SuperLink, all of them processes of their own."""
    from flower.deployment import NUM_CLIENTS, deployed

    with deployed(tmp_path, NUM_CLIENTS) as started:
        yield started
