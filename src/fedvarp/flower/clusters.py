"""Which cluster a client belongs to: from a mapping, a function of its name, or its own words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedvarp.flower.identity import Client, reported
from fedvarp.flower.replies import RefusedReplyError

ClusterSource = Mapping[str | int, str | int] | Callable[[str], str | int] | str
"""{name: cluster}, name → cluster, or the key under which a client reports its cluster."""


class Clusters:
    """Clusters by label, numbered as they turn up. Number 0 is for clients not yet placed.

    Nobody's update is ever put into row 0, so that it stays zero: a client whose cluster is not
    known counts as one that was never seen.
    """

    def __init__(self, source: ClusterSource) -> None:
        self._source = source
        self._mapping = (
            {str(name): str(label) for name, label in source.items()}
            if isinstance(source, Mapping)
            else {}
        )
        self.labels: list[str] = sorted(set(self._mapping.values()))

    @property
    def names(self) -> Sequence[str]:
        """The clients that are known from the start."""
        return list(self._mapping)

    @property
    def num_rows(self) -> int:
        """K, and one for row 0."""
        return len(self.labels) + 1

    def label_of(self, client: str, content: RecordDict | None) -> str:
        """The cluster of a client.

        Raises:
            RefusedReplyError: Nobody knows.
        """
        if isinstance(self._source, str):
            label = None if content is None else reported(content, self._source)
            if label is None:
                raise RefusedReplyError(f"it does not report its cluster, {self._source!r}")
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
        """The cluster's row; a new label gets the next one."""
        if label not in self.labels:
            self.labels.append(label)
        return self.labels.index(label) + 1

    def cluster_of(self, clients: Iterable[Client], num_clients: int) -> Tensor:  # (N,) int64
        """The row of every client of the table."""
        rows = torch.zeros(num_clients, dtype=torch.int64)
        for client in clients:
            if client.cluster is not None:
                rows[client.row] = self.number_of(client.cluster)
        return rows
