"""What `simulate` returned is drawn and compared like what lies on disk; sweeps at best rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvarp.analysis import compare, plot, read_runs
from fedvarp.analysis.best_rates import at_best_rates
from fedvarp.analysis.groups import group_runs
from fedvarp.runs import RunError
from small_federation import run
from some_runs import write_run


def results() -> list[Any]:
    return [
        run(rounds=2, algorithm=name, seed=seed)
        for name in ("fedavg", "fedvarp")
        for seed in (0, 1)
    ]


def labels(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_results_are_grouped_over_seeds_and_drawn() -> None:
    figure = plot(results(), metrics=["train_loss", "train_loss_over_examples"], title="Mine")
    assert labels(figure) == ["FedAvg", "FedVARP"]
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "Training loss",
        "Training loss over examples",
    ]
    assert figure.legends[0].get_title().get_text() == "Mine"
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [row.group.label for row in compare(results()).rows] == ["FedAvg", "FedVARP"]


def test_a_result_draws_itself(tmp_path: Path) -> None:
    one = run(rounds=2)
    assert labels(one.plot()) == ["FedVARP"]
    assert one.plot(tmp_path / "one.png").read_bytes() == one.plot()._repr_png_()
    with pytest.raises(RunError, match=r"recorded 'test_accurcy'.*There are train_loss"):
        one.plot(metrics=["test_accurcy"])


def test_names_tell_results_apart_that_settings_do_not() -> None:
    one = run(rounds=2)
    with pytest.raises(RunError, match="same settings"):
        plot([one, run(rounds=2)])
    assert labels(plot({"mine": one, "yours": run(rounds=2)})) == ["mine", "yours"]


def test_results_stand_beside_runs_on_disk(tmp_path: Path) -> None:
    recorded = run(rounds=2, out=tmp_path / "a", seed=3)
    again, notes = read_runs([tmp_path / "a", recorded])
    assert notes == []
    assert list(again[0].metrics) == list(again[1].metrics)
    assert dict(again[0].settings).keys() <= {*again[1].settings, "versions"}


def sweep_of(folder: Path, is_sweep: bool) -> Path:
    """FedAvg is best at 0.01 and FedVARP at 0.1."""
    for algorithm, best in (("fedavg", 0.01), ("fedvarp", 0.1)):
        for lr in (0.01, 0.1):
            end = 0.8 if lr == best else 0.6
            name = folder / f"{algorithm}-{lr}"
            write_run(name, [0.1, 0.3, end], algorithm=algorithm, lr=lr)
    if is_sweep:
        (folder / "sweep.json").write_text('{"metric": "test_accuracy"}')
    return folder


def test_a_sweep_is_drawn_at_the_best_rates_unless_all_are_asked_for(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path / "sweep", is_sweep=True)
    assert labels(plot(folder)) == ["FedAvg (lr=0.01)", "FedVARP (lr=0.1)"]
    assert len(labels(plot(folder, rates="all"))) == 4
    others = sweep_of(tmp_path / "others", is_sweep=False)
    assert len(labels(plot(others))) == 4
    assert len(labels(plot(others, rates="best"))) == 2
    groups, said = at_best_rates(group_runs(read_runs([folder])[0]))
    assert len(groups) == 2
    assert said is not None
    assert "test accuracy" in said
    for lr in (0.01, 0.1):  # a setting that tells curves apart shares its brackets with the rate
        end, settings = 0.7 + lr, {"table.codec": "int8"}
        write_run(folder / f"int8-{lr}", [0.1, 0.3, end], lr=lr, settings=settings)
    assert labels(plot(folder))[1:] == [
        f"FedVARP (codec={codec}, lr=0.1)" for codec in ("unset", "int8")
    ]
