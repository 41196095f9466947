"""What is shown of a run while it goes: in a terminal, in a notebook, and in a log."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fedvarp.simulation.progress import RunProgress

NAN = "its loss or weights turned non-finite"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Time:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def train(progress: RunProgress, time: Time, rounds: int, seconds: float, **record: Any) -> None:
    with progress:
        for t in range(1, rounds + 1):
            time.now += seconds
            progress.advance({"round": t, "clients": [0], "refused": {"1": NAN}, **record})


def lines_of(rounds: int, seconds: float, capsys: pytest.CaptureFixture[str]) -> list[str]:
    time = Time()
    train(RunProgress("fedvarp", 0, rounds, True, time), time, rounds, seconds, train_loss=0.5)
    return capsys.readouterr().err.splitlines()


def test_a_log_has_a_line_after_ten_seconds_and_then_ever_fewer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Due after 10, 10 + 20, 30 + 40, 70 + 60 and 130 + 60 seconds of a round each."""
    lines = lines_of(200, 1.0, capsys)
    assert [line.split(",")[0] for line in lines] == [
        f"fedvarp: round {t} of 200" for t in (10, 30, 70, 130, 190)
    ]
    # Ten of twenty replies by then; 190 rounds are left, a second each.
    assert lines[0] == (
        "fedvarp: round 10 of 200, loss 0.5, 10 of 20 replies refused, about 0:03:10 left"
    )


def test_a_short_run_prints_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(9, 1.0, capsys) == []


def test_a_loss_that_is_not_finite_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    time = Time()
    train(RunProgress("fedvarp", 0, 2, True, time), time, 1, 11.0, train_loss=None)
    assert "loss not finite" in capsys.readouterr().err


def test_time_left_counts_the_rounds_of_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Resumed at round 90: one round took 10 s, nine are left."""
    time = Time()
    with RunProgress("fedvarp", 90, 100, True, time) as progress:
        time.now = 10.0
        progress.advance({"round": 91, "clients": [0], "refused": {}})
    assert capsys.readouterr().err == "fedvarp: round 91 of 100, about 0:01:30 left\n"


@pytest.mark.parametrize("show", [None, False])
def test_elsewhere_nothing_is_shown_unless_asked_for(
    show: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    time = Time()
    train(RunProgress("fedvarp", 0, 100, show, time), time, 100, 1.0)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar_that_counts_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    train(RunProgress("fedvarp", 0, 3), Time(), 3, 1.0, test_accuracy=0.5)
    shown = terminal.getvalue()
    assert "3/3" in shown
    assert "accuracy 50.0%, 3 of 6 replies refused" in shown


def ipython(shell: object, shown: list[str]) -> SimpleNamespace:
    """What a kernel has loaded under the name IPython, as far as we use it."""

    def update(data: dict[str, str], raw: bool) -> None:
        shown.append(data["text/plain"])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> SimpleNamespace:
        update(data, raw)
        return SimpleNamespace(update=update)

    return SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))


@pytest.mark.parametrize("show", [None, True])
def test_a_notebook_has_one_line_that_changes_and_needs_no_widgets(
    show: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", ipython(kernel, shown))
    time = Time()
    train(RunProgress("fedvarp", 0, 4, show, time), time, 4, 1.0, test_accuracy=0.5)
    assert shown[0] == "fedvarp"
    assert shown[2] == (
        f"fedvarp {'━' * 15}{'─' * 15} 2 of 4 rounds, accuracy 50.0%, 2 of 4 replies refused, "
        f"about 0:00:02 left"
    )
    assert "4 of 4 rounds" in shown[-1]
    assert capsys.readouterr() == ("", "")


def test_a_notebook_is_not_drawn_more_often_than_one_can_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", ipython(kernel, shown))
    time = Time()
    train(RunProgress("fedvarp", 0, 1000, None, time), time, 1000, 0.001)
    assert len(shown) <= 2 + 1000 * 0.001 / 0.2


def test_ipython_in_a_terminal_is_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setitem(sys.modules, "IPython", ipython(object(), shown))
    train(RunProgress("fedvarp", 0, 3), Time(), 3, 1.0)
    assert shown == []
