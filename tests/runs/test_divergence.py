"""Whether a run learned anything, by its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedvarp.runs.divergence import FEWEST_ROUNDS, judged

NAN = "its loss or weights turned non-finite; lower the client rate"


def records(
    rounds: int, losses: Sequence[float | None] = (), accuracies: Sequence[float] = (), **each: Any
) -> list[dict[str, Any]]:
    """As many rounds with two replies each; figures at the first and the last."""
    made: list[dict[str, Any]] = [{"round": 0}]
    made += [{"round": t, "clients": [0, 1], "refused": {}, **each} for t in range(1, rounds + 1)]
    for name, values in (("train_loss", losses), ("test_accuracy", accuracies)):
        for at, value in zip((0, -1), values, strict=False):
            made[at][name] = value
    return made


def refuse_all(some: Sequence[dict[str, Any]], why: str = NAN) -> None:
    for record in some:
        record |= {"clients": [], "refused": {"0": why, "1": why}}


def test_a_run_that_learned_is_left_in_peace() -> None:
    verdict = judged(records(20, [2.3, 0.5], [0.1, 0.9]))
    assert (verdict.replies, verdict.refused) == (40, 0)
    assert verdict.warning is None
    assert judged([]).warning is None


def test_refusals_are_counted_with_their_commonest_reason() -> None:
    """Reasons that differ in their numbers alone are one: 2 + 1 against 2."""
    run = records(20, [2.3, 0.5])
    refuse_all(run[1:2], "its update reaches 1.0e+20: local training diverged")
    run[2]["refused"] = {"5": "its update reaches 3.4e+19: local training diverged"}
    refuse_all(run[3:4], "it reports 0 local steps")
    verdict = judged(run)
    assert (verdict.refused, verdict.replies) == (5, 41)
    assert verdict.refused_because == "its update reaches 3.4e+19: local training diverged"
    assert verdict.nothing_learned is None
    assert verdict.warning is not None
    assert "5 of 41 replies were refused" in verdict.warning


@pytest.mark.parametrize("rounds", [1, 3, 40])
def test_without_a_usable_reply_nothing_is_learned_however_short_the_run(rounds: int) -> None:
    run = records(rounds, [2.3, 2.3])
    refuse_all(run[1:])
    assert "whole run no reply" in str(judged(run).nothing_learned)


@pytest.mark.parametrize(
    ("rounds", "last", "stuck"),
    [
        (40, FEWEST_ROUNDS - 1, False),
        (40, FEWEST_ROUNDS, True),
        (400, 39, False),  # a tenth of 400 is 40
        (400, 40, True),
    ],
)
def test_a_run_is_stuck_once_its_last_rounds_had_no_usable_reply(
    rounds: int, last: int, stuck: bool
) -> None:
    run = records(rounds, [2.3, 0.5])
    refuse_all(run[-last:])
    assert (judged(run).nothing_learned is not None) == stuck


def test_rounds_in_which_nobody_answered_are_no_refusals() -> None:
    run = records(40, [2.3, 0.5])
    for record in run[5:]:
        record["clients"] = []
    assert judged(run).nothing_learned is None


@pytest.mark.parametrize(
    ("rounds", "losses", "accuracies", "learned"),
    [
        (20, [2.3, 2.2], [], True),
        (20, [2.3, 2.31], [], True),  # less than 1 % is noise
        (20, [2.3, 2.4], [], False),
        (20, [2.3, 1e36], [0.1, 0.15], False),  # an accuracy by luck
        (20, [2.3, 2.9], [0.1, 0.4], True),  # over-confident, but better
        (20, [2.3, None], [0.1, 0.1], False),
        (20, [-5.0, -9.0], [], True),  # a likelihood
        (20, [-5.0, -3.0], [], False),
        (3, [2.3, 4.0], [], True),  # too early to say
        (3, [2.3, 1e6], [], False),
        (3, [2.3, None], [], False),
        (20, [2.3], [], True),  # never evaluated since
        (20, [2.3, 2.3], [0.1, 0.1], False),  # nothing moved
        (20, [2.3, 2.2999], [], True),  # slowly
        (20, [0.0, 0.0], [], True),  # there was nothing to learn
        (9, [2.3, 2.3], [], True),  # too early to say
    ],
)
def test_what_the_loss_says(
    rounds: int, losses: list[float | None], accuracies: list[float], learned: bool
) -> None:
    assert (judged(records(rounds, losses, accuracies)).nothing_learned is None) == learned


@pytest.mark.parametrize(
    ("last", "causes"),
    [
        (2.9, ["rate that is too high", "lower local_sgd.lr", "wrong sign"]),
        (2.3, ["raise local_sgd.lr", "v is zero", "detach()"]),
        (None, ["lower local_sgd.lr"]),
    ],
)
def test_the_likely_causes_are_named(last: float | None, causes: list[str]) -> None:
    warning = str(judged(records(20, [2.3, last])).warning)
    assert all(cause in warning for cause in causes)


def test_the_test_loss_speaks_only_where_there_is_no_training_loss() -> None:
    run = records(20, [2.3, 0.5])
    run[0]["test_loss"], run[-1]["test_loss"] = 2.3, 9.9  # overfitting
    assert judged(run).nothing_learned is None
    del run[0]["train_loss"], run[-1]["train_loss"]
    assert "test loss is 9.9" in str(judged(run).nothing_learned)
