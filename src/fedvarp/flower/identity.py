"""Who a client is: rows follow its name, not its connection.

Flower's node ids are new in every simulation and, without authentication, after every restart of a
SuperNode. See `docs/decisions/flower-identity.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from flwr.app import RecordDict
from flwr.proto.node_pb2 import NodeInfo

SUPERNODE_KEY: Final = "supernode-key"
NODE_ID: Final = "node-id"
_LONGEST_NAME: Final = 200


@dataclass
class Client:
    """What the server knows of a client beside its row."""

    name: str
    row: int
    node: int | None = None  # where it was last seen, unless another has been seen there since
    last_round: int = 0  # the round its row is from
    cluster: str | None = None


class Identities:
    """Clients by name; each keeps its row for ever. New ones may join at any time, O(1)."""

    def __init__(self) -> None:
        self._by_name: dict[str, Client] = {}
        self._by_row: dict[int, Client] = {}
        self._by_node: dict[int, Client] = {}
        self._left: set[int] = set()  # nodes whose client has turned up elsewhere
        self._missing: set[int] = set()  # rows of clients in whose place another has turned up
        self._changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._by_name.values())

    def at(self, node: int) -> Client | None:
        """The client last seen at that node."""
        return self._by_node.get(node)

    def named(self, name: str) -> Client | None:
        """The client of that name."""
        return self._by_name.get(name)

    def meet(self, name: str, node: int | None = None) -> Client:
        """The client of that name, at that node from now on; a new one gets the next row."""
        client = self._by_name.get(name)
        if client is None:
            client = Client(name, row=len(self._by_name))
            self._enter(client)
        if node is not None:
            self._move(client, node)
        return client

    def still_at(self, nodes: Iterable[int]) -> list[int]:
        """These nodes, ascending, but for those whose client is elsewhere by now.

        Flower lists a SuperNode that died for a while beside the one started in its place. Once it
        is not listed any more it is forgotten: under its key it may return with another client.
        While a client is missing no node is left out: SuperNodes with keys keep their ids when
        they are started with each other's clients, and it may be at any of them.
        """
        listed = set(nodes)
        self._left &= listed
        return sorted(listed if self._missing else listed - self._left)

    @property
    def left(self) -> list[int]:
        """Nodes, ascending, whose client is elsewhere by now; for the checkpoint."""
        return sorted(self._left)

    @property
    def missing(self) -> list[int]:
        """Rows, ascending, of clients in whose place another has turned up; for the checkpoint."""
        return sorted(self._missing)

    def note(self, client: Client, *, last_round: int | None = None) -> None:
        """Something about this client has changed and belongs into the next checkpoint."""
        if last_round is not None:
            client.last_round = last_round
        self._changed.add(client.row)

    def in_order(self) -> list[Client]:
        """All clients by name, 2 before 10: an order that no connection has a say in."""
        return sorted(self._by_name.values(), key=lambda client: name_order(client.name))

    # Checkpoints

    def changes(self) -> dict[str, dict[str, Any]]:
        """Entries for the next checkpoint; call `saved` once they are there."""
        return {f"client/{row}": asdict(self._by_row[row]) for row in sorted(self._changed)}

    def saved(self) -> None:
        """The changes are in the checkpoint."""
        self._changed.clear()

    def load(
        self,
        entries: Mapping[str, Mapping[str, Any]],
        left: Iterable[int] = (),
        missing: Iterable[int] = (),
    ) -> None:
        """Becomes what was saved."""
        self._left.update(left)
        self._missing.update(missing)
        for key, entry in entries.items():
            if key.startswith("client/"):
                client = Client(**{**entry, "node": None})
                self._enter(client)
                if entry["node"] is not None:
                    self._move(client, entry["node"])
        self._changed.clear()

    def _enter(self, client: Client) -> None:
        self._by_name[client.name] = client
        self._by_row[client.row] = client
        self._changed.add(client.row)

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
    """Sorts numbers by value and before words."""
    number = int(name) if name.isascii() and name.isdecimal() else None
    return (1, 0, name) if number is None else (0, number, name)


def name_of_node(node: int) -> str:
    """What a client is called that tells nothing about itself."""
    return f"node {node}"


def name_by_key(node: NodeInfo) -> str | None:
    """A SuperNode's name by its public key; None if it has shown none."""
    if not node.public_key:
        return None
    return f"key {hashlib.sha256(node.public_key).hexdigest()[:16]}"


def told_name(content: RecordDict, identity: str) -> str | None:
    """The name that a client gives itself, where names are given by clients."""
    return None if identity in (SUPERNODE_KEY, NODE_ID) else reported(content, identity)


def reported(content: RecordDict, key: str) -> str | None:
    """What a reply says under this key in one of its metric or config records, as text."""
    told: list[object] = [record.get(key) for record in content.metric_records.values()]
    told += [record.get(key) for record in content.config_records.values()]
    for value in told:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int | str) and 0 < len(str(value)) <= _LONGEST_NAME:
            return str(value)
    return None
