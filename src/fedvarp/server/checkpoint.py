"""One transaction per round: the model, the optimiser, the table and the round number together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.server.server import Server
from fedvarp.settings.bounds import KeepCheckpoints
from fedvarp.settings.checked import checked
from fedvarp.tables.disk import DiskTable
from fedvarp.tables.earlier import ALWAYS
from fedvarp.tables.row_table import RowTable
from fedvarp.tables.store import Store, StoreError, as_json, from_json, refuse_differences
from fedvarp.version import __version__

FORMAT: Final = 2
"""Goes up when an older version could no longer read what is written, or the other way round.

1 had no seal over what a store holds, and no records of rounds; it is read, and becomes 2 by the
first commit.
"""

_READABLE: Final = (1, FORMAT)

ENTRIES: Final = "entries"
"""The database that holds them."""


class CheckpointError(StoreError):
    """The checkpoint cannot be used, or not for this server."""


class Checkpoint:
    """Saves a server after each round; a commit costs O(M·d) whatever N is.

    Kill the process at any instant: the folder reopens at a whole round, and the run that goes on
    from there is the one that was never interrupted, bit for bit.

    Args:
        path: The folder, made if there is none; that of a `DiskTable` if the server's table is one.
        fsync: Whether a commit waits for the disk. Without it a killed process loses nothing, but
            a power failure may cost the whole run: what is left may be refused as damaged.
        keep: How many of the last commits the folder holds, to go back to if those after them are
            damaged; they share all rows that did not change. Two always are there.

    Raises:
        CheckpointError: The folder was written in another format.
        StoreError: The folder is damaged or in use.

    >>> import tempfile
    >>> from fedvarp import ServerSGD, FedAvg, RoundUpdates
    >>> folder = tempfile.mkdtemp()
    >>> with Checkpoint(folder) as checkpoint:
    ...     server = Server(torch.zeros(2), FedAvg(), ServerSGD())
    ...     one = torch.tensor([1])
    ...     report = server.receive(RoundUpdates(one, torch.ones(1, 2), one, one, scale=0.5))
    ...     checkpoint.commit(server)
    >>> with Checkpoint(folder) as checkpoint:
    ...     server = Server(torch.zeros(2), FedAvg(), ServerSGD())
    ...     checkpoint.restore(server), server.round, server.w
    (True, 1, tensor([-0.5000, -0.5000]))
    """

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = True,
        keep: KeepCheckpoints = ALWAYS,
    ) -> None:
        self.store = Store.open(path, fsync=fsync, keep=keep)
        try:
            self._about = from_json(self.store.read("state", "about"))
            if self._about and self._about["format"] not in _READABLE:
                raise CheckpointError(
                    f"{self.store.path} was written by fedvarp {self._about['version']} in format "
                    f"{self._about['format']}; this is fedvarp {__version__}, which reads format "
                    f"{FORMAT} and before. Install that version to go on with the run; nothing was "
                    f"changed."
                )
        except BaseException:
            self.store.close()
            raise
        self._owner: Server | None = None  # whose rounds this folder holds
        self._is_open = True
        self.store.checkpoints_open += 1

    @property
    def round(self) -> int | None:
        """The round last committed; None in a new folder."""
        return self._about.get("round")

    @property
    def server_description(self) -> Mapping[str, Any] | None:
        """What `Server.describe` said when the round was committed; None in a new folder."""
        return self._about.get("server")

    @property
    def notes(self) -> Mapping[str, Any]:
        """The notes last committed."""
        notes: Mapping[str, Any] = self._about.get("notes", {})
        return notes

    def commit(
        self,
        server: Server,
        *,
        tensors: Mapping[str, Tensor] | None = None,
        notes: Mapping[str, Any] | None = None,
        sampler: Mapping[str, Tensor] | None = None,
        entries: Mapping[str, Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Saves the server as it is now, in one transaction.

        Args:
            server: The server.
            tensors: Whatever else belongs to the round, for instance a model's buffers.
            notes: The same, for what JSON can hold.
            sampler: What a sampler that learns from the rounds has learned.
            entries: What is new in a collection that grows, by key: earlier entries stay, so that
                the history of a long run is not written again in every round. None deletes one.

        Raises:
            CheckpointError: The folder holds another server's run, the table's rows are elsewhere,
                or the algorithm cannot take back what it gives.
            StoreError: It could not be written; the round before is intact.
        """
        if self._about and server is not self._owner:
            raise CheckpointError(
                f"{self.store.path} holds a run at round {self.round}, which this commit would "
                f"overwrite. Call restore() first to go on with it, or choose a new folder."
            )
        tables = _tables(server)
        self._refuse_rows_elsewhere(tables)
        remembered = dict(server.aggregator.state_dict())
        _refuse_what_cannot_be_taken_back(server.aggregator, remembered)
        extra, learned = dict(tensors or {}), dict(sampler or {})
        about = {
            "format": FORMAT,
            "version": __version__,
            "round": server.round,
            "server": dict(server.describe()),
            "optimizer": _layout(server.optimizer.state_dict()),
            "aggregator": _layout(remembered),
            "table": _layout(_beside_rows(server)),
            "tensors": _layout(extra),
            "sampler": _layout(learned),
            "notes": dict(notes or {}),
        }
        batch: dict[tuple[str, str], Tensor | None] = {("state", "w"): server.w}
        for name, tensor in server.optimizer.state_dict().items():
            batch["state", f"optimizer/{name}"] = tensor
        for name, tensor in remembered.items():
            batch["state", f"aggregator/{name}"] = tensor
        for name, tensor in _beside_rows(server).items():
            batch["state", f"table/{name}"] = tensor
        for name, tensor in extra.items():
            batch["state", f"tensors/{name}"] = tensor
        for name, tensor in learned.items():
            batch["state", f"sampler/{name}"] = tensor
        for key, entry in (entries or {}).items():
            batch[ENTRIES, key] = None if entry is None else as_json(entry)
        for table in tables:
            table.save(batch, self.store)
        batch["state", "about"] = as_json(about)
        emptied = [database for table in tables for database in table.replaces(self.store)]
        self.store.write(batch, emptied)
        for table in tables:
            table.saved(self.store)
        self._about = about
        self._owner = server

    def restore(self, server: Server) -> bool:
        """Makes a server the one that was last committed.

        Args:
            server: One made as the other was.

        Returns:
            Whether there was anything to restore; False in a new folder.

        Raises:
            CheckpointError: The server was made otherwise. It stays as it is.
            StoreError: The folder is damaged. The server stays as it is.
        """
        if not self._about:
            return False
        try:
            saved = self._about["server"]
            present = {**dict.fromkeys(saved), **server.describe()}  # what is no more, differs
            refuse_differences(saved, present, f"The checkpoint in {self.store.path}")
        except StoreError as difference:
            raise CheckpointError(str(difference)) from None
        tables = _tables(server)
        self._refuse_rows_elsewhere(tables)
        w = self.store.read_tensor("state", "w", server.w.dtype, tuple(server.w.shape))
        optimizer = self._read_all("optimizer", self._about["optimizer"])
        aggregator = self._read_all("aggregator", self._about.get("aggregator", {}))
        beside_rows, device = self.beside_rows(), server.w.device
        for table in tables:
            table.load(self.store)
        if aggregator:
            server.aggregator.load_state_dict(
                {name: tensor.to(device) for name, tensor in aggregator.items()}
            )
        if server.aggregator.table is not None:
            server.aggregator.table.load_state_dict(beside_rows)
        server.optimizer.load_state_dict(
            {name: tensor.to(device) for name, tensor in optimizer.items()}
        )
        server.w.copy_(w)
        server.round = self._about["round"]
        self._owner = server
        return True

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that were committed beside the server."""
        return self._read_all("tensors", self._about.get("tensors", {}))

    def sampler(self) -> dict[str, Tensor]:
        """What the sampler had learned."""
        return self._read_all("sampler", self._about.get("sampler", {}))

    def beside_rows(self) -> dict[str, Tensor]:
        """What the table kept beside its rows: clusters that change with time."""
        return self._read_all("table", self._about.get("table", {}))

    def entries(self) -> dict[str, dict[str, Any]]:
        """All entries that were committed, by key."""
        return {key: from_json(entry) for key, entry in self.store.items(ENTRIES)}

    def close(self) -> None:
        """Gives the folder back."""
        if self._is_open:
            self._is_open = False
            self.store.checkpoints_open -= 1
            self.store.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_all(self, prefix: str, layout: Mapping[str, Any]) -> dict[str, Tensor]:
        return {
            name: self.store.read_tensor(
                "state", f"{prefix}/{name}", getattr(torch, dtype), tuple(shape)
            )
            for name, (dtype, shape) in layout.items()
        }

    def _refuse_rows_elsewhere(self, tables: tuple[RowTable, ...]) -> None:
        for table in tables:
            if isinstance(table, DiskTable) and table.store is not self.store:
                raise CheckpointError(
                    f"The rows are in {table.store.path}, the checkpoint is in {self.store.path}. "
                    f"One transaction cannot span two folders: give both the same path."
                )


def _refuse_what_cannot_be_taken_back(
    aggregator: Aggregator, remembered: Mapping[str, Tensor]
) -> None:
    algorithm = aggregator.unwrapped
    forgets = type(algorithm).load_state_dict is Aggregator.load_state_dict
    if remembered and forgets and (given := algorithm.state_dict()):
        raise CheckpointError(
            f"{type(algorithm).__name__} gives {', '.join(given)} to be saved, and "
            f"has no load_state_dict() to take them back. Define it, or the run could not be "
            f"resumed."
        )


def _tables(server: Server) -> tuple[RowTable, ...]:
    table = server.aggregator.table
    return () if table is None else table.tables()


def _beside_rows(server: Server) -> Mapping[str, Tensor]:
    table = server.aggregator.table
    return {} if table is None else table.state_dict()


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, list[int]]]:
    return {
        name: (str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in tensors.items()
    }
