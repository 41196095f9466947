"""Flower strategies without a Flower: what its runtime would have set up around them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from flwr.supercore.task_identity import TaskIdentity


@contextlib.contextmanager
def inside_a_server_app(log_from: int = logging.ERROR) -> Iterator[None]:
    """Stamps messages with a sender, and quiets Flower's log meanwhile; decorates, too.

    Args:
        log_from: The level below which nothing is logged.
    """
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(log_from)
    try:
        yield
    finally:
        logger.setLevel(before)
