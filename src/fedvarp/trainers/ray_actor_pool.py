"""The actors of a Ray trainer: one that is free gets the next client, one lost is replaced."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from fedvarp.algorithms.round_updates import RoundUpdates

_TRIES: Final = 3
_HEARTBEAT: Final = 1.0  # seconds
_PATIENCE: Final = 300.0  # seconds without a single actor; a cluster that grows takes minutes

_logger = logging.getLogger(__name__)


class ActorPool:
    """Actors that each train one client at a time.

    An actor is given a client only once it is up, so that no client waits for a machine that never
    comes, and a cluster that lost half its machines goes on with the other half.

    Args:
        ray: The module `ray`, connected.
        start: Starts an actor and returns its handle.
        size: How many actors.
    """

    def __init__(self, ray: Any, start: Callable[[], Any], size: int) -> None:
        self._ray = ray
        self._start = start
        self._idle: deque[Any] = deque()
        self._busy: dict[Any, tuple[Any, int]] = {}  # reference of a result: actor, client
        self._starting: dict[Any, Any] = {}  # reference that ends once the actor is free: actor
        self._failed_starts = 0  # since one succeeded
        self._size = 0
        self.grow(size)

    def grow(self, size: int) -> None:
        """Starts more actors, until there are as many; it never ends any.

        Args:
            size: How many there are to be.
        """
        while self._size < size:
            self._size += 1
            self._add()

    def run(
        self, clients: Sequence[int], submit: Callable[[Any, int], Any], round: int
    ) -> dict[int, RoundUpdates]:
        """Trains clients, each on the first actor that is free.

        Args:
            clients: In the order in which they are begun.
            submit: (actor, client) → the reference of the client's result.
            round: t, for messages.

        Returns:
            What each client sends back.

        Raises:
            RuntimeError: A client, or the data, ends one actor after the other, or the cluster has
                no place for any.
            Exception: Whatever the code of the user raised at a client, with a note that names it.
        """
        waiting, done, lost = deque(clients), dict[int, RoundUpdates](), Counter[int]()
        alive = time.monotonic()
        try:
            while len(done) < len(clients):
                while waiting and self._idle:
                    actor, client = self._idle.popleft(), waiting.popleft()
                    self._busy[submit(actor, client)] = (actor, client)
                if self._busy:
                    alive = time.monotonic()
                elif time.monotonic() - alive > _PATIENCE:
                    raise RuntimeError(self._no_place())
                pending = [*self._busy, *self._starting]
                for reference in self._ray.wait(pending, timeout=_HEARTBEAT)[0]:
                    if reference in self._starting:
                        self._started(reference)
                        continue
                    actor, client = self._busy.pop(reference)
                    try:
                        done[client] = self._result(reference, client, round)
                        self._idle.append(actor)
                    except _LostError as error:
                        self._replace(actor)
                        lost[client] += 1
                        if lost[client] == _TRIES:
                            raise RuntimeError(_gives_up(client, round, error)) from error
                        _logger.warning(
                            "A Ray actor was lost with client %d of round %d, which is trained "
                            "again: %s",
                            client,
                            round,
                            error,
                        )
                        waiting.appendleft(client)  # it has waited longest
                    except BaseException:
                        self._idle.append(actor)
                        raise
        finally:
            # After an exception actors are still at work; they are free when that ends.
            self._starting |= {reference: actor for reference, (actor, _) in self._busy.items()}
            self._busy.clear()
        return done

    def close(self) -> None:
        """Ends the actors, at work or not."""
        for actor in [*self._idle, *self._starting.values()]:
            self._ray.kill(actor)
        self._idle.clear()
        self._starting.clear()

    def _add(self) -> None:
        actor = self._start()
        self._starting[actor.ready.remote()] = actor

    def _replace(self, actor: Any) -> None:
        self._ray.kill(actor)  # it may be out of reach only
        self._add()

    def _started(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayTaskError:
            pass  # a client of a round that was given up: whatever it raised, the actor is free
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            hopeless = self._failed_starts >= _TRIES * self._size
            if hopeless or getattr(error, "actor_init_failed", False):
                raise RuntimeError(
                    f"A Ray actor cannot be started: {_reason(error)}. It loads the data set, the "
                    f"model and the loss: all machines need fedvarp, the modules these come from, "
                    f"and the memory to hold them."
                ) from error
            self._replace(actor)
            return
        self._failed_starts = 0
        self._idle.append(actor)

    def _result(self, reference: Any, client: int, round: int) -> RoundUpdates:
        try:
            result: RoundUpdates = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raised = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
            raised.add_note(f"It happened at client {client} in round {round}, in a Ray actor.")
            raise raised from error
        except self._ray.exceptions.RayError as error:  # the actor, its machine or its result
            raise _LostError(_reason(error)) from error
        return result

    def _no_place(self) -> str:
        return (
            f"For {_PATIENCE:.0f} s the Ray cluster had no place for an actor: each takes one CPU, "
            f"and of {self._ray.cluster_resources().get('CPU', 0):g} CPUs "
            f"{self._ray.available_resources().get('CPU', 0):g} are free. `ray status` shows who "
            f"uses them and whether machines are missing."
        )


class _LostError(Exception):
    """An actor ended without an answer."""


def _gives_up(client: int, round: int, error: Exception) -> str:
    return (
        f"Client {client} ended {_TRIES} Ray actors in round {round}: {error}. The usual causes "
        f"are too little memory for its data, and code that writes into the data set's tensors, "
        f"which the actors of a machine share read-only."
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
