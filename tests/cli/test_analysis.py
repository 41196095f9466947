"""The commands compare, plot and report, as they are typed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fedvarp.cli.analysis import register
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from some_runs import digits_runs, write_run
from waiting import wait_for

app = typer.Typer()
register(app)


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_runs(tmp_path_factory.mktemp("real"), ["fedavg", "fedvarp"])


def type_(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_compare_prints_all_its_formats(real_runs: Path) -> None:
    text = type_("compare", real_runs, "--target", "0.4", "--smooth", "2")
    assert re.match(r"Fed\w+ gets to 40 % test accuracy first|Fed\w+, Fed\w+ get to 40 %", text)
    assert "\n\nTo 40 % test accuracy\n" in text
    assert "mean of 2" in text
    lines = list(csv.DictReader(io.StringIO(type_("compare", real_runs, "--format", "csv"))))
    assert [line["group"] for line in lines] == ["FedAvg", "FedVARP"]
    words = ("compare", real_runs, "--target-loss", "1.5", "--format", "json")
    assert json.loads(type_(*words))["target"] == {"metric": "train_loss", "value": 1.5}
    assert "| FedVARP |" in type_("compare", real_runs, "--format", "markdown")
    assert "<td>" in type_("compare", real_runs, "--format", "html")


def test_a_page_that_is_watched_ends_with_ctrl_c_however_often(real_runs: Path) -> None:
    pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")
    before = signal.getsignal(signal.SIGINT)

    def press_twice() -> None:
        wait_for(lambda: signal.getsignal(signal.SIGINT) is not before)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    impatient = threading.Thread(target=press_twice)
    impatient.start()
    text = type_("report", real_runs, "--watch")
    impatient.join()
    assert text.startswith("http://127.0.0.1:")
    assert "Ended; the runs go on." in text
    assert signal.getsignal(signal.SIGINT) is before


def test_plot_and_report_say_where_the_file_is(real_runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")
    figure, page = tmp_path / "figure.svg", tmp_path / "page.html"
    words = ("--x", "bytes", "--smooth", 3, "--log-loss")
    assert type_("plot", real_runs, "--out", figure, *words).strip() == str(figure)
    assert figure.stat().st_size > 0
    place, headline = type_("report", real_runs, "--out", page, "--title", "Mine").splitlines()
    assert place == str(page)
    assert headline.startswith("FedAvg and FedVARP get to")
    assert "<title>Mine</title>" in page.read_text()


@pytest.mark.parametrize("how", [[], ["--against", "clients_per_round"]])
def test_plot_says_which_runs_are_left_out(tmp_path: Path, how: list[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    for M in (1, 2):
        write_run(tmp_path / f"runs/{M}", [0.1, 0.2], settings={"clients_per_round": M})
    RunDirectory(tmp_path / "runs/empty").create({"algorithm": "fedvarp"})
    (tmp_path / "runs/empty/metrics.jsonl").touch()
    figure = tmp_path / "figure.png"
    words = ["plot", str(tmp_path / "runs"), "--out", str(figure), "--allow-different", *how]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.stdout.strip() == str(figure)
    assert "empty is left out: no round of it is recorded yet" in result.stderr


def test_several_directories_are_one_comparison(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / str(seed), [0.1, 0.2], seed=seed)
    (group,) = json.loads(type_("compare", tmp_path / "0", tmp_path / "1", "--format", "json"))[
        "groups"
    ]
    assert group["seeds"] == [0, 1]


def test_different_tasks_need_to_be_allowed(tmp_path: Path) -> None:
    one = write_run(tmp_path / "0", [0.1, 0.2])
    other = write_run(tmp_path / "1", [0.1, 0.2], settings={"clients_per_round": 9})
    other_seed = write_run(tmp_path / "2", [0.1], seed=1, settings={"clients_per_round": 9})
    for command in (
        ("compare",),
        ("plot", "--out", tmp_path / "x.png"),
        ("report", "--out", tmp_path / "x.html"),
    ):
        with pytest.raises(RunError, match="different tasks"):
            type_(*command, one, other)
        type_(*command, one, other, "--allow-different")
        type_(*command, one, other_seed, "--ignore", "clients_per_round")
    assert "clients_per_round" in type_("compare", one, other, "--allow-different")


def test_wrong_usage_ends_with_code_2(real_runs: Path) -> None:
    for words in (
        ["compare"],
        ["plot", str(real_runs)],
        ["plot", str(real_runs), "--out", "x.png", "--x", "money"],
        ["compare", str(real_runs), "--format", "xml"],
        ["compare", str(real_runs), "--smooth", "0"],
    ):
        assert CliRunner().invoke(app, words).exit_code == 2
