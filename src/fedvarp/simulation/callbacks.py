"""Callbacks: what others want to do while a run goes on.

>>> class Patience(Callback):
...     def __init__(self, rounds: int) -> None:
...         self.left, self.best = rounds, float("inf")
...
...     def on_evaluation(self, figures, server):
...         self.best = min(self.best, figures["test_loss"])
...         return {"best_test_loss": self.best}  # stands in the record from now on
...
...     def on_round_end(self, record, server):
...         self.left -= 1
...         if self.left == 0:
...             raise StopRun("patience is at an end")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvarp.server.server import Server
    from fedvarp.simulation.result import SimulationResult

Record = dict[str, Any]
"""What is known of one round, as a line of metrics.jsonl."""


class StopRun(Exception):  # noqa: N818  # it is no error
    """Raised by a callback in `on_evaluation` or `on_round_end`: the run ends after this round.

    The round counts, and is recorded with what the callback had added before.
    """


class Callback:
    """Told of each step of a run; a subclass says what it does at those it cares for.

    Callbacks are told of a round before the next one trains. So with callbacks, workers that would
    wait for a round's last client cannot fill the time with the evaluation of the model before.
    """

    def on_round_begin(self, round: int, server: Server) -> None:
        """This round, counted from 0, is about to begin; its cohort may have been drawn already."""

    def on_evaluation(
        self, figures: Mapping[str, float], server: Server
    ) -> Mapping[str, float] | None:
        """The server's model was evaluated.

        Args:
            figures: What was found, such as ``{"test_accuracy": 0.5}``.
            server: The server, with the model that was evaluated.

        Returns:
            Metrics to add to the round's record; None: none.

        Raises:
            StopRun: To end the run after this round.
        """
        return None

    def on_round_end(self, record: Mapping[str, Any], server: Server) -> Mapping[str, float] | None:
        """A round is over, evaluated if it was to be, and about to be recorded.

        Args:
            record: What is known of the round.
            server: The server after the round.

        Returns:
            Metrics to add to the record; None: none.

        Raises:
            StopRun: To end the run after this round.
        """
        return None

    def on_run_end(self, result: SimulationResult) -> None:
        """The run is over, for whatever reason but an error; all of it is recorded.

        Args:
            result: What `simulate` returns.
        """


@dataclass
class OnRoundEnd(Callback):
    """A plain function as a callback: called with each round's record and the server."""

    function: Callable[[Mapping[str, Any], Server], Mapping[str, float] | None]

    def on_round_end(self, record: Mapping[str, Any], server: Server) -> Mapping[str, float] | None:
        """Calls the function; what it returns is added to the record."""
        return self.function(record, server)
