"""When a run is finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.finished import ending, is_finished
from fedvarp.runs.journal import Journal


def records(*accuracies: float | None) -> list[dict[str, Any]]:
    """Rounds 0, 1, 2, …; every other one is evaluated, from the first on."""
    return [
        {"round": t} | ({} if t % 2 else {"test_accuracy": accuracies[t // 2]})
        for t in range(2 * len(accuracies))
    ]


@pytest.mark.parametrize(
    ("settings", "accuracies", "why"),
    [
        ({"rounds": 3}, (0.1, 0.2), "rounds"),  # the newest round is 3
        ({"rounds": 4}, (0.1, 0.2), None),
        ({"rounds": 4, "evaluation": {"target_accuracy": 0.2}}, (0.1, 0.2), "target"),
        ({"rounds": 3, "evaluation": {"target_accuracy": 0.2}}, (0.1, 0.2), "target"),
        ({"rounds": 4, "evaluation": {"target_accuracy": 0.3}}, (0.1, 0.2), None),
        (
            {"rounds": 4, "evaluation": {"target_accuracy": 0.2}},
            (0.2, 0.1),
            None,
        ),  # by the newest evaluation
        (
            {"rounds": 4, "evaluation": {"target_accuracy": 0.1}},
            (0.2, None),
            None,
        ),  # it diverged since
        ({"algorithm": "fedavg"}, (0.1,), "rounds"),  # nobody says that it is to go on
        ({"rounds": 3}, (), None),  # not even the initial model is recorded
    ],
)
def test_a_run_ends_with_its_last_round_or_at_its_target(
    settings: dict[str, Any], accuracies: tuple[float | None, ...], why: str | None
) -> None:
    assert ending(settings, records(*accuracies)) == why


def trained(path: Path, rounds: int, exported: int | None) -> RunDirectory:
    run = RunDirectory(path)
    run.create({"rounds": rounds})
    journal = Journal(run.metrics_file)
    for record in records(*[0.5] * ((rounds + 1) // 2)):
        journal.append(record)
    journal.close()
    if exported is not None:
        run.export_model({"weight": torch.zeros(2)}, after_round=exported)
    return run


@pytest.mark.parametrize("target", [{}, {"evaluation": {"target_accuracy": 0.9}}])
def test_a_run_is_finished_once_its_newest_model_is_exported(
    tmp_path: Path, target: dict[str, float]
) -> None:
    assert is_finished(trained(tmp_path / "whole", 3, exported=3), {"rounds": 3} | target)
    assert not is_finished(trained(tmp_path / "older", 3, exported=2), {"rounds": 3} | target)
    assert not is_finished(trained(tmp_path / "without", 3, exported=None), {"rounds": 3} | target)
    assert not is_finished(RunDirectory(tmp_path / "nowhere"), {"rounds": 3} | target)


def test_how_far_a_run_is_to_go_is_for_the_caller_to_say(tmp_path: Path) -> None:
    run = trained(tmp_path, 3, exported=3)
    assert not is_finished(run, {"rounds": 4})
    assert is_finished(run, {"rounds": 4, "evaluation": {"target_accuracy": 0.5}})


def test_a_damaged_model_is_to_be_exported_again(tmp_path: Path) -> None:
    run = trained(tmp_path, 3, exported=3)
    run.model_file.write_bytes(b"damaged")
    assert not is_finished(run, {"rounds": 3})
