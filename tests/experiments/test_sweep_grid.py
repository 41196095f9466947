"""Sweeps over any setting, chosen by any figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.experiments.sweep import Sweep
from fedvarp.experiments.sweep_grid import ALGORITHMS, PAPER_GRID, Grid
from fedvarp.experiments.sweep_result import SweepResult, SweptRun
from fedvarp.settings.problems import SettingsError


def prepared(axes: list[str], overrides: tuple[str, ...] = (), **how: str) -> Sweep:
    grid = Grid.parse("fedavg", "0.1", None, axes)
    return Sweep.prepare("digits", overrides, grid, "out", runs_here=False, write=False, **how)


def test_every_combination_is_a_run_and_has_a_directory_of_its_own() -> None:
    sweep = prepared(["local_sgd.epochs=1,5", "table.codec=float32,int8"])
    assert [path.name for path, _ in sweep.runs] == [
        f"digits-fedavg-lr0.1-seed0-epochs{epochs}-codec{codec}"
        for epochs in (1, 5)
        for codec in ("float32", "int8")
    ]
    told = [(settings.local_sgd.epochs, settings.table.codec) for _, settings in sweep.runs]
    assert told == [(1, "float32"), (1, "int8"), (5, "float32"), (5, "int8")]


def test_directories_of_sweeps_without_other_settings_are_called_as_ever() -> None:
    grid = Grid.parse(None, None, "0,1")
    assert (grid.algorithms, grid.client_lrs, grid.seeds) == (ALGORITHMS, PAPER_GRID, (0, 1))
    sweep = Sweep.prepare("digits", [], grid, "out", runs_here=False, write=False)
    assert sweep.runs[3][0].name == "digits-fedavg-lr0.0316228-seed1"
    assert all(path.name == settings.run_name for path, settings in sweep.runs)


def test_the_options_are_axes_like_any_others() -> None:
    by_axes = Grid.parse(None, None, None, ["algorithm=mifa", "client_lr=10^-1.5", "seed=3,4"])
    assert by_axes == Grid.parse("mifa", "10^-1.5", "3,4") == Grid(("mifa",), (10**-1.5,), (3, 4))
    powers = Grid.parse(None, None, None, ["server.lr=1,10^-0.5"]).others
    assert powers == (("server.lr", ("1", repr(10**-0.5))),)
    lists = Grid.parse(None, None, None, ["table.rows=[a,b],last_layer"]).others
    assert lists == (("table.rows", ("[a,b]", "last_layer")),)


@pytest.mark.parametrize(
    ("axes", "overrides", "said"),
    [
        (["local_sgd.epochs"], (), "write key=value,value"),
        (["local_sgd.epochs=1,1"], (), "local_sgd.epochs that differ"),
        (["local_sgd.epochs="], (), "at least one"),
        (["seed=1", "seed=2"], (), "give one"),
        (["client_lr=0.2"], (), "--client-lrs and --grid local_sgd.lr"),
        (["local_sgd.epochs=1,5"], ("local_sgd.epochs=3",), "--grid local_sgd.epochs"),
        (["local_sgd.epoch=1,5"], (), "--grid local_sgd.epoch=1: .*did you mean local_sgd.epochs"),
        (["local_sgd.epochs=0"], (), "--grid local_sgd.epochs=0: .*at least 1"),
    ],
)
def test_wrong_axes_are_refused(axes: list[str], overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        prepared(axes, overrides)


def test_choosing_on_validation_sets_examples_aside() -> None:
    share = prepared([], select_on="validation").runs[0][1].evaluation.validation_share
    assert share == 0.2
    own = prepared([], ("evaluation.validation_share=0.5",), select_on="validation")
    assert own.runs[0][1].evaluation.validation_share == 0.5
    assert prepared([], select_on="test").runs[0][1].evaluation.validation_share is None
    for wrong in ("validation_accuracy", "test_auc", "speed"):
        with pytest.raises(SettingsError, match=f"--select-on {wrong}"):
            prepared([], select_on=wrong)


def swept(lr: float, test: float, validation: float, loss: float, epochs: str) -> SweptRun:
    records = [
        {"round": 1, "test_accuracy": test, "validation_accuracy": validation, "train_loss": loss}
    ]
    others = {"local_sgd.epochs": epochs}
    path = Path(f"{lr}-{epochs}")
    return SweptRun(path, "fedavg", lr, 0, 1, True, None, records, others)


@pytest.mark.parametrize(
    ("select_on", "metric", "best"),
    [
        (None, "validation_accuracy", 0.2),
        ("validation", "validation_accuracy", 0.2),
        ("test", "test_accuracy", 0.1),
        ("train", "train_loss", 0.3),
        ("train_loss", "train_loss", 0.3),
    ],
)
def test_the_best_rate_is_chosen_by_what_was_asked_for_and_for_each_combination(
    select_on: str | None, metric: str, best: float
) -> None:
    runs = [
        swept(lr, *figures, epochs)
        for epochs in ("1", "5")
        for lr, figures in ((0.1, (0.9, 0.5, 3.0)), (0.2, (0.5, 0.9, 2.0)), (0.3, (0.6, 0.6, 1.0)))
    ]
    result = SweepResult(Path("out"), runs, (0.1, 0.2, 0.3), False, select_on)
    assert result.metric == metric
    assert {name: one.client_lr for name, one in result.best.items()} == {
        "fedavg, epochs=1": best,
        "fedavg, epochs=5": best,
    }
    assert f"Best of all fedavg: epochs=1 at rate {best}, {metric} " in result.text()
    assert ("chosen on the test examples" in result.text()) == (metric == "test_accuracy")
    assert json.loads(json.dumps(result.as_json()))["runs"][0]["settings"] == {
        "local_sgd.epochs": "1"
    }


def test_a_dry_run_estimates_each_combination() -> None:
    words = ["sweep", "digits", "--algorithms", "fedavg", "--client-lrs", "0.1", "--dry-run"]
    axes = ["--grid", "local_sgd.epochs=1,5", "--set", "rounds=10", "--json"]
    told = json.loads(CliRunner().invoke(app, [*words, *axes]).stdout)
    assert set(told["of_each"]) == {"fedavg, epochs=1", "fedavg, epochs=5"}
