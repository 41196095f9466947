"""Cohorts of rounds to come, drawn together: draws that follow each other cost a third."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fedvarp.clients.cohorts import ClientSampler, Cohort
from fedvarp.clients.sampling import UniformSampler
from fedvarp.simulation.checks import cohort_of
from fedvarp.trainers.base import ClientTrainer

AHEAD: Final = 16
"""Rounds that are drawn at once."""

_MOST_CLIENTS: Final = 4096  # in all of these; larger cohorts are drawn when they are due


@dataclass(eq=False)
class CohortsAhead:
    """Draws cohorts before their rounds, where they are known to depend on the round alone.

    That is for `UniformSampler` with everybody online: availabilities and samplers may be somebody
    else's, who is asked for a round when it is due, and a tensor of dropouts may be written to
    between two rounds. The trainer is told what is drawn ahead.

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
        if not self._are_known:
            return cohort_of(self.sampler, round, self.num_clients)
        if round not in self._drawn:
            coming = range(round, min(round + AHEAD, self.rounds))
            self._drawn = {t: cohort_of(self.sampler, t, self.num_clients) for t in coming}
            self.trainer.foretell({t: c.answering.clients for t, c in self._drawn.items()})
        return self._drawn[round]

    @property
    def _are_known(self) -> bool:
        sampler = self.sampler
        return (
            type(sampler) is UniformSampler
            and sampler.availability is None
            and isinstance(sampler.dropout, float | int)
            and AHEAD * sampler.clients_per_round <= _MOST_CLIENTS
        )
