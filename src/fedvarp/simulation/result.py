"""What a run leaves behind, and how it shows itself at a prompt and in a notebook."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from torch import nn

from fedvarp.runs.figures import FIGURES
from fedvarp.server.server import Server
from fedvarp.simulation.callbacks import Record
from fedvarp.simulation.result_html import result_html

Stopped = Literal["rounds", "target", "callback", "interrupted"]

_WHY: Mapping[Stopped, str] = {
    "rounds": "all rounds are done",
    "target": "the target was reached",
    "callback": "a callback ended it",
    "interrupted": "it was interrupted",
}


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """What a run leaves behind."""

    server: Server
    model: nn.Module  # the module that was passed in, with the final weights
    metrics: list[Record]  # one for each round, the first for the initial model
    stopped: Stopped  # why it ended
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested, as in config.toml

    def final(self, name: str) -> float:
        """The last value of a metric, such as "test_accuracy".

        Args:
            name: One that a round recorded.

        Returns:
            The newest value that is a finite number.

        Raises:
            KeyError: No round recorded it; names those that were recorded.
        """
        last = self._last_values()
        if name in last:
            return last[name]
        near = get_close_matches(name, last, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        if name in FIGURES and name.endswith("accuracy"):
            hint = (
                " An accuracy needs test examples and the number of classes of the data set: "
                "test=… and num_classes=…."
            )
        if any(name in record for record in self.metrics):
            hint = " It was measured and was never a finite number."
        raise KeyError(f"No round recorded {name!r}.{hint} There are {', '.join(last)}.")

    def plot(self, out: str | os.PathLike[str] | None = None, **how: Any) -> Any:
        """Draws its curves; `fedvarp.analysis.plot` draws several runs beside each other.

        Args:
            out: The file; its ending says PNG, SVG or PDF. None: the figure is returned.
            how: What else `fedvarp.analysis.plot` takes, such as ``metrics=["test_auc"]``.

        Returns:
            The file, or the figure of matplotlib, which a notebook shows.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from fedvarp.analysis.curve_plots import plot

        return plot(self, out, **how)

    @property
    def algorithm(self) -> str:
        """The name of the algorithm's class."""
        return type(self.server.aggregator.unwrapped).__name__

    def __repr__(self) -> str:
        last = self._last_values()
        figures = ", ".join(f"{name} {last[name]:.4g}" for name in FIGURES if name in last)
        return (
            f"SimulationResult({self.algorithm} after {self.server.round} rounds: "
            f"{_WHY[self.stopped]}\n  {figures or 'nothing was evaluated'})"
        )

    def _repr_html_(self) -> str:
        """A small table and the curves, for notebooks."""
        title = f"{self.algorithm} after {self.server.round} rounds: {_WHY[self.stopped]}"
        return result_html(title, self.metrics)

    def _last_values(self) -> dict[str, float]:
        """The newest number under each name, the figures of evaluations first."""
        values: dict[str, float] = {}
        for record in self.metrics:
            values |= {n: float(v) for n, v in record.items() if isinstance(v, (int, float))}
        return {n: values[n] for n in (*(f for f in FIGURES if f in values), *values)}
