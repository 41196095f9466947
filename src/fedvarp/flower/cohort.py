"""Who is asked in a round: clients are named first, then drawn by name, whatever their node ids.

The draw is that of a sampler in `fedvarp.clients` over the clients in the order of their names.
With everybody known and online the cohorts are those of `fedvarp.simulate`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Final, Literal

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore import log

from fedvarp.clients.round_robin import RoundRobinSampler
from fedvarp.clients.sampling import ClientSampler, UniformSampler, random_subset
from fedvarp.clients.stratified_sampling import StratifiedSampler
from fedvarp.flower.client import IDENTITY_ACTION
from fedvarp.flower.identity import (
    NODE_ID,
    SUPERNODE_KEY,
    KnownClients,
    name_in,
    name_of_node,
    name_order,
)
from fedvarp.flower.ledger import send_and_receive
from fedvarp.randomness import stream

WhenOffline = Literal["replace", "fewer"]
Sampling = Literal["uniform", "stratified", "round_robin"]

_ASK_TIMEOUT: Final = 60.0  # seconds for clients to say who they are
_PROBES: Final = 3  # nodes that are asked before it is clear whether clients answer
_LOOK_EVERY: Final = 0.5  # seconds between two looks at who is online


@dataclass(frozen=True)
class Candidate:
    """A client that may be asked, or a node whose client is not known yet."""

    row: int | None  # None: its client is not known
    node: int | None  # None: offline
    name: str
    cluster: str | None = None  # None: there are none, or its own is not known


def wait_for_nodes(grid: Grid, wanted: int, timeout: float) -> None:
    """Waits for enough nodes while the timeout lasts; then whoever is there must do.

    Args:
        grid: Flower's connection to the nodes.
        wanted: How many are enough.
        timeout: In seconds.
    """
    deadline = time.monotonic() + timeout
    while (online := len(list(grid.get_node_ids()))) < wanted:
        if time.monotonic() >= deadline:
            log(WARNING, "%d of %d nodes are online; going on with them.", online, wanted)
            return
        log(INFO, "Waiting for nodes: %d of %d are online.", online, wanted)
        time.sleep(min(_LOOK_EVERY, timeout))


def candidates(clients: KnownClients, online: Iterable[int]) -> list[Candidate]:
    """Lists everybody among whom a cohort is drawn.

    Args:
        clients: Those that are known.
        online: Node ids.

    Returns:
        The clients known, by name, then the nodes that have not said who they are.
    """
    here = set(online)
    known = [
        Candidate(
            client.row, client.node if client.node in here else None, client.name, client.cluster
        )
        for client in clients.in_order()
    ]
    strangers = sorted(node for node in here if clients.at(node) is None)
    return known + [Candidate(None, node, name_of_node(node)) for node in strangers]


def training_cohort(
    among: Sequence[Candidate],
    size: int,
    *,
    seed: int,
    round: int,
    when_offline: WhenOffline,
    sampling: Sampling = "uniform",
) -> list[Candidate]:
    """Draws who trains in a round, each client with the same probability.

    The first draw is among all, so that it does not depend on who happens to be online. Those of it
    who are offline are replaced by a second draw among the others online, or left out.

    Args:
        among: See `candidates`.
        size: M.
        seed: The run's seed.
        round: 0, 1, 2, ...
        when_offline: What to do about a client that was drawn and is offline.
        sampling: How to draw: every cohort equally likely, from each cluster its share, or in turn.

    Returns:
        At most M candidates, all online.
    """
    size = min(size, len(among))
    if size == 0:
        return []
    drawn = _sampler(sampling, among, size, seed).cohort(round).clients.tolist()
    cohort = [among[i] for i in drawn if among[i].node is not None]
    if when_offline == "replace":
        chosen = set(drawn)
        others = [c for i, c in enumerate(among) if i not in chosen and c.node is not None]
        missing = min(len(drawn) - len(cohort), len(others))
        cohort += _draw(others, missing, seed, "cohort replacements", round)
    return cohort


def _sampler(sampling: Sampling, among: Sequence[Candidate], size: int, seed: int) -> ClientSampler:
    if sampling == "round_robin":
        return RoundRobinSampler(len(among), size, seed)
    if sampling == "stratified":
        numbers: dict[str | None, int] = {}
        clusters = [numbers.setdefault(client.cluster, len(numbers)) for client in among]
        return StratifiedSampler(clusters, size, seed)
    return UniformSampler(len(among), size, seed)


def evaluation_cohort(
    online: Sequence[Candidate], size: int, *, seed: int, round: int
) -> list[Candidate]:
    """Draws who evaluates the model after a round, uniformly at random.

    Args:
        online: The candidates that are online.
        size: How many to ask.
        seed: The run's seed.
        round: 0, 1, 2, ...

    Returns:
        The cohort; everybody, if there are no more.
    """
    return _draw(online, min(size, len(online)), seed, "evaluation", round)


class NameFinder:
    """Finds names for the nodes that have none yet.

    Names come from SuperNode keys, from node ids, or by asking. Whether clients answer is found
    out with one of them: a stock client fails on the question, and one failure in its log is
    enough. Names that are not learnt here come with the replies.

    Args:
        identity: "supernode-key", "node-id", or the key that clients report.
        ask: Whether clients may be asked.
    """

    def __init__(self, identity: str, ask: bool) -> None:
        self._identity = identity
        self._clients_answer: bool | None = (
            None if ask and identity not in (SUPERNODE_KEY, NODE_ID) else False
        )
        self._asked: set[int] = set()  # strangers that did not say who they are

    def find(self, grid: Grid, clients: KnownClients) -> None:
        """Meets the clients online, as far as they can be known, in the order of their names.

        Args:
            grid: Flower's connection to the nodes.
            clients: Who is known; new ones are added.
        """
        online = clients.still_at(grid.get_node_ids())
        strangers = sorted(node for node in online if clients.at(node) is None)
        self._asked &= set(strangers)  # a node that was known and is no more has a new client
        names = self._names(grid, strangers)
        for node in sorted(names, key=lambda node: (name_order(names[node]), node)):
            clients.meet(names[node], node)

    def _names(self, grid: Grid, strangers: list[int]) -> dict[int, str]:
        if not strangers:
            return {}
        if self._identity == NODE_ID:
            return {node: name_of_node(node) for node in strangers}
        if self._identity == SUPERNODE_KEY:
            by_node = {info.node_id: _name_by_key(info) for info in grid.get_nodes()}
            return {node: name for node in strangers if (name := by_node.get(node)) is not None}
        return self._ask(grid, [node for node in strangers if node not in self._asked])

    def _ask(self, grid: Grid, nodes: list[int]) -> dict[int, str]:
        names: dict[int, str] = {}
        for probe in nodes[:_PROBES]:
            if self._clients_answer is not None:
                break
            log(
                INFO,
                "Asking node %d for its %r. If its app cannot answer, its own log shows an error, "
                "which does no harm.",
                probe,
                self._identity,
            )
            names |= self._answers(grid, [probe])
        if self._clients_answer:
            names |= self._answers(grid, [node for node in nodes if node not in self._asked])
        return names

    def _answers(self, grid: Grid, nodes: list[int]) -> dict[int, str]:
        if not nodes:
            return {}
        self._asked.update(nodes)
        names = {}
        question = f"{MessageType.QUERY}.{IDENTITY_ACTION}"
        messages = [Message(RecordDict(), node, question) for node in nodes]
        for reply in send_and_receive(grid, messages, _ASK_TIMEOUT)[0]:
            if reply.has_content():
                name = name_in(reply.content, self._identity)
                self._clients_answer = self._clients_answer or name is not None
                if name is not None:
                    names[reply.metadata.src_node_id] = name
            elif (
                reply.has_error()
                and reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
                and self._clients_answer is None
            ):
                self._clients_answer = False
        return names


def _draw(
    among: Sequence[Candidate], size: int, seed: int, purpose: str, round: int
) -> list[Candidate]:
    chosen = random_subset(len(among), size, stream(seed, purpose, round))
    return [among[i] for i in chosen.tolist()]


def _name_by_key(node: NodeInfo) -> str | None:
    """A SuperNode's name by its public key; None if it has shown none."""
    if not node.public_key:
        return None
    return f"key {hashlib.sha256(node.public_key).hexdigest()[:16]}"
