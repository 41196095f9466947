"""Runs that go wrong on the command line: they say so, end with code 3, and stay on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.cli.errors import LEARNED_NOTHING
from fedvarp.runs.directory import RunDirectory

DIVERGING = ("--set", "rounds=4", "--set", "client_lr=1e38", "--set", "trainer.name=sequential")


def fedvarp(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def diverged(tmp_path: Path) -> Path:
    fedvarp("run", "digits", *DIVERGING, "--out", tmp_path / "run", "--quiet")
    return tmp_path / "run"


@pytest.mark.parametrize("how", [(), ("--quiet",), ("--json",)])
def test_a_run_that_learned_nothing_says_so_and_ends_with_its_own_code(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    ended = fedvarp("run", "digits", *DIVERGING, "--out", tmp_path / "run", *how)
    assert ended.exit_code == LEARNED_NOTHING
    for part in ("Nothing was learned", "8 of 8 replies were refused", "lower local_sgd.lr"):
        assert part in ended.stderr
    assert RunDirectory(tmp_path / "run").has_the_newest_model
    if how == ("--json",):
        told = json.loads(ended.stdout)
        assert (told["refused"], told["replies"]) == (8, 8)
        assert "no reply could be used" in told["nothing_learned"]


def test_so_does_a_finished_run_that_is_resumed(diverged: Path) -> None:
    ended = fedvarp("resume", diverged)
    assert ended.exit_code == LEARNED_NOTHING
    assert "Nothing was learned" in ended.stderr


def test_compare_and_report_count_refused_replies(diverged: Path, tmp_path: Path) -> None:
    text = " ".join(fedvarp("compare", diverged).stdout.split())
    assert "8 of 8" in text
    assert "Nothing was learned: in the whole run no reply could be used" in text
    (group,) = json.loads(fedvarp("compare", diverged, "--format", "json").stdout)["groups"]
    assert (group["refused"], group["replies"]) == (8, 8)
    assert group["learned_nothing"] == [str(diverged)]
    assert fedvarp("report", diverged, "--out", tmp_path / "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "8 of 8" in page
    assert "Nothing was learned" in page


def test_what_is_left_of_a_compacted_run_says_the_same(diverged: Path, tmp_path: Path) -> None:
    assert fedvarp("compact", diverged, "--out", tmp_path / "kept.jsonl").exit_code == 0
    text = " ".join(fedvarp("compare", tmp_path / "kept.jsonl").stdout.split())
    assert "8 of 8 replies were refused, most often for this: its loss" in text
    assert "Nothing was learned: in the whole run" in text


def test_a_sweep_in_which_nothing_was_learned_ends_so_too(tmp_path: Path) -> None:
    grid = ("--algorithms", "fedavg", "--client-lrs", "1e38", "--set", "rounds=2")
    ended = fedvarp("sweep", "digits", *grid, "--out", tmp_path / "sweep")
    assert ended.exit_code == LEARNED_NOTHING, ended.stderr
    assert "nothing was learned in 1 of 1 runs" in ended.stdout
    (run,) = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["runs"]
    assert run["refused"] == run["replies"] == 4
