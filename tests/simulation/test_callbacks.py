"""Callbacks: when each is called, what it may add to a record, and how it ends a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import fedvarp
from fedvarp import Callback, Evaluation, Recording, Server, SimulationResult, StopRun
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from small_federation import SGD, dataset, linear, run, seeded


class Noting(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def on_round_begin(self, round: int, server: Server) -> None:
        self.told.append(("begin", round))

    def on_evaluation(self, figures: Mapping[str, float], server: Server) -> None:
        assert figures["train_loss"] > 0
        self.told.append(("evaluation", server.round))

    def on_round_end(self, record: Mapping[str, Any], server: Server) -> None:
        assert record["round"] == server.round
        self.told.append(("end", server.round))

    def on_run_end(self, result: SimulationResult) -> None:
        self.told.append(("run", result.server.round))


def test_the_steps_of_a_run_in_their_order() -> None:
    noting = Noting()
    run(rounds=3, evaluate_every=2, callbacks=[noting])
    assert noting.told == [
        *(("evaluation", 0), ("end", 0)),
        *(("begin", 0), ("end", 1)),
        *(("begin", 1), ("evaluation", 2), ("end", 2)),
        *(("begin", 2), ("evaluation", 3), ("end", 3)),  # the last round is always evaluated
        ("run", 3),
    ]


def test_callbacks_meet_the_model_of_their_record_whoever_trains() -> None:
    models: dict[str, list[torch.Tensor]] = {"sequential": [], "parallel": []}

    class Keeping(Callback):
        def __init__(self, kept: list[torch.Tensor]) -> None:
            self.kept = kept

        def on_round_end(self, record: Mapping[str, Any], server: Server) -> None:
            self.kept.append(server.w.clone())

    for trainer, kept in models.items():
        run(rounds=4, evaluate_every=1, trainer=trainer, workers=2, callbacks=[Keeping(kept)])
    assert len(models["parallel"]) == 5
    for found, expected in zip(models["parallel"], models["sequential"], strict=True):
        assert torch.equal(found, expected)


def test_metrics_of_a_callback_are_recorded_with_the_round(tmp_path: Path) -> None:
    class Length(Callback):
        def on_round_end(self, record: Mapping[str, Any], server: Server) -> dict[str, float]:
            return {"length_of_w": float(server.w.norm()), "undefined": float("nan")}

    result = run(rounds=2, out=tmp_path, callbacks=[Length()])
    assert result.final("length_of_w") == float(result.server.w.norm())
    assert RunDirectory(tmp_path).metrics() == result.metrics
    assert result.metrics[-1]["undefined"] is None  # as JSON has it


@pytest.mark.parametrize("taken", ["round", "train_loss", "num_steps"])
def test_a_metric_cannot_take_the_place_of_another(taken: str) -> None:
    class Overwriting(Callback):
        def on_round_end(self, record: Mapping[str, Any], server: Server) -> dict[str, float]:
            return {taken: 0.0}

    with pytest.raises(ValueError, match=rf"Overwriting adds .*{taken}.*another name"):
        run(rounds=1, evaluate_every=1, callbacks=[Overwriting()])


@pytest.mark.parametrize("trainer", ["sequential", "parallel"])
def test_a_callback_ends_the_run_after_the_round_it_has_seen(trainer: str, tmp_path: Path) -> None:
    class After(Callback):
        def on_round_end(self, record: Mapping[str, Any], server: Server) -> None:
            if record["round"] == 3:
                raise StopRun("enough")

    given: dict[str, Any] = {"trainer": trainer, "workers": 2, "evaluate_every": 1}
    stopped = run(rounds=7, out=tmp_path, callbacks=[After()], **given)
    assert (stopped.stopped, stopped.server.round) == ("callback", 3)
    whole = run(rounds=7, **given)
    assert stopped.metrics == whole.metrics[:4]
    resumed = run(rounds=7, out=tmp_path, resume=True, **given)
    assert (resumed.stopped, resumed.metrics) == ("rounds", whole.metrics)


def test_sections_are_what_simulate_takes(tmp_path: Path) -> None:
    short = fedvarp.simulate(
        dataset(),
        seeded(linear),
        local_sgd=SGD,
        rounds=3,
        clients_per_round=2,
        evaluation=Evaluation(every=2),
        recording=Recording(out=str(tmp_path)),
    )
    assert [r["round"] for r in short.metrics if "train_loss" in r] == [0, 2, 3]
    assert RunDirectory(tmp_path).settings()["evaluation"] == {"every": 2}


def test_an_evaluation_may_end_the_run_too() -> None:
    class GoodEnough(Callback):
        def on_evaluation(self, figures: Mapping[str, float], server: Server) -> None:
            if server.round == 2:
                raise StopRun("good enough")

    stopped = run(rounds=7, evaluate_every=1, callbacks=[GoodEnough()])
    assert (stopped.stopped, stopped.server.round) == ("callback", 2)


def test_tensors_are_metrics_and_lists_are_not() -> None:
    class Giving(Callback):
        def __init__(self, value: Any) -> None:
            self.value = value

        def on_round_end(self, record: Mapping[str, Any], server: Server) -> Mapping[str, float]:
            return {"mine": self.value}

    assert run(rounds=1, callbacks=[Giving(torch.tensor(2.5))]).final("mine") == 2.5
    with pytest.raises(ValueError, match=r"Giving gives mine = \[1\], which is no number"):
        run(rounds=1, callbacks=[Giving([1])])


def test_the_end_of_a_resumed_run_shows_all_of_it(tmp_path: Path) -> None:
    class Keeping(Callback):
        result: SimulationResult | None = None

        def on_run_end(self, result: SimulationResult) -> None:
            assert RunDirectory(tmp_path).has_the_newest_model
            self.result = result

    run(rounds=2, out=tmp_path)
    keeping = Keeping()
    found = run(rounds=4, out=tmp_path, resume=True, callbacks=[keeping])
    assert keeping.result is found
    assert [record["round"] for record in found.metrics] == [0, 1, 2, 3, 4]


def test_what_is_no_callback_is_refused_before_the_first_round() -> None:
    with pytest.raises(ValueError, match=r"callbacks = .*Callback.*OnRoundEnd"):
        fedvarp.simulate(
            dataset(),
            seeded(linear),
            local_sgd=SGD,
            rounds=1,
            clients_per_round=2,
            callbacks=[print],  # type: ignore[list-item]
        )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rounds": 2.5}, "simulate: rounds = 2.5 should be a whole number"),
        ({"rounds": True}, "simulate: rounds = True"),
        ({"seed": -1}, "simulate: seed = -1 should be at least 0"),
    ],
)
def test_numbers_of_simulate_are_checked_like_those_of_files(
    wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        run(**({"rounds": 1} | wrong))


def test_a_run_cannot_be_resumed_to_be_shorter(tmp_path: Path) -> None:
    run(rounds=3, out=tmp_path)
    with pytest.raises(RunError, match=r"3 rounds already.*directory of its own"):
        run(rounds=2, out=tmp_path, resume=True)
    assert RunDirectory(tmp_path).settings()["rounds"] == 3
