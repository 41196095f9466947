"""A run has its own number of threads, and leaves the caller's as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from fedvarp import Callback, LocalSGD, Server, Trainer, simulate
from fedvarp.data import digits
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.models import LogisticRegression


@pytest.fixture(autouse=True)
def _three_threads_of_the_caller() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Watch(Callback):
    def __init__(self, fails: bool = False) -> None:
        self.seen: set[int] = set()
        self.fails = fails

    def on_round_begin(self, round: int, server: Server) -> None:
        self.seen.add(torch.get_num_threads())
        if self.fails:
            raise ZeroDivisionError

    def on_evaluation(self, figures: Mapping[str, float], server: Server) -> None:
        self.seen.add(torch.get_num_threads())


def train(watch: Watch, **settings: Any) -> None:
    simulate(
        digits(),
        LogisticRegression(64, 10),
        local_sgd=LocalSGD(lr=0.1, batch_size=10, epochs=1),
        clients_per_round=2,
        rounds=1,
        callbacks=[watch],
        **settings,
    )


@pytest.mark.parametrize(("settings", "threads"), [({}, 1), ({"trainer": Trainer(threads=2)}, 2)])
def test_a_run_has_one_thread_or_as_many_as_it_is_told(
    settings: dict[str, Any], threads: int
) -> None:
    train(watch := Watch(), **settings)
    assert watch.seen == {threads}
    assert torch.get_num_threads() == 3


def test_the_callers_threads_come_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        train(watch := Watch(fails=True))
    assert watch.seen == {1}
    assert torch.get_num_threads() == 3


def test_building_and_running_an_experiment_leaves_them_alone_too() -> None:
    experiment = build(load_settings("digits", ["rounds=1"]))
    assert torch.get_num_threads() == 3
    experiment.run()
    assert torch.get_num_threads() == 3
