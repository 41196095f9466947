"""What every table refuses, before anything changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import refuse_duplicates
from fedvarp.tables.base import ClientTable


def check_clients(clients: Tensor, num_clients: int) -> None:
    """Raises unless these are numbers of known clients."""
    if clients.ndim != 1 or clients.dtype != torch.int64:
        raise ValueError(
            f"Clients must be a one-dimensional int64 tensor, not {clients.dtype} of shape "
            f"{tuple(clients.shape)}."
        )
    outside = [client for client in clients.tolist() if not 0 <= client < num_clients]
    if outside:
        raise IndexError(
            f"Client {outside[0]} is not among the {num_clients} clients of this table "
            f"(0 … {num_clients - 1}). If it joined later, call add_clients() first."
        )


def check_put(table: ClientTable, clients: Tensor, rows: Tensor) -> None:
    """Raises unless these are known clients, each once, with a row that fits for each of them."""
    check_clients(clients, table.num_clients)
    refuse_duplicates(clients, "put()")
    if tuple(rows.shape) != (len(clients), table.dim):
        raise ValueError(
            f"Rows have shape {tuple(rows.shape)}; {len(clients)} clients of a table with "
            f"dim={table.dim} need {(len(clients), table.dim)}."
        )
    if rows.dtype != table.dtype:
        raise ValueError(
            f"Rows are {rows.dtype}; this table takes {table.dtype}. Convert them with "
            f".to({table.dtype})."
        )


def check_finite(clients: Tensor, magnitudes: Sequence[float]) -> None:
    """Raises if the largest absolute value of a row is not a number."""
    for client, magnitude in zip(clients.tolist(), magnitudes, strict=True):
        if not math.isfinite(magnitude):
            raise ValueError(
                f"The row for client {client} holds NaN or infinity, which would stay in the "
                f"running sum for ever. Treat that client as dropped out; if it happens often, "
                f"lower the client learning rate."
            )
