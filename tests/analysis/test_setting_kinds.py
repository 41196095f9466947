"""Settings by what they mean to a comparison."""

from __future__ import annotations

import pytest

from fedvarp.analysis.setting_kinds import (
    METHOD,
    RUNNING,
    axis_label,
    is_of_the_method,
    is_of_the_running,
    shown_name,
)


@pytest.mark.parametrize(
    ("name", "running", "method"),
    [
        ("trainer.workers", True, False),
        ("recording.commit_every", True, False),
        ("evaluation.target_accuracy", True, False),
        ("evaluation.every", False, False),
        ("table.where", True, True),  # ignored, before anybody asks whether it is of the method
        ("table.codec", False, True),
        ("server.lr", False, True),
        ("local_sgd.schedule.name", False, True),
        ("local_sgd.epochs", False, False),
        ("clients_per_round", False, False),
        ("algorithm_of_mine", False, False),  # a name that only begins alike
    ],
)
def test_kinds(name: str, running: bool, method: bool) -> None:
    assert is_of_the_running(name) is running
    assert is_of_the_method(name) is method


def test_every_name_has_its_sentence() -> None:
    assert all(sentence.endswith(".") for sentence in (*RUNNING.values(), *METHOD.values()))


def test_names_are_short_where_that_is_clear() -> None:
    names = ["data.name", "model.name", "data.alpha", "local_sgd.momentum", "server.momentum"]
    shown = [shown_name(name, names) for name in names]
    assert shown == ["data.name", "model.name", "alpha", "momentum", "server.momentum"]


def test_axes_have_the_papers_letters_or_the_settings_name() -> None:
    assert axis_label("table.clusters") == "Clusters K"
    assert axis_label("data.seed") == "data.seed"
