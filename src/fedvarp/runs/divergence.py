"""Whether a run went wrong: how many replies were refused, and whether anything was learned."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedvarp.errors import plain

FEWEST_ROUNDS: Final = 10
"""A run learns no more once no reply was usable in this many rounds, or in its last tenth if that
is longer; a run without any usable reply never did. In fewer rounds a loss may well rise first."""

_LOSSES: Final = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "validation_loss": "validation loss",
}
_RISEN: Final = 0.01  # of the first loss: less is no growth, but noise around an optimum
_RISEN_SOON: Final = 100  # the same before FEWEST_ROUNDS
_UNMOVED: Final = 1e-7  # of the first loss: rounding, not a step
_LEARNED_ALL_THE_SAME: Final = 0.1  # accuracy gained: an over-confident model has a high loss too
_LOWER_THE_RATE: Final = "lower local_sgd.lr, perhaps tenfold"
_NO_STEP: Final = (
    "The model may not have moved (an algorithm whose v is zero, a rate that is far too low: raise "
    "local_sgd.lr), or the loss may not depend on it (look for detach() or no_grad() in it)."
)
_UPHILL: Final = (
    f"The usual causes are a rate that is too high ({_LOWER_THE_RATE}) and, with an algorithm or "
    f"optimiser of one's own, a v of the wrong sign: w moves against v, the mean of w − w_i."
)
_TOO_FAST: Final = f"The usual cause is a rate that is too high: {_LOWER_THE_RATE}."
_NUMBER: Final = re.compile(r"\d[\d.e+-]*")  # tells apart reasons that are the same otherwise


@dataclass(frozen=True)
class Verdict:
    """What the records of a run say of its health.

    Attributes:
        replies: How many came, whether or not they could be used.
        refused: How many could not.
        refused_because: The commonest reason, as the server gave it last; None without any.
        nothing_learned: How one can tell, in words that go on a sentence; None if something was
            learned, or it is too early to say.
        way_out: What is likely to have caused that, and what to try; None with it.
    """

    replies: int
    refused: int
    refused_because: str | None
    nothing_learned: str | None
    way_out: str | None

    @property
    def refusals(self) -> str | None:
        """How many replies were refused and why, in a sentence; None if none was."""
        if not self.refused:
            return None
        because = self.refused_because and plain(self.refused_because)
        why = f", most often for this: {because}" if because else ""
        return f"{self.refused:,} of {self.replies:,} replies were refused{why}."

    @property
    def warning(self) -> str | None:
        """All there is to warn of, with the way out; None if there is nothing."""
        said = []
        if self.nothing_learned:
            said.append(f"Nothing was learned: {self.nothing_learned}. {self.way_out}")
        if self.refusals:
            said.append(self.refusals)
        return " ".join(said) or None


def judged(metrics: Sequence[Mapping[str, Any]]) -> Verdict:
    """Looks through the records of a run.

    Nothing was learned if no reply was usable in the last rounds (see `FEWEST_ROUNDS`); or if at
    the last evaluation the training loss (without one, that of other examples) is not finite, or is
    that of the initial model or more than 1 % above it while accuracy has not grown by 10 points.
    In less than `FEWEST_ROUNDS` rounds only a hundredfold loss counts.

    Args:
        metrics: The records, the first of the initial model. Those of a compacted run have sums.

    Returns:
        The verdict.

    >>> diverged = "its loss or weights turned non-finite; lower the client rate"
    >>> first = {"round": 0, "train_loss": 2.3}
    >>> verdict = judged([first, {"round": 1, "clients": [], "refused": {"7": diverged}}])
    >>> verdict.refusals
    '1 of 1 replies were refused, most often for this: its loss or weights turned non-finite; \
lower the client rate.'
    >>> verdict.nothing_learned
    'in the whole run no reply could be used'
    """
    counts = [counted(record) for record in metrics]
    in_vain = _without_replies(metrics, counts)
    nothing_learned, way_out = (in_vain, _TOO_FAST) if in_vain else _by_the_loss(metrics)
    return Verdict(
        replies=sum(replies for replies, _ in counts),
        refused=sum(refused for _, refused in counts),
        refused_because=_commonest(metrics),
        nothing_learned=nothing_learned,
        way_out=way_out,
    )


def counted(record: Mapping[str, Any]) -> tuple[int, int]:
    """Counts the replies of a round.

    Args:
        record: Of the round; or of several, in a compacted run.

    Returns:
        How many came, and how many of them were refused.
    """
    refused = record.get("num_refused", len(record.get("refused", ())))
    return record.get("num_replies", len(record.get("clients", ())) + refused), refused


def _commonest(metrics: Sequence[Mapping[str, Any]]) -> str | None:
    reasons: Counter[str] = Counter()
    newest: dict[str, str] = {}
    for record in metrics:
        told = [record["refused_because"]] if "refused_because" in record else []
        for why in [*told, *record.get("refused", {}).values()]:
            kind = _NUMBER.sub("…", why)
            reasons[kind] += 1
            newest[kind] = why
    return newest[reasons.most_common(1)[0][0]] if reasons else None


def _without_replies(
    metrics: Sequence[Mapping[str, Any]], counts: Sequence[tuple[int, int]]
) -> str | None:
    last = metrics[-1]["round"] if metrics else 0
    in_vain = 0  # rounds since the newest usable reply in which clients did answer
    for i in range(len(metrics) - 1, 0, -1):
        replies, refused = counts[i]
        if replies > refused:
            enough = max(FEWEST_ROUNDS, last / 10)
            return (
                f"in the last {in_vain} rounds no reply could be used"
                if in_vain >= enough
                else None
            )
        if refused:
            in_vain += metrics[i]["round"] - metrics[i - 1]["round"]
    return "in the whole run no reply could be used" if in_vain else None


def _by_the_loss(metrics: Sequence[Mapping[str, Any]]) -> tuple[str | None, str | None]:
    for name, words in _LOSSES.items():
        evaluated = [record for record in metrics if name in record]
        if len(evaluated) < 2 or evaluated[0]["round"] != 0:
            continue
        first, last = evaluated[0], evaluated[-1]
        before, now = first[name], last[name]
        if now is None:  # metrics.jsonl has null for what is not finite
            return f"at the end the {words} is not finite", _TOO_FAST
        if before is None:
            break
        is_long = last["round"] >= FEWEST_ROUNDS
        grown, whole = now - before, abs(before)
        gained = (last.get("test_accuracy") or 0.0) - (first.get("test_accuracy") or 0.0)
        if gained >= _LEARNED_ALL_THE_SAME:
            break
        if grown > (_RISEN if is_long else _RISEN_SOON) * whole:
            above = f"{now:.3g}, above the {before:.3g} of the first model"
            return f"at the end the {words} is {above}", _UPHILL
        if is_long and whole > 0 and abs(grown) <= _UNMOVED * whole:
            return f"at the end the {words} is still the {before:.3g} of the first model", _NO_STEP
        break
    return None, None
