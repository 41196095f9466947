"""Which client is which: rows of the table follow a client's name, not its connection.

Flower's node ids are new in every simulation and, without authentication, after every restart of a
SuperNode. See `docs/decisions/flower-identity.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from flwr.app import RecordDict

from fedvarp.flower.replies import text_in

SUPERNODE_KEY: Final = "supernode-key"
NODE_ID: Final = "node-id"
_ENTRY: Final = "client/"  # before the row, in the keys of a checkpoint's entries


@dataclass
class Client:
    """What the server knows of a client beside its row's numbers.

    Attributes:
        name: What it is known by.
        row: Its number in the table, for ever.
        node: The node where it was last seen, unless another has been seen there since.
        last_round: The round its row is from; 0: none.
        cluster: The label of its cluster, where there are clusters and it is known.
    """

    name: str
    row: int
    node: int | None = None
    last_round: int = 0
    cluster: str | None = None


class KnownClients:
    """The clients that have said who they are; each keeps its row for ever.

    New ones may join at any time, in O(1).

    >>> clients = KnownClients()
    >>> clients.meet("hospital-a", node=71).row, clients.meet("hospital-b", node=72).row
    (0, 1)
    >>> clients.meet("hospital-a", node=73).row  # its SuperNode has been started again
    0
    >>> clients.still_at([71, 72, 73])  # Flower lists the dead one for a while
    [72, 73]
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Client] = {}
        self._by_row: dict[int, Client] = {}
        self._by_node: dict[int, Client] = {}
        self._left: set[int] = set()  # nodes whose client has turned up elsewhere
        self._missing: set[int] = set()  # rows of clients in whose place another has turned up
        self._changed: set[int] = set()  # rows that the next checkpoint has to write

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._by_name.values())

    def at(self, node: int) -> Client | None:
        """Looks a client up by its node.

        Args:
            node: A node id.

        Returns:
            The client last seen there; None if there is none.
        """
        return self._by_node.get(node)

    def named(self, name: str) -> Client | None:
        """Looks a client up by its name.

        Args:
            name: What it is known by.

        Returns:
            The client; None if there is none.
        """
        return self._by_name.get(name)

    def in_order(self) -> list[Client]:
        """All clients by name, 2 before 10: an order that no connection has a say in."""
        return sorted(self._by_name.values(), key=lambda client: name_order(client.name))

    def meet(self, name: str, node: int | None = None) -> Client:
        """Notes that a client exists, and where it is.

        Args:
            name: What it is known by; a new name gets the next row.
            node: The node where it is from now on; None: no news of that.

        Returns:
            The client.
        """
        client = self._by_name.get(name)
        if client is None:
            client = Client(name, row=len(self._by_name))
            self._enter(client)
            self._changed.add(client.row)
        if node is not None:
            self._move(client, node)
        return client

    def still_at(self, nodes: Iterable[int]) -> list[int]:
        """Leaves out the nodes whose client is elsewhere by now.

        Flower lists a SuperNode that died for a while beside the one started in its place. Once it
        is not listed any more it is forgotten: under its key it may return with another client.
        While a client is missing no node is left out: SuperNodes with keys keep their ids when
        they are started with each other's clients, and it may be at any of them.

        Args:
            nodes: The nodes that Flower lists now.

        Returns:
            Those that may have a client, ascending.
        """
        listed = set(nodes)
        self._left &= listed
        return sorted(listed if self._missing else listed - self._left)

    def has_left(self, node: int) -> bool:
        """Whether the client that was at a node has turned up elsewhere.

        Args:
            node: A node id.

        Returns:
            True as long as Flower lists the node.
        """
        return node in self._left

    def refreshed(self, client: Client, round: int) -> None:
        """Notes that a client's row is from this round now.

        Args:
            client: The client.
            round: The round, counted from 1.
        """
        client.last_round = round
        self._changed.add(client.row)

    def joined(self, client: Client, cluster: str) -> None:
        """Notes that a client belongs to this cluster now.

        Args:
            client: The client.
            cluster: Its label.
        """
        client.cluster = cluster
        self._changed.add(client.row)

    # Checkpoints

    def state_dict(self) -> Mapping[str, Any]:
        """What a checkpoint keeps beside the clients' entries, as JSON can hold it."""
        return {"left": sorted(self._left), "missing": sorted(self._missing)}

    def changed_entries(self) -> dict[str, dict[str, Any]]:
        """The clients about whom the checkpoint has to be told; call `saved` once it has been."""
        return {f"{_ENTRY}{row}": asdict(self._by_row[row]) for row in sorted(self._changed)}

    def saved(self) -> None:
        """Notes that the changed entries are in the checkpoint."""
        self._changed.clear()

    def load_state_dict(
        self, state: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Takes back what was saved; only for an object that has met nobody yet.

        Args:
            state: What `state_dict` gave.
            entries: Every entry that `changed_entries` has given, and others beside them.
        """
        self._left.update(state["left"])
        self._missing.update(state["missing"])
        for key, entry in entries.items():
            if key.startswith(_ENTRY):
                self._enter(Client(**entry))

    def _enter(self, client: Client) -> None:
        self._by_name[client.name] = client
        self._by_row[client.row] = client
        if client.node is not None:
            self._by_node[client.node] = client

    def _move(self, client: Client, node: int) -> None:
        """Only one client is at a node: where the one seen there before is now, nobody knows."""
        if client.node == node:
            return
        displaced = self._by_node.get(node)
        if displaced is not None:
            displaced.node = None
            self._changed.add(displaced.row)
            if displaced.name != name_of_node(node):  # that one has only told its true name
                self._missing.add(displaced.row)
        if client.node is not None:
            del self._by_node[client.node]
            self._left.add(client.node)
        client.node = node
        self._by_node[node] = client
        self._left.discard(node)
        self._missing.discard(client.row)
        self._changed.add(client.row)


def name_order(name: str) -> tuple[int, int, str]:
    """A key to sort names by: numbers by value and before words.

    Args:
        name: A client's name.

    Returns:
        The key.
    """
    number = int(name) if name.isascii() and name.isdecimal() else None
    return (1, 0, name) if number is None else (0, number, name)


def name_of_node(node: int) -> str:
    """What a client is called that tells nothing about itself.

    Args:
        node: Its node id.

    Returns:
        Its name.
    """
    return f"node {node}"


def name_in(content: RecordDict, identity: str) -> str | None:
    """The name that a client gives itself in a reply.

    Args:
        content: Of the reply.
        identity: What clients are known by: the key they report, "supernode-key" or "node-id".

    Returns:
        The name; None if it gives none, or where clients do not choose their names.
    """
    return None if identity in (SUPERNODE_KEY, NODE_ID) else text_in(content, identity)
