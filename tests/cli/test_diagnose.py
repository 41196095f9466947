"""The command `fedvarp diagnose`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.diagnosis import procedure

SMALL = [
    "--set",
    "data=quadratics",
    "--set",
    "model=quadratic",
    "--set",
    "rounds=2",
    "--set",
    "local_sgd.batch_size=5",
]
runner = CliRunner()


def test_a_run_keeps_its_diagnosis_and_a_preset_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert runner.invoke(app, ["run", "digits", *SMALL, "--out", str(run), "-q"]).exit_code == 0
    told = runner.invoke(app, ["diagnose", str(run), "--bounds-only", "--json"])
    assert told.exit_code == 0, told.output
    printed = json.loads(told.stdout)
    assert printed == json.loads((run / "diagnosis.json").read_text())
    assert printed["round"] == 2
    assert printed["step_errors"] == {}
    what_if = [str(run), "--bounds-only", "--json", "--set", "client_lr=0.5"]
    assert json.loads(runner.invoke(app, ["diagnose", *what_if]).stdout)["client_lr"] == 0.5
    assert printed == json.loads((run / "diagnosis.json").read_text())
    before = sorted(tmp_path.rglob("*"))
    shown = runner.invoke(app, ["diagnose", "digits", *SMALL, "--memory", "1"])
    assert shown.exit_code == 0, shown.output
    assert "Error of one step" in shown.stdout
    assert "within 1 MB" in shown.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-file.toml"], "There is no config file"),
        (["digits", "--keep", "3"], "keep=3.0 must be above 0"),
        (["digits", "--memory", "-3"], "holds nothing: give more than 0"),
        (["digits", "--set", "table.clusters=auto:0"], "not one of own, labels, auto:K"),
        (["digits", "--out", "figure.doc"], "does not end in .png"),
        (["digits", "--out", "/dev/null/figure.png"], "/dev/null is no folder that you may write"),
        (["digits", "--sample", "2"], "sample=2"),
        (["digits", "--set", "sampling.objective=examples"], "sampling.objective=equal"),
    ],
)
def test_errors_are_sentences(arguments: list[str], said: str) -> None:
    result = runner.invoke(app, ["diagnose", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr


def test_nothing_is_measured_for_a_figure_that_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    monkeypatch.setattr(procedure, "diagnose", lambda *_, **__: pytest.fail("measured in vain"))
    result = runner.invoke(app, ["diagnose", "digits", "--out", str(tmp_path / "figure.png")])
    assert result.exit_code == 1
    assert "fedvarp[plots]" in result.stderr


def test_a_file_that_cannot_be_written_does_not_cost_the_diagnosis(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert runner.invoke(app, ["run", "digits", *SMALL, "--out", str(run), "-q"]).exit_code == 0
    (run / "diagnosis.json.part").mkdir()
    result = runner.invoke(app, ["diagnose", str(run), "--bounds-only", "--json"])
    assert result.exit_code == 1
    assert "Is a directory" in result.stderr
    assert json.loads(result.stdout)["round"] == 2


def test_a_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    figure = tmp_path / "deep" / "figure.png"
    result = runner.invoke(app, ["diagnose", "digits", *SMALL, "--bounds-only", "--out", str(figure)])  # fmt: skip # noqa: E501
    assert result.exit_code == 0, result.output
    assert figure.stat().st_size > 10_000
