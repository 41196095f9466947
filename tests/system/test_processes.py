"""What the operating system is asked for: cores, and the death of a parent."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from fedvarp.system.processes import (
    CORES_VARIABLE,
    Interruption,
    interrupt_once_on,
    signal_when_orphaned,
    usable_cores,
)


def test_a_worker_whose_parent_died_at_once_ends() -> None:
    process = multiprocessing.get_context("fork").Process(
        target=signal_when_orphaned, args=(os.getpid() + 1, signal.SIGKILL)
    )
    process.start()
    process.join()
    assert process.exitcode == 1


def test_a_parent_that_dies_thread_by_thread_is_one_interruption() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        with Interruption() as interruption:
            interrupt_once_on(signal.SIGHUP)
            for _ in range(3):  # a second SIGINT would raise KeyboardInterrupt
                signal.raise_signal(signal.SIGHUP)
        assert interruption.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_environment_says_how_many_cores_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "3")
    assert usable_cores() == 3
    for wrong in ("0", "-1", "two"):
        monkeypatch.setenv(CORES_VARIABLE, wrong)
        with pytest.raises(ValueError, match=f"{CORES_VARIABLE}={wrong!r} .* whole number"):
            usable_cores()
    monkeypatch.delenv(CORES_VARIABLE)
    assert usable_cores() >= 1
