"""Learns who is behind a node before it is drawn, where clients can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from logging import INFO
from typing import Final

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log

from fedvarp.flower.client import IDENTITY_ACTION
from fedvarp.flower.identity import (
    NODE_ID,
    SUPERNODE_KEY,
    Identities,
    name_by_key,
    name_of_node,
    name_order,
    reported,
)

Send = Callable[[Sequence[Message]], Iterable[Message]]
_PROBES: Final = 3


class Discovery:
    """Names for the nodes that have none yet.

    Names come from SuperNode keys, from node ids, or by asking. Whether clients answer is found
    out with one of them: a stock client fails on the question, and one failure in its log is
    enough. Names that are not learnt here come with the replies.

    Args:
        identity: "supernode-key", "node-id", or the key that clients report.
        ask: Whether to ask at all.
    """

    def __init__(self, identity: str, ask: bool) -> None:
        self._identity = identity
        self._clients_answer: bool | None = (
            None if ask and identity not in (SUPERNODE_KEY, NODE_ID) else False
        )
        self._asked: set[int] = set()  # strangers that did not say who they are

    def learn(self, grid: Grid, online: Sequence[int], clients: Identities, send: Send) -> None:
        """Meets the clients at these nodes, as far as they can be known; in order of their names.

        Args:
            grid: Where the nodes are.
            online: Their ids.
            clients: Who is known; changed.
            send: Sends questions and returns what is answered in time.
        """
        strangers = sorted(node for node in online if clients.at(node) is None)
        self._asked &= set(strangers)  # a node that was known and is no more has a new client
        names = self._names(grid, strangers, send)
        for node in sorted(names, key=lambda node: (name_order(names[node]), node)):
            clients.meet(names[node], node)

    def _names(self, grid: Grid, strangers: list[int], send: Send) -> dict[int, str]:
        if not strangers:
            return {}
        if self._identity == NODE_ID:
            return {node: name_of_node(node) for node in strangers}
        if self._identity == SUPERNODE_KEY:
            by_node = {info.node_id: name_by_key(info) for info in grid.get_nodes()}
            return {node: name for node in strangers if (name := by_node.get(node)) is not None}
        return self._ask([node for node in strangers if node not in self._asked], send)

    def _ask(self, nodes: list[int], send: Send) -> dict[int, str]:
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
            names |= self._answers([probe], send)
        if self._clients_answer:
            names |= self._answers([node for node in nodes if node not in self._asked], send)
        return names

    def _answers(self, nodes: list[int], send: Send) -> dict[int, str]:
        if not nodes:
            return {}
        self._asked.update(nodes)
        names = {}
        question = f"{MessageType.QUERY}.{IDENTITY_ACTION}"
        for reply in send([Message(RecordDict(), node, question) for node in nodes]):
            if reply.has_content():
                name = reported(reply.content, self._identity)
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
