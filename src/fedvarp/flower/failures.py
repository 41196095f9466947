"""A run that learns nothing ends with an error that says why, not as a success."""

from __future__ import annotations

from collections import Counter

from fedvarp.errors import FedvarpError
from fedvarp.flower.reception import Outcome


class NoUsableReplyError(FedvarpError):
    """So many rounds running had no reply that could be used; the message counts the reasons."""


class FailedRounds:
    """Counts the rounds since the last one of any use, and why they were not.

    Args:
        limit: With so many of them running the run fails; None: never.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._rounds = 0
        self._reasons: Counter[str] = Counter()

    def note(self, outcome: Outcome, num_asked: int) -> None:
        """Takes a round into account.

        Args:
            outcome: What became of its replies.
            num_asked: How many nodes were asked.

        Raises:
            NoUsableReplyError: It is one too many without a reply that could be used.
        """
        if outcome.accepted or outcome.refreshed:
            self._rounds = 0
            self._reasons.clear()
            return
        self._rounds += 1
        self._reasons.update(why for _, why in outcome.refused)
        if num_asked == 0:
            self._reasons["too few nodes were online, or select() chose nobody"] += 1
        elif num_asked > len(outcome.refused):
            self._reasons["no reply within the timeout"] += num_asked - len(outcome.refused)
        if self._rounds == self._limit:
            told = "; ".join(f"{n} × {why.rstrip('.')}" for why, n in self._reasons.most_common(5))
            raise NoUsableReplyError(
                f"No reply could be used in {self._rounds} rounds running: {told}. Look into the "
                f"log of a client; with max_failed_rounds=None the run would go on all the same."
            )
