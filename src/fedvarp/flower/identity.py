"""Which client is which: rows of the table follow a client's name, not its connection.

Flower's node ids are new in every simulation and, without authentication, after every restart of a
SuperNode. See `docs/decisions/flower-identity.md`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any, Final

from fedvarp.flower.names import is_name_of_a_node, name_order

ENTRY: Final = "client/"
"""Before the row, in the keys of a checkpoint's entries."""


@dataclass
class Client:
    """What the server knows of a client beside its row's numbers.

    Attributes:
        name: What it is known by.
        row: Its number in the table, for ever.
        node: The node where it was last seen, unless another has been seen there since.
        last_round: The round its row is from; 0: none.
        cluster: The label of its cluster, where there are clusters and it is known.
        residual: ‖Δ_i − y_i‖ of its last update, where cohorts are drawn by it.
        examples: How many examples it last said it has; None: it has not said yet.
    """

    name: str
    row: int
    node: int | None = None
    last_round: int = 0
    cluster: str | None = None
    residual: float | None = None
    examples: float | None = None

    @property
    def is_nameless(self) -> bool:
        """Whether it goes by its node id: nobody will know it under another one."""
        return is_name_of_a_node(self.name)


@dataclass(frozen=True, eq=False)
class Presence:
    """Who is there, as far as Flower's list of nodes tells.

    Attributes:
        online: The nodes that may have a client.
        strangers: Those of them whose client is not known, ascending.
        gone: The rows of clients without a name whose node is not online: nobody can say that they
            will ever be seen again. One with a name is merely absent.
    """

    online: Set[int]
    strangers: Sequence[int]
    gone: Set[int]


class KnownClients:
    """The clients that have been met; each keeps its row until it is forgotten.

    New ones may join at any time. They get the rows of those who were forgotten first. A node has
    one client: a name that nobody knows, told by a node whose client is known, is a new name for
    that client and not another client.

    >>> clients = KnownClients()
    >>> clients.meet("hospital-a", node=71).row, clients.meet("hospital-b", node=72).row
    (0, 1)
    >>> clients.meet("hospital-a", node=73).row  # its SuperNode has been started again
    0
    >>> sorted(clients.look([71, 72, 73]).online)  # Flower lists the dead one for a while
    [72, 73]
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Client] = {}
        self._by_row: dict[int, Client] = {}
        self._by_node: dict[int, Client] = {}
        self._left: set[int] = set()  # nodes whose client has turned up elsewhere
        self._missing: set[int] = set()  # rows of clients in whose place another has turned up
        self._vacant: set[int] = set()  # rows of clients that were forgotten
        self._changed: set[int] = set()  # rows that the next checkpoint has to write
        self._order: list[Client] = []  # by name
        self._nameless: dict[int, Client] = {}  # by row
        self._looked: tuple[list[int], Presence] | None = None  # while nobody has moved since

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._by_name.values())

    @property
    def num_rows(self) -> int:
        """How many rows there must be for everybody to have theirs."""
        return len(self._by_row) + len(self._vacant)

    @property
    def next_row(self) -> int:
        """The row that the next new client will get."""
        return min(self._vacant, default=len(self._by_row))

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

    @property
    def in_order(self) -> Sequence[Client]:
        """All clients by name, 2 before 10: an order that no connection has a say in."""
        return self._order

    def place_in_order(self, client: Client) -> int:
        """Where a client stands in the order of names.

        Args:
            client: One that is known.

        Returns:
            Its place, counted from 0.
        """
        return bisect_left(self._order, _by_name(client), key=_by_name)

    def at_row(self, row: int | None) -> Client | None:
        """Looks a client up by its row.

        Args:
            row: Its number; None: nobody's.

        Returns:
            The client; None if there is none.
        """
        return None if row is None else self._by_row.get(row)

    def meet(self, name: str, node: int | None = None) -> Client:
        """Notes that a client exists, and where it is.

        Args:
            name: What it is known by. One that is not known is a new name for the client at that
                node; if there is none it gets the next row.
            node: The node where it is from now on; None: no news of that.

        Returns:
            The client.
        """
        client = self._by_name.get(name)
        if client is None and node is not None and node in self._by_node:
            client = self._by_node[node]
            self._leave(client)
            client.name = name
            self._enter(client)
        elif client is None:
            client = Client(name, row=self.next_row)
            self._enter(client)
        if node is not None:
            self._move(client, node)
        return client

    def look(self, nodes: Iterable[int]) -> Presence:
        """Finds out who is there.

        Flower lists a SuperNode that died for a while beside the one started in its place. Once it
        is not listed any more it is forgotten: under its key it may return with another client.
        While a client is missing no node is left out: SuperNodes with keys keep their ids when
        they are started with each other's clients, and it may be at any of them.

        Args:
            nodes: The nodes that Flower lists now.

        Returns:
            Who is there; the same object while nothing has changed.
        """
        listed = nodes if isinstance(nodes, list) else list(nodes)
        if self._looked is not None:
            before, presence = self._looked
            if before is listed or before == listed:  # a million numbers: compared once a round
                self._looked = listed, presence
                return presence
        online = set(listed)
        self._left &= online
        if not self._missing:
            online -= self._left
        strangers = sorted(node for node in online if node not in self._by_node)
        gone = {row for row, client in self._nameless.items() if client.node not in online}
        self._looked = listed, Presence(online, strangers, gone)
        return self._looked[1]

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

    def observed(self, client: Client, residual: float) -> None:
        """Notes how far a client's update was from its row.

        Args:
            client: The client.
            residual: ‖Δ_i − y_i‖.
        """
        client.residual = residual
        self._changed.add(client.row)

    def joined(self, client: Client, cluster: str) -> None:
        """Notes that a client belongs to this cluster now.

        Args:
            client: The client.
            cluster: Its label.
        """
        client.cluster = cluster
        self._changed.add(client.row)

    def counted(self, client: Client, examples: float) -> None:
        """Notes how many examples a client has.

        Args:
            client: The client.
            examples: As it says.
        """
        if client.examples != examples:
            client.examples = examples
            self._changed.add(client.row)

    def forget(self, client: Client) -> None:
        """Lets go of all that is known of a client; its row is free for another.

        Args:
            client: The client.
        """
        self._leave(client)
        if client.node is not None:
            del self._by_node[client.node]
        self._missing.discard(client.row)
        self._vacant.add(client.row)

    # Checkpoints

    def state_dict(self) -> Mapping[str, Any]:
        """What a checkpoint keeps beside the clients' entries, as JSON can hold it."""
        return {"left": sorted(self._left), "missing": sorted(self._missing)}

    def changed_entries(self) -> dict[str, dict[str, Any] | None]:
        """What the checkpoint has to be told of clients; call `saved` once it has been.

        Returns:
            An entry for each of them; None for one that was forgotten.
        """
        found = {row: self._by_row.get(row) for row in sorted(self._changed)}
        return {f"{ENTRY}{row}": None if c is None else asdict(c) for row, c in found.items()}

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
        found = [Client(**entry) for key, entry in entries.items() if key.startswith(ENTRY)]
        for client in sorted(found, key=_by_name):  # so that each comes last in the order
            self._enter(client)
        self.saved()
        self._vacant = set(range(max(self._by_row, default=-1))) - self._by_row.keys()

    def _enter(self, client: Client) -> None:
        self._vacant.discard(client.row)
        self._by_name[client.name] = client
        self._by_row[client.row] = client
        if client.node is not None:
            self._by_node[client.node] = client
        if client.is_nameless:
            self._nameless[client.row] = client
        insort(self._order, client, key=_by_name)
        self._changed.add(client.row)
        self._looked = None

    def _leave(self, client: Client) -> None:
        """Its node stays what it was."""
        del self._order[self.place_in_order(client)]
        del self._by_name[client.name], self._by_row[client.row]
        self._nameless.pop(client.row, None)
        self._changed.add(client.row)
        self._looked = None

    def _move(self, client: Client, node: int) -> None:
        """Only one client is at a node: where the one seen there before is now, nobody knows."""
        if client.node == node:
            return
        displaced = self._by_node.get(node)
        if displaced is not None:
            displaced.node = None
            self._changed.add(displaced.row)
            if not displaced.is_nameless:  # else it has only told its true name
                self._missing.add(displaced.row)
        if client.node is not None:
            del self._by_node[client.node]
            self._left.add(client.node)
        client.node = node
        self._by_node[node] = client
        self._left.discard(node)
        self._missing.discard(client.row)
        self._changed.add(client.row)
        self._looked = None


def _by_name(client: Client) -> tuple[int, int, str]:
    return name_order(client.name)
