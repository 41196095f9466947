"""How far each client walked, so that rows of different clients and rounds can be compared.

A row is (w - w_i) / (η_c τ_i). Most Flower clients say neither τ_i nor η_c: all are then taken to
be equal, which leaves raw updates up to a common factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvarp.flower.replies import CLIENT_LR, NUM_STEPS, Update


class Units:
    """What the replies of the first round report is the unit of the whole run.

    Mixed units would make nonsense of the table: after a first round without `num-steps`, later
    ones are not looked at; after a first round with it, a client that is silent about it is taken
    to have walked as far as the others did lately.

    Args:
        client_lr: η_c of clients that do not report it; cancels out if it is the same for all.
    """

    def __init__(self, client_lr: float) -> None:
        self._defaults = {NUM_STEPS: 1.0, CLIENT_LR: client_lr}
        self._lately: dict[str, float] | None = None  # mean of what was reported; None: no round

    @property
    def are_settled(self) -> bool:
        """Whether the first replies have come."""
        return self._lately is not None

    @property
    def steps_are_counted(self) -> bool:
        """Whether clients report their number of steps."""
        return self._lately is not None and NUM_STEPS in self._lately

    def measure(self, updates: Sequence[Update]) -> list[tuple[int, float]]:
        """(τ_i, η_c τ_i) of each client; the first call settles the units."""
        if self._lately is None:
            self._lately = {
                key: 0.0 for key in self._defaults if all(key in u.measured for u in updates)
            }
        for key in self._lately:
            reports = [u.measured[key] for u in updates if key in u.measured]
            if reports:
                self._lately[key] = sum(reports) / len(reports)
        return [self._of(update) for update in updates]

    def _of(self, update: Update) -> tuple[int, float]:
        assert self._lately is not None
        fallback = {**self._defaults, **self._lately}
        own = {key: update.measured.get(key, fallback[key]) for key in self._lately}
        chosen = {**self._defaults, **own}
        return max(1, round(chosen[NUM_STEPS])), chosen[NUM_STEPS] * chosen[CLIENT_LR]

    def notes(self) -> Mapping[str, Any]:
        """For the checkpoint."""
        return {"lately": self._lately}

    def load(self, notes: Mapping[str, Any]) -> None:
        """Becomes what was saved."""
        self._lately = notes["lately"]
