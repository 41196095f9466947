"""The fastest trainer for the job at hand, found by trying."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.evaluation import Evaluator, Figures
from fedvarp.server.server import Broadcast
from fedvarp.trainers.base import ClientTrainer

_TRIALS: Final = 2  # rounds; the first pays for what is set up once, the last one decides
_TOO_SHORT: Final = 0.02  # seconds: a shorter round is not worth the talk between processes

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A trainer that may be chosen.

    Attributes:
        trainer: The trainer itself.
        exact: Whether its updates are those of the plain loop, bit for bit.
        for_long_rounds: Whether it is worth a try only if rounds take a while.
    """

    trainer: ClientTrainer
    exact: bool = True
    for_long_rounds: bool = False


@dataclass(eq=False)
class AutoTrainer(ClientTrainer):
    """Has the first rounds trained by every candidate, and the rest by the fastest of them.

    The rounds tried out count: they end with the updates of the first candidate, the plain loop.
    A candidate that fails, or whose updates are not what it promises, is out.

    Args:
        candidates: By name; the first is the reference.
        on_choice: Called with the name chosen, and why.
        not_tried: Trainers that are no candidates, and why, for the message.
    """

    candidates: Mapping[str, Candidate]
    on_choice: Callable[[str, str], None]
    not_tried: Mapping[str, str] = field(default_factory=dict)
    _current: ClientTrainer = field(init=False)
    _seconds: dict[str, list[float]] = field(default_factory=dict, init=False)
    _out: dict[str, str] = field(default_factory=dict, init=False)
    _chosen: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._current = next(iter(self.candidates.values())).trainer

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """See `ClientTrainer.train`."""
        if self._chosen or len(clients) == 0:  # a round of nobody tells nothing about speed
            return self._current.train(broadcast, clients, round)
        reference, *others = self.candidates
        expected = self._timed(reference, broadcast, clients, round)
        for name in others:
            candidate = self.candidates[name]
            if name in self._out:
                continue
            if candidate.for_long_rounds and self._seconds[reference][-1] < _TOO_SHORT:
                self._out[name] = "not tried: the rounds are too short to share"
                continue
            try:
                found = self._timed(name, broadcast, clients, round)
            except Exception as error:
                self._out[name] = f"failed: {' '.join(str(error).split())[:200]}"
                continue
            if not _agree(expected, found, candidate.exact):
                self._out[name] = "gave other updates than the plain loop"
        if len(self._seconds[reference]) == _TRIALS or set(others) == set(self._out):
            self._choose()
        return expected

    def foretell(self, cohorts: Mapping[int, Tensor]) -> None:
        """See `ClientTrainer.foretell`; tells the trainer chosen, until then the first."""
        self._current.foretell(cohorts)

    def evaluation(
        self, evaluator: Evaluator, w: Tensor, buffers: Mapping[str, Tensor]
    ) -> Callable[[], Figures] | None:
        """See `ClientTrainer.evaluation`; asks the trainer chosen, until then the first."""
        return self._current.evaluation(evaluator, w, buffers)

    def close(self) -> None:
        """Ends the processes of all candidates."""
        for candidate in self.candidates.values():
            candidate.trainer.close()

    def _timed(self, name: str, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        start = time.perf_counter()
        updates = self.candidates[name].trainer.train(broadcast, clients, round)
        self._seconds.setdefault(name, []).append(time.perf_counter() - start)
        return updates

    def _choose(self) -> None:
        last = {name: s[-1] for name, s in self._seconds.items() if name not in self._out}
        fastest = min(last, key=last.__getitem__)
        reasons = [f"{name} {seconds:.3g} s a round" for name, seconds in last.items()]
        reasons += [f"{name} {why}" for name, why in self._out.items()]
        reasons += [f"{name} not tried: {why}" for name, why in self.not_tried.items()]
        self._chosen = True
        self._current = self.candidates[fastest].trainer
        for name, candidate in self.candidates.items():
            if name != fastest:
                candidate.trainer.close()
        _logger.info("trainer = %s: %s", fastest, "; ".join(reasons))
        self.on_choice(fastest, "; ".join(reasons))


def _agree(expected: RoundUpdates, found: RoundUpdates, exact: bool) -> bool:
    if expected.clients.tolist() != found.clients.tolist() or expected.scale != found.scale:
        return False
    if exact:
        return torch.equal(expected.deltas, found.deltas)
    return torch.allclose(expected.mean_gradients, found.mean_gradients, rtol=1e-3, atol=1e-4)
