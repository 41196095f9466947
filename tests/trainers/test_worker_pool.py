"""Workers die, fail and are interrupted; the work gets done, and nothing is left behind."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedvarp.errors import sentence
from fedvarp.trainers.shared_memory import SharedRound
from fedvarp.trainers.worker_pool import Task, WorkerError, WorkerPool

PATIENCE = 30.0  # seconds that a process may take to go


def shared_round(slots: int = 4) -> SharedRound:
    return SharedRound.allocate(slots, torch.zeros(1), {}, parts=0, scores=1)


def pool(work: Callable[[Task], None], workers: int = 2) -> WorkerPool:
    return WorkerPool(workers, work, prepare=lambda: None, describe=lambda task: f"task {task[1]}")


def tasks(count: int) -> list[Task]:
    return [(0, slot, 0, 0) for slot in range(count)]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def test_all_tasks_are_done_and_the_workers_stay() -> None:
    shared = shared_round(10)

    def work(task: Task) -> None:
        shared.deltas[task[1]] += task[1] + 1

    workers = pool(work)
    workers.run(tasks(10))
    assert shared.deltas.flatten().tolist() == list(range(1, 11))
    before = workers.pids
    workers.run(tasks(3))
    assert workers.pids == before
    assert len(before) == 2
    workers.close()
    assert not any(is_alive(pid) for pid in before)


def test_a_killed_worker_is_reported_and_its_task_done_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = shared_round(6)

    def work(task: Task) -> None:
        shared.counts[task[1], 0] += 1
        if task[1] == 3 and shared.counts[3, 0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        shared.deltas[task[1]] = 1.0

    workers = pool(work)
    with caplog.at_level(logging.WARNING):
        workers.run(tasks(6))
    assert shared.deltas.flatten().tolist() == [1.0] * 6
    assert shared.counts[:, 0].tolist() == [1, 1, 1, 2, 1, 1]
    assert "SIGKILL" in caplog.text
    assert "task 3" in caplog.text
    workers.close()


def test_a_worker_that_died_while_idle_is_replaced() -> None:
    shared = shared_round()

    def work(task: Task) -> None:
        shared.deltas[task[1]] += 1

    workers = pool(work)
    workers.run(tasks(2))
    dead = workers.pids[0]
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: not is_alive(dead))
    workers.run(tasks(4))
    assert shared.deltas.flatten().tolist() == [2, 2, 1, 1]
    assert dead not in workers.pids
    workers.close()


def test_a_task_that_always_kills_ends_the_run() -> None:
    shared = shared_round()

    def work(task: Task) -> None:
        if task[1] == 1:
            shared.counts[0, 0] += 1
            os._exit(9)

    workers = pool(work)
    with pytest.raises(WorkerError, match=r"task 1 ended its worker process 3 times.*exit code 9"):
        workers.run(tasks(3))
    assert int(shared.counts[0, 0]) == 3
    assert workers.pids == []


def test_an_exception_is_told_with_the_task_and_where_it_was_raised() -> None:
    def work(task: Task) -> None:
        if task[1] == 2:
            raise ValueError("no such thing")

    workers = pool(work)
    with pytest.raises(WorkerError, match=r"(?s)task 2 failed.*in work.*ValueError: no such thing"):
        workers.run(tasks(4))
    assert workers.pids == []
    with pytest.raises(WorkerError, match="task 2"):  # it can be used again
        workers.run(tasks(4))
    workers.close()


def test_ctrl_c_goes_past_the_workers() -> None:
    shared = shared_round()

    def work(task: Task) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        shared.deltas[task[1]] = 1.0

    workers = pool(work)
    workers.run(tasks(2))
    assert shared.deltas[:2].flatten().tolist() == [1.0, 1.0]
    workers.close()


def test_a_pool_that_is_forgotten_takes_its_workers_along() -> None:
    workers = pool(lambda task: None)
    workers.run(tasks(2))
    pids = workers.pids
    del workers
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


_PARENT = """
import os, sys, time
from fedvarp.trainers.worker_pool import WorkerPool
busy = sys.argv[1] == "busy"
def work(task):
    if busy and task[1] == 1:
        os.write(1, b"at work\\n")  # whole: both workers say it at once
        time.sleep(600)
pool = WorkerPool(2, work, lambda: None, str)
pool.run([(0, 0, 0, 0), (0, 0, 1, 0)])
print(*pool.pids, flush=True)
if busy:
    pool.run([(0, 1, 0, 0), (0, 1, 1, 0)])
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_workers_do_not_outlive_a_parent_that_was_killed(state: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, state], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        if state == "busy":
            assert parent.stdout.readline() == "at work\n"
        assert all(is_alive(pid) for pid in pids)
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_task_that_lost_its_worker_comes_next(tmp_path: Path) -> None:
    """It was the longest of those that wait, and would else end last."""
    begun = tmp_path / "begun"

    def work(task: Task) -> None:
        first = not begun.exists()
        with begun.open("a") as file:
            file.write(f"{task[1]} ")
        if first:
            os.kill(os.getpid(), signal.SIGKILL)

    workers = pool(work, workers=1)
    workers.run(tasks(3))
    workers.close()
    assert begun.read_text().split() == ["0", "0", "1", "2"]


def test_workers_can_be_terminated_whatever_their_parent_does_with_sigterm(
    request: pytest.FixtureRequest,
) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    shared = shared_round()

    def work(task: Task) -> None:
        shared.counts[0, 0] += 1
        if shared.counts[0, 0] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    workers = pool(work, workers=1)
    workers.run(tasks(1))
    workers.close()
    assert int(shared.counts[0, 0]) == 2


def test_every_worker_is_prepared_once() -> None:
    shared = shared_round()

    def prepare() -> None:
        shared.counts[0, 0] += 1

    workers = WorkerPool(1, lambda task: None, prepare, describe=str)
    workers.run(tasks(3))
    assert int(shared.counts[0, 0]) == 1
    os.kill(workers.pids[0], signal.SIGKILL)
    workers.run(tasks(3))
    workers.close()
    assert int(shared.counts[0, 0]) == 2


def test_nobody_waits_for_the_others_of_a_task_that_failed() -> None:
    shared = shared_round()

    def work(task: Task) -> None:
        if task[1] == 0:
            wait_until(lambda: bool(shared.counts[1, 0]))
            raise ValueError
        shared.counts[1, 0] = 1
        time.sleep(5)
        shared.deltas[1] = 1.0

    workers = pool(work)
    with pytest.raises(WorkerError, match="task 0"):
        workers.run(tasks(2))
    assert shared.deltas[1] == 0.0  # its worker was ended in mid-work


def test_workers_outlive_the_thread_that_started_them() -> None:
    """Linux takes the end of a thread for that of a parent; the next thread finds them at work."""
    workers = pool(lambda task: None)
    pids = []
    for _ in range(2):
        thread = threading.Thread(target=workers.run, args=(tasks(4),))
        thread.start()
        thread.join()
        pids.append(workers.pids)
    workers.close()
    assert pids[0] == pids[1]


def test_a_fork_that_inherits_a_pool_does_not_end_it() -> None:
    workers = pool(lambda task: None)
    workers.run(tasks(2))
    before = workers.pids
    for ending in (workers._end, workers.close):
        child = multiprocessing.get_context("fork").Process(target=ending)
        child.start()
        child.join()
    workers.run(tasks(2))
    assert workers.pids == before
    workers.close()


def test_a_grandchild_that_holds_the_pipe_does_not_hide_a_death(tmp_path: Path) -> None:
    """It has a copy of the worker's end, so the parent's stays open when the worker is killed."""
    noted = tmp_path / "grandchild"

    def work(task: Task) -> None:
        if noted.exists():
            return
        child = os.fork()
        if child == 0:
            signal.pause()
        noted.write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    pool = WorkerPool(1, work, prepare=lambda: None, describe=str)
    try:
        pool.run([(0, 0, 0, 0)])
    finally:
        os.kill(int(noted.read_text()), signal.SIGKILL)
        pool.close()


def test_pools_leave_no_file_open() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def work(task: Task) -> None:
        if task[1] == 1:
            raise ValueError

    before = count()
    pool = WorkerPool(2, work, prepare=lambda: None, describe=str)
    pool.run([(0, 0, 0, 0)] * 3)
    os.kill(pool.pids[0], signal.SIGKILL)
    pool.run([(0, 0, 0, 0)] * 3)
    with pytest.raises(WorkerError):
        pool.run([(0, 1, 0, 0)])
    pool.close()
    assert count() == before


def test_a_failing_worker_is_no_mistake_of_the_program() -> None:
    said = "client 3 of round 1 ended its worker process 3 times"
    assert sentence(WorkerError(said)) == said
