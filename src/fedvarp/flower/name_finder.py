"""Names for nodes that have none yet: from Flower where it knows one, else by asking if told to."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedvarp.flower.client import IDENTITY_ACTION
from fedvarp.flower.ledger import send_and_receive
from fedvarp.flower.names import NODE_ID, SUPERNODE_KEY, name_from_flower, name_in, name_of_node
from fedvarp.flower.rows import ClientRows


class NameFinder:
    """Finds names for the nodes that have none yet.

    Flower knows the keys of SuperNodes and the names they were registered with. Other clients are
    asked if they may be, once for the whole run: an app that cannot answer fails on the question,
    and shows that to its user. Names that are not learnt here come with the replies.

    Args:
        identity: "supernode-key", "node-id", or the key that clients report.
        ask: Whether clients may be asked.
    """

    def __init__(self, identity: str, ask: bool) -> None:
        self._identity = identity
        self._may_ask = ask
        self._silent: set[int] = set()  # nodes that were asked and did not say who they are

    def find(self, grid: Grid, rows: ClientRows, nodes: list[int], timeout: float | None) -> None:
        """Meets the clients online, as far as they can be known, in the order of their names.

        Args:
            grid: Flower's connection to the nodes.
            rows: Those of the clients known; new ones are added.
            nodes: Those that Flower lists.
            timeout: How long to wait for answers, in seconds; None: until there are all.
        """
        strangers = rows.clients.look(nodes).strangers
        if strangers:
            rows.meet_all(self._names(grid, strangers, timeout))

    def _names(self, grid: Grid, strangers: Sequence[int], timeout: float | None) -> dict[int, str]:
        if self._identity == NODE_ID:
            return {node: name_of_node(node) for node in strangers}
        told = {info.node_id: name_from_flower(info, self._identity) for info in grid.get_nodes()}
        names = {node: name for node in strangers if (name := told.get(node)) is not None}
        if self._may_ask and self._identity != SUPERNODE_KEY:
            asked = [n for n in strangers if n not in names and n not in self._silent]
            names |= self._answers(grid, asked, timeout)
        return names

    def _answers(self, grid: Grid, nodes: list[int], timeout: float | None) -> dict[int, str]:
        question = f"{MessageType.QUERY}.{IDENTITY_ACTION}"
        messages = [Message(RecordDict(), node, question) for node in nodes]
        replies = [r for r in send_and_receive(grid, messages, timeout)[0] if r.has_content()]
        said = {r.metadata.src_node_id: name_in(r.content, self._identity) for r in replies}
        names = {node: name for node, name in said.items() if name is not None}
        self._silent.update(set(nodes) - names.keys())
        return names
