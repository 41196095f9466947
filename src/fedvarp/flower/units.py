"""What an update is measured in, so that rows of different rounds and clients are comparable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from flwr.app import ConfigRecord

from fedvarp.flower.claims import FEW, Claims, RateClaims
from fedvarp.flower.replies import Update

RateSource = Literal["reported", "sent", "setting"]

_USUAL_NAMES: Final = ("client-lr", "lr", "learning-rate", "local-lr", "eta")  # or with _


class UpdateUnits:
    """What w − w_i is divided by to give Δ_i, and what the server's step multiplies by again.

    Plain differences are Δ_i = (w − w_i) / η(t), with one rate η(t) for all clients of a round; the
    server steps by η(t), so that FedAvg's new model is the mean of the clients' models whatever
    they report. Where steps are normalised Δ_i = (w − w_i) / (η(t) τ_i), and the server steps by
    η(t) τ̄ with τ̄ the mean τ_i of all replies used so far, which settles at the mean over clients.

    Where the rate of a round is known from is settled by the first round, since mixed units would
    make nonsense of the table: from what all of its replies report, if there are three at least or
    nothing was sent; else from the configuration that was sent to its clients; else it is the
    setting. Then η(t) is the median of a round's reports, and who is silent is taken to use it; or
    what was sent with the round.

    What clients report is believed as far as `claims` says.

    Args:
        client_lr: η where nobody tells it; cancels out if all rounds have the same.
        normalise_steps: Whether Δ_i is divided by τ_i.
        within: By which factor what a client reports may differ from the median; None: any.
    """

    def __init__(
        self, client_lr: float, normalise_steps: bool, within: float | None = None
    ) -> None:
        self.latest_rate = client_lr
        self._rates = RateClaims()
        self._examples, self._steps = Claims(within), Claims(within)
        self._normalise_steps = normalise_steps
        self.source: RateSource | None = None  # None: no round yet
        self._gradients = 0.0  # Σ τ_i of the replies used so far
        self._replies = 0  # their number

    @property
    def are_settled(self) -> bool:
        """Whether the first replies have come."""
        return self.source is not None

    def rate_of(self, updates: Sequence[Update], sent: float | None) -> float:
        """The rate η(t) of a round; the first call settles where it is known from.

        Args:
            updates: Those of the round, at least one.
            sent: What its clients were sent; None: nothing. A first round of rate 0, in which
                nobody moves, settles nothing.

        Returns:
            η(t); that of the round before if nobody tells it, and the setting `client_lr` if nobody
            ever does.
        """
        if self.source is None and sent != 0:
            reported = all(update.client_lr is not None for update in updates)
            if reported and (sent is None or len(updates) >= FEW):
                self.source = "reported"
            else:
                self.source = "setting" if sent is None else "sent"
        self.latest_rate = self.rate_of_late(updates, sent)
        return self.latest_rate

    def rate_of_late(self, updates: Sequence[Update], sent: float | None) -> float:
        """The rate η(t) of an earlier round of which nothing was used in time.

        Args:
            updates: Late replies to that round, at least one.
            sent: What its clients were sent; None: nothing.

        Returns:
            η(t), as in `rate_of`.
        """
        reports = [u.client_lr for u in updates if u.client_lr is not None]
        if self.source == "reported" and reports:
            return self._rates.believed(reports, sent or None)
        return self.latest_rate if self.source == "setting" else sent or self.latest_rate

    def believed(self, updates: Sequence[Update]) -> list[Update]:
        """Updates with what is believed of what their clients say of themselves.

        Args:
            updates: As they were read.

        Returns:
            The same, with other numbers of examples and gradients where they said absurd ones.
        """
        examples = self._examples.believed([update.num_examples for update in updates])
        gradients = self._steps.believed([update.num_gradients for update in updates])
        return [
            update
            if (n, tau) == (update.num_examples, update.num_gradients)
            else replace(update, num_examples=n, num_gradients=tau)
            for update, n, tau in zip(updates, examples, gradients, strict=True)
        ]

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
        gradients = self._gradients + math.fsum(update.num_gradients for update in updates)
        return rate * gradients / (self._replies + len(updates))

    def count(self, updates: Sequence[Update]) -> None:
        """Notes what clients say whose replies were used.

        Args:
            updates: Any number of them.
        """
        self._gradients += math.fsum(update.num_gradients for update in updates)
        self._replies += len(updates)
        self._steps.count([update.num_gradients for update in updates])
        self._examples.count([update.num_examples for update in updates])

    def state_dict(self) -> Mapping[str, Any]:
        """What a checkpoint keeps of it, as JSON can hold it."""
        return {
            "source": self.source,
            "latest_rate": self.latest_rate,
            "gradients": self._gradients,
            "replies": self._replies,
            "claims": {name: claims.used for name, claims in self._claims.items()},
            "rates": self._rates.known,
        }

    @property
    def _claims(self) -> dict[str, Claims]:
        return {"examples": self._examples, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave.

        Args:
            state: From a checkpoint.
        """
        once: Mapping[bool | None, RateSource | None]
        once = {True: "reported", False: "setting", None: None}  # before rates were sent
        self.source = state["source"] if "source" in state else once[state["rates_are_reported"]]
        self.latest_rate = state["latest_rate"]
        self._gradients = state["gradients"]
        self._replies = state["replies"]
        self._rates.known = [*state.get("rates", [])[:1], *state.get("rates", [])[-1:]]
        for name, claims in self._claims.items():
            claims.used = list(state.get("claims", {}).get(name, []))


def rate_sent(config: ConfigRecord, key: str | None) -> float | None:
    """The rate that a configuration tells its client to use.

    Args:
        config: As it is sent.
        key: Where it stands; None: under one of the usual names.

    Returns:
        The rate, 0 if clients are told to stay where they are; None if it holds none.
    """
    usual = [spelt for name in _USUAL_NAMES for spelt in (name, name.replace("-", "_"))]
    for name in usual if key is None else [key]:
        rate = config.get(name)
        if isinstance(rate, int | float) and 0 <= rate < math.inf:
            return float(rate)
    return None
