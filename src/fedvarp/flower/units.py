"""What an update is measured in, so that rows of different rounds and clients are comparable."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedvarp.flower.replies import Update


class UpdateUnits:
    """What w − w_i is divided by to give Δ_i, and what the server's step multiplies by again.

    Plain differences are Δ_i = (w − w_i) / η(t), with one rate η(t) for all clients of a round; the
    server steps by η(t), so that FedAvg's new model is the mean of the clients' models whatever
    they report. Where steps are normalised Δ_i = (w − w_i) / (η(t) τ_i), and the server steps by
    η(t) τ̄ with τ̄ the mean τ_i of all replies used so far, which settles at the mean over clients.

    Whether clients report their rate is settled by the first round, since mixed units would make
    nonsense of the table: if not all of its replies do, later reports are ignored. If they do,
    η(t) is the median of a round's reports, and who is silent is taken to use it.

    Args:
        client_lr: η of clients that do not report it; cancels out if all rounds have the same.
        normalise_steps: Whether Δ_i is divided by τ_i.
    """

    def __init__(self, client_lr: float, normalise_steps: bool) -> None:
        self.latest_rate = client_lr
        self._normalise_steps = normalise_steps
        self._rates_are_reported: bool | None = None  # None: no round yet
        self._gradients = 0.0  # Σ τ_i of the replies used so far
        self._replies = 0  # their number

    @property
    def are_settled(self) -> bool:
        """Whether the first replies have come."""
        return self._rates_are_reported is not None

    @property
    def rates_are_reported(self) -> bool:
        """Whether the rates of rounds are those that clients report."""
        return bool(self._rates_are_reported)

    def rate_of(self, updates: Sequence[Update]) -> float:
        """The rate η(t) of a round; the first call settles whether rates are reported.

        Args:
            updates: Those of the round, at least one.

        Returns:
            The median of what they report; that of the round before if none of them does, and the
            setting `client_lr` if clients do not report it at all.
        """
        if self._rates_are_reported is None:
            self._rates_are_reported = all(update.client_lr is not None for update in updates)
        self.latest_rate = self.rate_of_late(updates)
        return self.latest_rate

    def rate_of_late(self, updates: Sequence[Update]) -> float:
        """The rate η(t) of an earlier round of which nothing was used in time.

        Args:
            updates: Late replies to that round, at least one.

        Returns:
            The median of what they report; the latest rate known if none of them does, and the
            setting `client_lr` if clients do not report it at all.
        """
        reports = [u.client_lr for u in updates if u.client_lr is not None]
        return (
            statistics.median(reports) if self._rates_are_reported and reports else self.latest_rate
        )

    def divisor(self, update: Update, rate: float) -> float:
        """What w − w_i is divided by.

        Args:
            update: Holds w − w_i, and τ_i.
            rate: η(t) of the round it was trained in.

        Returns:
            η(t), or η(t) τ_i.
        """
        return rate * update.num_gradients if self._normalise_steps else rate

    def gradients_in_row(self, update: Update) -> float:
        """How many gradients Δ_i adds up.

        Args:
            update: Holds τ_i.

        Returns:
            τ_i, or 1 where it was divided by.
        """
        return 1.0 if self._normalise_steps else update.num_gradients

    def scale(self, updates: Sequence[Update], rate: float) -> float:
        """How far the server's model moves per unit of Δ.

        Args:
            updates: Those of the round, which count for τ̄ already.
            rate: η(t).

        Returns:
            η(t), or η(t) τ̄.
        """
        if not self._normalise_steps:
            return rate
        gradients = self._gradients + sum(update.num_gradients for update in updates)
        return rate * gradients / (self._replies + len(updates))

    def count(self, updates: Sequence[Update]) -> None:
        """Notes the steps of clients whose replies were used.

        Args:
            updates: Any number of them.
        """
        self._gradients += sum(update.num_gradients for update in updates)
        self._replies += len(updates)

    def state_dict(self) -> Mapping[str, Any]:
        """What a checkpoint keeps of it, as JSON can hold it."""
        return {
            "rates_are_reported": self._rates_are_reported,
            "latest_rate": self.latest_rate,
            "gradients": self._gradients,
            "replies": self._replies,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave.

        Args:
            state: From a checkpoint.
        """
        self._rates_are_reported = state["rates_are_reported"]
        self.latest_rate = state["latest_rate"]
        self._gradients = state["gradients"]
        self._replies = state["replies"]
