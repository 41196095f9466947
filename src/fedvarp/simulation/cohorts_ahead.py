"""Cohorts of rounds to come, drawn together: draws that follow each other cost a third."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fedvarp.clients.cohorts import ClientSampler, Cohort
from fedvarp.clients.sampling import UniformSampler
from fedvarp.simulation.checks import cohort_of
from fedvarp.trainers.base import ClientTrainer

_AHEAD: Final = 16  # rounds that are drawn at once


@dataclass(eq=False)
class CohortsAhead:
    """Draws cohorts before their rounds, where they are known to depend on the round alone.

    That is for `UniformSampler` with everybody online: availabilities and samplers may be somebody
    else's, who is asked for a round when it is due. The trainer is told what is drawn ahead.

    Attributes:
        sampler: Chooses them.
        num_clients: N.
        rounds: T, beyond which nothing is drawn.
        trainer: Who will train them.
    """

    sampler: ClientSampler
    num_clients: int
    rounds: int
    trainer: ClientTrainer
    _drawn: dict[int, Cohort] = field(default_factory=dict, init=False)

    def of(self, round: int) -> Cohort:
        """The cohort of a round.

        Args:
            round: t.

        Raises:
            ValueError: No round can be trained with it; see `cohort_of`.
        """
        if not (type(self.sampler) is UniformSampler and self.sampler.availability is None):
            return cohort_of(self.sampler, round, self.num_clients)
        if round not in self._drawn:
            coming = range(round, min(round + _AHEAD, self.rounds))
            self._drawn = {t: cohort_of(self.sampler, t, self.num_clients) for t in coming}
            self.trainer.foretell({t: c.answering.clients for t, c in self._drawn.items()})
        return self._drawn[round]
