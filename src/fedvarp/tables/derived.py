"""Tables that hold no rows of their own, but make them of other tables'."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedvarp.tables.base import ClientTable
from fedvarp.tables.row_table import RowTable


class DerivedTable(ClientTable):
    """A table whose rows are made of those of the tables below it.

    Attributes:
        below: The tables that are read and written, of the same clients.
    """

    below: tuple[ClientTable, ...]

    def resize(self, num_clients: int) -> None:
        """Resizes all tables below; see `ClientTable.resize`."""
        for table in self.below:
            table.resize(num_clients)
        self.num_clients = num_clients

    def made_of(self) -> tuple[ClientTable, ...]:
        """What the tables below are made of."""
        return tuple(source for table in self.below for source in table.made_of())

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables below and of what is remembered beside them."""
        beside = sum(tensor.nbytes for tensor in self._own_state().values())
        return beside + sum(table.num_bytes for table in self.below)

    def tables(self) -> tuple[RowTable, ...]:
        """The tables that hold the rows."""
        return tuple(rows for table in self.below for rows in table.tables())

    def _own_state(self) -> dict[str, Tensor]:
        """What is remembered beside the tables below; nothing for most."""
        return {}

    def state_dict(self) -> Mapping[str, Tensor]:
        """What is remembered here, and what the tables below keep beside their rows."""
        below = {
            f"{k}/{name}": tensor
            for k, table in enumerate(self.below)
            for name, tensor in table.state_dict().items()
        }
        return self._own_state() | below

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave.

        Args:
            tensors: By name.
        """
        for k, table in enumerate(self.below):
            own = f"{k}/"
            table.load_state_dict(
                {n.removeprefix(own): t for n, t in tensors.items() if n.startswith(own)}
            )
