"""The rows of the table for the clients known: one each, or one for each cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from logging import WARNING
from typing import Any, Final

import torch
from flwr.app import RecordDict
from flwr.supercore import log
from torch import Tensor

from fedvarp.flower.identity import Client, KnownClients, Presence
from fedvarp.flower.names import name_order
from fedvarp.flower.replies import RefusedReplyError, text_in
from fedvarp.tables.base import ClientTable
from fedvarp.tables.clustered import ClusteredTable

ClusterSource = Mapping[str | int, str | int] | Callable[[str], str | int] | str
"""{name: cluster}, name → cluster, or the key under which a client reports its cluster."""


_UNIT: Final = 2**1074


class Clusters:
    """Clusters by label, numbered as they turn up. Number 0 is for clients not yet placed.

    Nobody's update is ever put into row 0, so that it stays zero: a client whose cluster is not
    known counts as one that was never seen.

    Args:
        source: Where the cluster of a client comes from.
    """

    def __init__(self, source: ClusterSource) -> None:
        self._source = source
        self._mapping = (
            {str(name): str(label) for name, label in source.items()}
            if isinstance(source, Mapping)
            else {}
        )
        self.labels: list[str] = sorted(set(self._mapping.values()))
        self.last_rounds: dict[str, int] = {}  # label: the round its row's newest update is from

    @property
    def names(self) -> list[str]:
        """The clients that are known from the start."""
        return list(self._mapping)

    @property
    def num_rows(self) -> int:
        """K, and one for row 0."""
        return len(self.labels) + 1

    def label_of(self, client: str, content: RecordDict | None, most: float = math.inf) -> str:
        """Finds out to which cluster a client belongs.

        Args:
            client: Its name.
            content: Of its reply; None if there is none.
            most: How many clusters there may be if clients say which they are in.

        Returns:
            The label of its cluster.

        Raises:
            RefusedReplyError: Nobody knows, or there would be too many.
        """
        if isinstance(self._source, str):
            label = None if content is None else text_in(content, self._source)
            if label is None:
                raise RefusedReplyError(f"it does not report its cluster, {self._source!r}")
            if label not in self.labels and len(self.labels) >= most:
                raise RefusedReplyError(f"its cluster {label!r} would be more than clients are")
            return label
        if isinstance(self._source, Mapping):
            if client not in self._mapping:
                raise RefusedReplyError(f"the mapping of clusters does not have {client!r}")
            return self._mapping[client]
        try:
            return str(self._source(client))
        except Exception as error:  # of the user's function; a client may go by any name
            raise RefusedReplyError(
                f"the function of clusters fails for {client!r}: {error!r}"
            ) from error

    def number_of(self, label: str) -> int:
        """The row of a cluster.

        Args:
            label: Its label; a new one gets the next row.

        Returns:
            1 … K.
        """
        if label not in self.labels:
            self.labels.append(label)
        return self.labels.index(label) + 1

    def cluster_of(self, clients: Iterable[Client], num_clients: int) -> Tensor:  # (N,) int64
        """The rows of all clients.

        Args:
            clients: Those that are known.
            num_clients: N.

        Returns:
            (N,) int64, 0 for a client that is not known or not placed.
        """
        rows = torch.zeros(num_clients, dtype=torch.int64)
        for client in clients:
            if client.cluster is not None:
                rows[client.row] = self.number_of(client.cluster)
        return rows

    def state_dict(self) -> Mapping[str, Any]:
        """What a checkpoint keeps of it, as JSON can hold it."""
        return {"labels": self.labels, "last_rounds": self.last_rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave; labels of a longer mapping follow later.

        Args:
            state: From a checkpoint.
        """
        self.labels = list(state["labels"])
        self.last_rounds = dict(state["last_rounds"])


class ClientRows:
    """Keeps the table as large as there are clients, and each row counting for what it should.

    The table's mean is Σ n_i y_i / (N n̄): n_i is the number of a client's examples, n̄ its mean over
    the clients who have said theirs, N the number of those who may be drawn. Who has not been seen
    yet is thus taken to have n̄ examples, and a row of zeros. Where clients count the same all n_i
    are 1. See `docs/decisions/flower-weights.md`.

    Args:
        table: The algorithm's table; None if it has none.
        clients: The clients known.
        clusters: Their clusters; None: each client has a row of its own.
        num_clients: N if fewer clients have turned up; more are not let in. None: as many as have
            turned up.
        by_examples: Whether clients count by their examples, or all the same.
    """

    def __init__(
        self,
        table: ClientTable | None,
        clients: KnownClients,
        clusters: Clusters | None,
        num_clients: int | None,
        by_examples: bool,
    ) -> None:
        self.clients = clients
        self.clusters = clusters
        self._least = max(1, num_clients or 0)
        self.num_clients = max(self._least, len(clients))  # N
        self._most = math.inf if num_clients is None else max(num_clients, len(clients))
        self._table = table
        self._by_examples = by_examples
        self._presence: Presence | None = None
        self._gone: Set[int] = frozenset()  # rows that do not count now
        self._told: dict[int, float] = {}  # row: what its client counts for, as far as it is known
        self._all_told = 0  # the sum of those that count now, exactly, in units of 2^-1074
        self._shares = torch.ones(0, dtype=torch.float64)
        self._weighed: tuple[int, float] | None = None  # how the table was last, if it still is so
        for client in clients:
            self._note_examples(client)

    def meet(self, name: str, node: int | None) -> Client:
        """Meets a client, which may be a new one or have a new name; see `KnownClients.meet`.

        Args:
            name: What it is known by.
            node: The node where it is from now on; None: no news of that.

        Returns:
            The client. If it has a new name in place of another its row is as if never written.

        Raises:
            RefusedReplyError: It would be one more than `num_clients`.
        """
        known, before = self.clients.named(name), None if node is None else self.clients.at(node)
        if known is None and before is None and len(self.clients) - len(self._gone) >= self._most:
            raise RefusedReplyError(
                f"{name!r} would be one more than num_clients={self._most}: somebody goes by "
                f"several names, or it is too low; strategy.forget(name) makes room"
            )
        if known is None and before is not None and not before.is_nameless:
            self._empty(before, in_shared_rows=False)
            self.clients.refreshed(before, 0)
        return self.clients.meet(name, node)

    def meet_all(self, names: Mapping[int, str]) -> None:
        """Meets clients in the order of their names; says of whom there is no room for.

        Args:
            names: What the client at each node goes by.
        """
        for node in sorted(names, key=lambda node: (name_order(names[node]), node)):
            try:
                self.place(self.meet(names[node], node), None)
            except RefusedReplyError as why:
                log(WARNING, "The client at node %d is not let in: %s.", node, why)

    def count(self, presence: Presence) -> None:
        """Makes N the number of those who may be drawn, and no row count of whom is gone.

        Whoever has a name counts until it is forgotten, and a client without one while its node is
        online: a SuperNode that is started again has another id, and its old row must not be
        replayed for ever. A row comes back with its node.

        Args:
            presence: Who is there.
        """
        if presence is self._presence:
            return
        for row in presence.gone ^ self._gone:
            sign = -1 if row in presence.gone else 1
            self._all_told += sign * _exactly(self._told.get(row, 0.0))
            self._share(row, 0.0 if sign < 0 else self._told.get(row, 1.0))
        self._presence, self._gone = presence, presence.gone
        known = len(self.clients) - len(self._gone)
        may_be_there = max(1, self._least - len(self._gone), len(presence.online))
        self.num_clients = int(max(known, min(may_be_there, self._most)))
        self.weigh()

    def counted(self, client: Client, examples: float) -> None:
        """Notes how many examples a client has; `weigh` then makes its row count by them.

        Args:
            client: The client.
            examples: As far as they are believed.
        """
        self.clients.counted(client, examples)
        self._note_examples(client)

    def _note_examples(self, client: Client) -> None:
        if not self._by_examples or client.examples is None:
            return
        if client.row not in self._gone:
            self._all_told += _exactly(client.examples) - _exactly(self._told.get(client.row, 0.0))
            self._share(client.row, client.examples)
        self._told[client.row] = client.examples

    def _share(self, row: int, share: float) -> None:
        self._first_shares(row + 1)[row] = share
        self._weighed = None

    def _first_shares(self, size: int) -> Tensor:  # (size,) float64
        if size > len(self._shares):
            more = max(size, 2 * len(self._shares)) - len(self._shares)
            self._shares = torch.cat([self._shares, torch.ones(more, dtype=torch.float64)])
        return self._shares[:size]

    def weigh(self, num_rows: int = 0) -> None:
        """Makes rows count for what is known of their clients now.

        Args:
            num_rows: How many there must be at least.
        """
        if self._table is None:
            return
        size = max(self.num_clients, self.clients.num_rows, num_rows)
        counting = len(self._told) - len(self._told.keys() & self._gone)
        mean = self._all_told / (counting * _UNIT) if counting else 1.0
        now = (size, self.num_clients * mean)
        if now != self._weighed:
            self._table.resize(size)
            self._table.weigh(self._first_shares(size), now[1])
            self._weighed = now

    def grow(self, num_rows: int) -> None:
        """Makes room for rows of zeros; what the others count for stays the same.

        Args:
            num_rows: How many there must be at least.
        """
        if self._table is not None and num_rows > self._table.num_clients:
            self.weigh(num_rows)

    def forget(self, client: Client, *, in_shared_rows: bool) -> None:
        """Lets go of a client and of its row.

        Args:
            client: The client.
            in_shared_rows: Whether a row that it shares goes too, if its update is in there.
        """
        self._empty(client, in_shared_rows=in_shared_rows)
        self.clients.forget(client)
        self.weigh()

    def _empty(self, client: Client, *, in_shared_rows: bool) -> None:
        """Takes a client's numbers out of the table, and what it counts for."""
        row, own_part = torch.tensor([client.row]), False
        if in_shared_rows and self.clusters is not None and client.cluster is not None:
            own_part = self.clusters.last_rounds.get(client.cluster) == client.last_round
        for table in self._tables:
            if isinstance(table, ClusteredTable):
                if own_part:
                    table.forget(row)
                table.move(row, torch.tensor([0]))
            else:
                table.forget(row)
        if own_part and self.clusters is not None and client.cluster is not None:
            del self.clusters.last_rounds[client.cluster]
        told = self._told.pop(client.row, 0.0)
        if client.row not in self._gone:
            self._all_told -= _exactly(told)
        self._gone = self._gone - {client.row}
        self._share(client.row, 1.0)
        client.examples = client.cluster = client.residual = None

    def expire(self, before: int) -> None:
        """Lets go of rows that are too old; their clients count as never seen.

        Args:
            before: The round from which on rows are young enough.
        """
        old = [client for client in self.clients if 0 < client.last_round < before]
        shared = {} if self.clusters is None else self.clusters.last_rounds
        over = [label for label, last in shared.items() if last < before]
        for table in self._tables:
            in_table = old
            if isinstance(table, ClusteredTable):
                in_table = [client for client in old if client.cluster in over]
            table.forget(torch.tensor([client.row for client in in_table], dtype=torch.int64))
        for client in old:
            self.clients.refreshed(client, 0)
        for label in over:
            del shared[label]

    @property
    def _tables(self) -> tuple[ClientTable, ...]:
        """Those that hold a row for each client, or for each cluster."""
        return () if self._table is None else self._table.made_of()

    def place(self, client: Client, label: str | None) -> None:
        """Makes sure that a client has its row, and is in its cluster.

        Args:
            client: The client.
            label: Its cluster; None if there are none, or if it has not said.
        """
        self.grow(client.row + 1)
        if self.clusters is None or label is None or client.cluster == label:
            return
        number = self.clusters.number_of(label)
        for table in self._tables:
            if isinstance(table, ClusteredTable):
                table.move(torch.tensor([client.row]), torch.tensor([number]))
        self.clients.joined(client, label)

    def row_of(self, client: Client) -> int | str | None:
        """What tells the row that a client has, or shares, from the others.

        Args:
            client: The client.

        Returns:
            Its number, or the label of its cluster.
        """
        return client.row if self.clusters is None else client.cluster

    def last_round(self, client: Client) -> int:
        """The round of the newest update in a client's row, whoever of its cluster sent it.

        Args:
            client: The client.

        Returns:
            The round, counted from 1; 0: the row is not written.
        """
        if self.clusters is None or client.cluster is None:
            return client.last_round
        return self.clusters.last_rounds.get(client.cluster, 0)

    def refreshed(self, client: Client, round: int) -> None:
        """Notes that a client's row is from this round now.

        Args:
            client: The client.
            round: The round, counted from 1.
        """
        self.clients.refreshed(client, round)
        if self.clusters is not None and client.cluster is not None:
            self.clusters.last_rounds[client.cluster] = round


def _exactly(number: float) -> int:
    """A number in units of 2^-1074, of which every float is a whole number."""
    numerator, denominator = number.as_integer_ratio()
    return numerator * (_UNIT // denominator)
