"""Who is online: availability processes that remember nothing.

Each is a pure function of (seed, round). Client i has one uniform number u per round, the i-th of
``stream(seed, "availability", t)``, which is compared with a probability. So all algorithms meet
the same clients, a resumed run needs only the round number, and clients who join later change
nothing for those who were there before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.settings.bounds import AbsolutePath, Share
from fedvarp.tables import tensors

Probability = Share | Sequence[Share] | Tensor | np.ndarray[Any, Any]
"""One probability for all clients, or one for each."""
AfterEnd = Literal["repeat", "error"]


@runtime_checkable
class Availability(Protocol):
    """Says which clients are online in a round.

    >>> class EveryOtherRound:
    ...     def online(self, seed, round, num_clients):
    ...         return (torch.arange(num_clients) + round) % 2 == 0
    >>> EveryOtherRound().online(seed=0, round=1, num_clients=4)
    tensor([False,  True, False,  True])
    """

    def online(self, seed: int, round: int, num_clients: int) -> Tensor:  # (N,) bool
        """Says which clients are online; the same arguments give the same answer.

        Args:
            seed: The run's seed.
            round: The round, from 0.
            num_clients: N.

        Returns:
            (N,) bool, one for each client.
        """


@dataclass(frozen=True, eq=False)
class Bernoulli:
    """Every client is online with its own probability, independently in every round.

    >>> Bernoulli([0.0, 0.5, 1.0]).online(seed=0, round=0, num_clients=3)
    tensor([False, False,  True])

    Args:
        probability: The probability of being online: one number, or a list with one for each
            client.

    Raises:
        ValueError: It is no probability.
    """

    probability: Probability

    def __post_init__(self) -> None:
        probabilities("probability", self.probability)

    def online(self, seed: int, round: int, num_clients: int) -> Tensor:
        """See `Availability.online`."""
        p = probabilities("probability", self.probability, num_clients)
        return _uniforms(seed, round, num_clients) < p


@dataclass(frozen=True, eq=False)
class Markov:
    """Clients come and go: stays online and offline last for geometrically many rounds.

    Round 0 has the stationary distribution, hence so has every round. A u below both P(on | on) and
    P(on | off) decides that the client is online whatever it was before; one above both, offline;
    one in between keeps the state (or swaps it, if the probabilities of change add up to more than
    1). Round t is known by looking back to the last u that decided: no state is kept.

    A u decides with probability r = 1 - abs(1 - on_to_off - off_to_on), so looking back takes about
    ln(N) / r passes over N clients (345 for N = 1000 and both probabilities 0.01), at worst t + 1.

    >>> sticky = Markov(on_to_off=0.1, off_to_on=0.1)
    >>> for t in range(4):
    ...     print(sticky.online(seed=0, round=t, num_clients=8).int().tolist())
    [0, 0, 0, 1, 0, 0, 1, 0]
    [0, 0, 0, 0, 0, 0, 1, 0]
    [0, 0, 0, 0, 0, 0, 1, 0]
    [0, 0, 0, 0, 0, 1, 1, 0]

    Args:
        on_to_off: The probability that a client online is offline in the next round: one number, or
            a list with one for each client.
        off_to_on: The probability that a client offline is online in the next round: one number, or
            a list with one for each client.

    Raises:
        ValueError: These are no probabilities, or both are 0.
    """

    on_to_off: Probability
    off_to_on: Probability

    def __post_init__(self) -> None:
        leave = probabilities("on_to_off", self.on_to_off)
        come = probabilities("off_to_on", self.off_to_on, len(leave) if leave.ndim else None)
        if (leave + come == 0).any():
            raise InvalidError(
                "Markov received on_to_off = off_to_on = 0. Clients that never change have no one "
                "stationary distribution to start from; use Bernoulli with probabilities 0 and 1."
            )

    def online(self, seed: int, round: int, num_clients: int) -> Tensor:
        """See `Availability.online`."""
        leave = probabilities("on_to_off", self.on_to_off, num_clients)
        come = probabilities("off_to_on", self.off_to_on, num_clients)
        stay = 1 - leave
        low, high = torch.minimum(stay, come), torch.maximum(stay, come)
        check_round(round)
        undecided = torch.ones(num_clients, dtype=torch.bool)
        state = torch.zeros(num_clients, dtype=torch.bool)  # while undecided: parity of the swaps
        for t in range(round, -1, -1):
            u = _uniforms(seed, t, num_clients)
            if t == 0:
                low = high = come / (leave + come)  # the stationary start decides for everyone
            state ^= undecided & (u < low)
            undecided &= (u >= low) & (u < high)
            if not undecided.any():
                break
            state ^= undecided & (stay < come)
        return state


@dataclass(frozen=True, eq=False)
class Cyclic:
    """Day and night: the probability of being online depends on the client's local time.

    Client i is online in round t with probability ``profile[(t + phases[i]) % len(profile)]``. A
    profile of zeros and ones is a fixed window; equal phases within a cluster make time zones.

    >>> zones = Cyclic(profile=[1, 1, 0], phases=[0, 0, 1, 2])
    >>> for t in range(3):
    ...     print(zones.online(seed=0, round=t, num_clients=4).int().tolist())
    [1, 1, 1, 0]
    [1, 1, 0, 1]
    [0, 0, 1, 1]

    Args:
        profile: The probability of being online in each round of a period, such as [1, 1, 0.1].
        phases: How many rounds each client is ahead, one number for each client; drawn uniformly by
            the seed unless given.

    Raises:
        ValueError: The profile is empty, or holds something else than probabilities.
    """

    profile: Sequence[Share] | Tensor
    phases: Sequence[int] | Tensor | None = None

    def __post_init__(self) -> None:
        profile = probabilities("profile", self.profile)
        if profile.ndim == 0 or len(profile) == 0:
            raise InvalidError(f"profile must list a probability per round, got {self.profile}.")

    def online(self, seed: int, round: int, num_clients: int) -> Tensor:
        """See `Availability.online`."""
        profile = probabilities("profile", self.profile)
        if self.phases is None:
            u = torch.rand(num_clients, generator=stream(seed, "phases"), dtype=torch.float64)
            phases = (u * len(profile)).long()
        else:
            phases = per_client("phases", self.phases, num_clients).long()
        return _uniforms(seed, round, num_clients) < profile[(round + phases) % len(profile)]


@dataclass(frozen=True, eq=False)
class Trace:
    """Replays who was online in a recorded federation.

    >>> trace = Trace({0: [0, 2], 2: [1]}, after_end="repeat")
    >>> for t in range(4):
    ...     print(trace.online(seed=0, round=t, num_clients=3).int().tolist())
    [1, 0, 1]
    [0, 0, 0]
    [0, 1, 0]
    [1, 0, 1]

    Args:
        clients: Those online in each round; nobody in a round left out before the last.
        after_end: What rounds after the last do: "repeat" starts the trace again, "error" ends the
            run.

    Raises:
        ValueError: The trace has no rounds, or negative ones.
    """

    clients: Mapping[int, Sequence[int] | Tensor]
    after_end: AfterEnd = "error"

    def __post_init__(self) -> None:
        if self.after_end not in ("repeat", "error"):
            raise InvalidError(f'after_end must be "repeat" or "error", got {self.after_end!r}.')
        if not isinstance(self.clients, Mapping):
            raise InvalidError(
                f"A trace has the clients of each round, as in {{0: [0, 2], 1: [1]}}; clients is "
                f"a {type(self.clients).__name__}. Trace.from_csv reads one from a file."
            )
        rounds = list(self.clients)
        if not rounds or not all(isinstance(t, int) and t >= 0 for t in rounds):
            raise InvalidError(f"A trace needs rounds 0, 1, ..., got {rounds}.")

    @classmethod
    def from_csv(
        cls, file: AbsolutePath | os.PathLike[str], after_end: AfterEnd = "error"
    ) -> Trace:
        """Reads a trace of two columns, one line for each client and round it was online.

        The first line is ``round,client``; both count from 0, and lines may come in any order. A
        line without a client, such as ``9,``, records a round that had nobody online.

        Args:
            file: A CSV file with the columns round,client.
            after_end: What rounds after the last do: "repeat" starts the trace again, "error" ends
                the run.

        Returns:
            The trace.

        Raises:
            ValueError: The file cannot be read, or a line makes no sense.
        """
        try:
            lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeError) as error:
            raise InvalidError(f"Cannot read the availability trace {file}: {error}.") from error
        lines += [""] * (2 - len(lines))  # a file too short is refused at the line it lacks
        clients: dict[int, list[int]] = {}
        for number, line in enumerate(lines, start=1):
            pattern = "round, ?client" if number == 1 else "([0-9]{1,18}), ?([0-9]{0,18})"
            fields = re.fullmatch(pattern, line.strip())
            if fields is None:
                raise InvalidError(
                    f"Cannot read line {number} of the availability trace {file}: {line!r}. "
                    "Expected the header `round,client`, then on each line a round and a client "
                    "that was online, both counted from 0, for example `0,17`."
                )
            if number > 1:
                clients.setdefault(int(fields[1]), []).extend([int(fields[2])] if fields[2] else [])
        return cls(clients, after_end)

    @property
    def num_rounds(self) -> int:
        """How many rounds it covers."""
        return max(self.clients) + 1

    def refuse_clients_beyond(self, num_clients: int) -> None:
        """Refuses a trace of a larger federation.

        Args:
            num_clients: N.

        Raises:
            ValueError: A round names a client that there is not.
        """
        for round, clients in self.clients.items():
            self._checked(clients, round, num_clients)

    def online(self, seed: int, round: int, num_clients: int) -> Tensor:
        """See `Availability.online`; a trace has no use for the seed."""
        check_round(round)
        if round >= self.num_rounds and self.after_end == "error":
            raise InvalidError(
                f"Round {round} lies beyond the availability trace, which has {self.num_rounds} "
                'rounds. Run fewer rounds, or start the trace again with after_end="repeat".'
            )
        within = round % self.num_rounds
        clients = self._checked(self.clients.get(within, ()), within, num_clients)
        return torch.zeros(num_clients, dtype=torch.bool).index_fill_(0, clients, True)

    def _checked(self, given: Sequence[int] | Tensor, round: int, num_clients: int) -> Tensor:
        clients = torch.as_tensor(given, dtype=torch.int64)
        if ((clients < 0) | (clients >= num_clients)).any():
            raise InvalidError(
                f"The availability trace has clients {int(clients.min())} to {int(clients.max())} "
                f"in round {round}, but this federation has 0 to {num_clients - 1}. "
                "Number the trace's clients from 0, or raise num_clients."
            )
        return clients


def probabilities(name: str, value: Probability, num_clients: int | None = None) -> Tensor:
    """Takes a probability for all clients, or one for each, if it is one.

    Args:
        name: What it is called, for messages.
        value: The probability, or the probabilities.
        num_clients: N, if it is known.

    Returns:
        () or (N,) float64.

    Raises:
        ValueError: A number lies outside [0, 1], or there are not N of them.
    """
    p = per_client(name, value, num_clients)
    if not ((p >= 0) & (p <= 1)).all():  # false for NaN too
        raise InvalidError(f"{name} must lie between 0 and 1, got {value}.")
    return p


def per_client(name: str, value: Probability, num_clients: int | None = None) -> Tensor:
    """Takes a number for all clients, or one for each.

    Args:
        name: What it is called, for messages.
        value: The number, or the numbers.
        num_clients: N, if it is known.

    Returns:
        () or (N,) float64.

    Raises:
        ValueError: There are not N numbers.
    """
    numbers = tensors.as_tensor(name, value)
    if numbers.dtype == torch.bool:
        raise InvalidError(f"{name} must be numbers, not {value}; 1 for yes, 0 for no.")
    numbers = numbers.double()
    if numbers.ndim > 1 or (num_clients is not None and numbers.shape not in ((), (num_clients,))):
        raise InvalidError(
            f"{name} has shape {tuple(numbers.shape)}, which fits no federation of "
            f"{num_clients or 'N'} clients. Give one number for all clients, or one for each."
        )
    return numbers


def check_round(round: int) -> None:
    """Refuses negative rounds, which a look back or a trace would take for others.

    Args:
        round: The round.

    Raises:
        ValueError: It is negative.
    """
    if round < 0:
        raise InvalidError(f"Rounds count from 0, got round {round}.")


def _uniforms(seed: int, round: int, num_clients: int) -> Tensor:  # (N,) float64 in [0, 1)
    check_round(round)
    generator = stream(seed, "availability", round)
    return torch.rand(num_clients, generator=generator, dtype=torch.float64)
