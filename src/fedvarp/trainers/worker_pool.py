"""Processes that do numbered work, are replaced when they die, and die with their parent."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import struct
import sys
import traceback
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Final

from fedvarp.errors import FedvarpError
from fedvarp.system.processes import signal_when_orphaned, who_is_watched

Task = tuple[int, int, int, int]  # what the numbers mean is between the caller and `work`
Work = Callable[[Task], None]

_FORMAT: Final = struct.Struct("<4q")
_DONE: Final = b"\0"
_SAYS_IT_ALL: Final = b"\1"  # before a sentence for the user, which needs no traceback
_MOST_TRIES: Final = 3

_logger = logging.getLogger(__name__)


class WorkerError(FedvarpError):
    """The work itself failed, or it keeps ending the processes that try it."""


class WorkerDiedError(WorkerError):
    """A worker died whose task others wait for."""


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: connection.Connection
    ended: int  # a file descriptor, readable once the process has ended
    task: Task | None = None


@dataclass(eq=False)
class WorkerPool:
    """Forked processes that share the parent's memory as it was when they started.

    Because they are forked, `work` may be any function with anything in its closure, nothing is
    pickled, and a worker costs milliseconds to replace. What it is to do goes over a pipe as four
    numbers; what comes back is a byte, or the text of an exception. Results belong into memory that
    is shared (`fedvarp.trainers.shared_memory`).

    Args:
        num_workers: How many processes.
        work: Called in a worker with each task.
        prepare: Called in a worker when it starts.
        describe: Names a task in messages.

    Raises:
        WorkerError: This process cannot have forked children.
    """

    num_workers: int
    work: Work
    prepare: Callable[[], None]
    describe: Callable[[Task], str]
    _workers: list[_Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not hasattr(os, "fork"):
            raise WorkerError(
                f"Parallel training forks its workers, which {sys.platform} cannot. "
                f'trainer="sequential" gives the same figures.'
            )
        if multiprocessing.current_process().daemon:
            raise WorkerError(
                "Parallel training starts processes, which a daemonic process, such as those of "
                'multiprocessing.Pool, may not. trainer="sequential" gives the same figures there.'
            )
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end_all, self._workers, self._owner)

    def run(self, tasks: Sequence[Task], together: bool = False) -> None:
        """Does all tasks, each begun in the order given; returns when they are done.

        A worker that dies is reported and replaced, and its task done again.

        Args:
            tasks: What is to be done.
            together: Whether tasks, one for each worker, wait for each other: then one of them
                cannot be done again by itself.

        Raises:
            WorkerError: A task raised an exception, or ended its worker several times.
            WorkerDiedError: A worker died, and its task waits for others.
        """
        try:
            self._run(deque(tasks), together)
        except BaseException:
            self.close()  # the workers may be anywhere in their work; new ones start when needed
            raise

    def close(self) -> None:
        """Ends the workers; `run` would start new ones."""
        _end_all(self._workers, self._owner)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers there are at this moment."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def _run(self, waiting: deque[Task], together: bool) -> None:
        tries: Counter[Task] = Counter()
        while len(self._workers) < self.num_workers:
            self._workers.append(self._start())
        while waiting or any(worker.task is not None for worker in self._workers):
            for worker in self._workers:
                if worker.task is None and waiting:
                    self._give(worker, waiting.popleft())
            for worker in _ready([worker for worker in self._workers if worker.task is not None]):
                task = worker.task
                assert task is not None
                worker.task = None
                answer = _answer(worker.pipe)
                if answer is None:
                    tries[task] += 1
                    if together:
                        raise WorkerDiedError(f"{self.describe(task)} lost a worker process.")
                    self._replace(worker, task, tries[task])
                    waiting.appendleft(task)
                elif answer.startswith(_SAYS_IT_ALL):
                    raise WorkerError(answer.removeprefix(_SAYS_IT_ALL).decode())
                elif answer != _DONE:
                    raise WorkerError(
                        f"{self.describe(task)} failed in a worker process:\n{answer.decode()}"
                    )

    def _give(self, worker: _Worker, task: Task) -> None:
        worker.task = task
        # If it has died while idle, its pipe says so when the answer is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send_bytes(_FORMAT.pack(*task))

    def _replace(self, worker: _Worker, task: Task, tries: int) -> None:
        worker.process.join()
        how = _how_it_ended(worker.process.exitcode)
        if tries >= _MOST_TRIES:
            raise WorkerError(
                f"{self.describe(task)} ended its worker process {tries} times, at last by {how}. "
                f'Fewer workers leave each more memory; trainer="sequential" shows where it fails.'
            )
        _logger.warning(
            "A worker process was ended by %s while it had %s. Another takes its place and does "
            "it again.",
            how,
            self.describe(task),
        )
        worker.pipe.close()
        os.close(worker.ended)
        self._workers[self._workers.index(worker)] = self._start()

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        others = [worker.pipe for worker in self._workers]
        process = multiprocessing.get_context("fork").Process(
            target=self._serve, args=(theirs, [ours, *others], who_is_watched()), daemon=True
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads. A worker takes no lock a thread may hold:
            # it computes, on one thread, and answers over its own pipe.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Worker(process, ours, _end_of(process))

    def _serve(
        self,
        pipe: connection.Connection,
        of_the_parent: Sequence[connection.Connection],
        parent: int | None,
    ) -> None:
        """What a worker does until its parent closes the pipe or dies.

        Args:
            pipe: The worker's end.
            of_the_parent: Ends that it has inherited.
            parent: Whose death is to end it at once; None: when it next looks at its pipe.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal_when_orphaned(parent, signal.SIGKILL)  # elsewhere the closed pipe ends the worker
        for inherited in of_the_parent:
            inherited.close()  # else the pipes of a dead parent would stay open
        self.prepare()
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                task = _FORMAT.unpack(pipe.recv_bytes())
                try:
                    self.work(task)
                    answer = _DONE
                except FedvarpError as error:
                    answer = _SAYS_IT_ALL + str(error).encode()
                except Exception:
                    answer = traceback.format_exc().encode()
                pipe.send_bytes(answer)


def _end_of(process: BaseProcess) -> int:
    """A file descriptor that is readable once the process has ended.

    Its closed pipe does not always say so: whatever was forked meanwhile, by the worker or by
    another thread of ours, may hold a copy of its end.
    """
    assert process.pid is not None
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox that has no such call
            return os.pidfd_open(process.pid)
    return os.dup(process.sentinel)


def _ready(busy: Sequence[_Worker]) -> list[_Worker]:
    """Those that have answered or ended; waits for the first."""
    ready = connection.wait([end for worker in busy for end in (worker.pipe, worker.ended)])
    return [worker for worker in busy if worker.pipe in ready or worker.ended in ready]


def _answer(pipe: connection.Connection) -> bytes | None:
    """What the worker says; None if it is dead."""
    try:
        return pipe.recv_bytes() if pipe.poll() else None
    except (EOFError, OSError):  # before an answer, or in the middle of one
        return None


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{name} (too little memory?)" if -code == signal.SIGKILL else name
    return f"exit code {code}"


def _end_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() != owner:  # a fork has inherited a pool, and collects it as garbage
        return
    for worker in workers:
        worker.pipe.close()
        worker.process.kill()
    while workers:  # taken off first: if Ctrl-C comes in between, the rest can still be ended
        worker = workers.pop()
        worker.process.join()
        worker.process.close()
        os.close(worker.ended)
