"""What every table refuses, before anything changes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedvarp.errors import InvalidError, UnknownClientError
from fedvarp.tables.largest_entries import LargestEntries

if TYPE_CHECKING:
    from fedvarp.tables.base import ClientTable

Beta = float | Tensor
"""β of v = β·ȳ + Σ a_i (Δ_i − β·y_i): a number, or (d,), one for each number of a row."""


def check_clients(clients: Tensor, num_clients: int) -> None:
    """Refuses what are not numbers of known clients.

    Args:
        clients: (M,) int64.
        num_clients: N.

    Raises:
        ValueError: They are no one-dimensional int64 tensor.
        IndexError: One of them is unknown.
    """
    if not isinstance(clients, Tensor) or clients.dtype != torch.int64:
        kind = clients.dtype if isinstance(clients, Tensor) else type(clients).__name__
        raise InvalidError(
            f"Clients must be an int64 tensor, not {kind}: torch.tensor([0, 7]), for example."
        )
    if clients.ndim != 1:
        raise InvalidError(
            f"Clients must have one dimension, (M,), not the shape {tuple(clients.shape)}."
        )
    outside = [client for client in clients.tolist() if not 0 <= client < num_clients]
    if outside:
        raise UnknownClientError(
            f"Client {outside[0]} is not among the {num_clients} clients of this table "
            f"(0 … {num_clients - 1}). If it joined later, call add_clients() first."
        )


def check_rows(
    table: ClientTable, clients: Tensor, rows: Tensor, known: LargestEntries | None = None
) -> LargestEntries:
    """Refuses rows that cannot become the rows of these clients.

    Args:
        table: Where they are to go.
        clients: (M,) int64, known and distinct.
        rows: (M, d) finite numbers of the table's dtype.
        known: The rows' largest entries, if somebody has measured them.

    Returns:
        The rows' largest entries.

    Raises:
        ValueError: A shape or dtype does not fit, a client is repeated, or a row is not finite.
        IndexError: A client is unknown.
    """
    check_clients(clients, table.num_clients)
    refuse_duplicates(clients, "The list of clients")
    if not isinstance(rows, Tensor):
        raise InvalidError(f"Rows must be a tensor (M, d), not {type(rows).__name__}.")
    if tuple(rows.shape) != (len(clients), table.dim):
        raise InvalidError(
            f"Rows have shape {tuple(rows.shape)}; {len(clients)} clients of a table with "
            f"dim={table.dim} need {(len(clients), table.dim)}."
        )
    if rows.dtype != table.dtype:
        raise InvalidError(
            f"Rows are {rows.dtype}; this table takes {table.dtype}. Convert them with "
            f".to({table.dtype})."
        )
    largest = LargestEntries.of(rows, known)
    for client, entry in zip(clients.tolist(), largest.values, strict=True):
        if not math.isfinite(entry):
            raise InvalidError(
                f"The row for client {client} holds NaN or infinity, which would stay in the "
                f"running sum for ever. Treat that client as dropped out; if it happens often, "
                f"lower the client learning rate."
            )
    return largest


def check_weights(a: Tensor, beta: Beta, clients: Tensor, dim: int) -> None:
    """Refuses weights a_i that do not belong to these clients, and a β that is no number.

    Args:
        a: (M,), one finite number for each client.
        beta: β, finite: a number, or (d,).
        clients: (M,).
        dim: d.

    Raises:
        ValueError: There are more or fewer weights, or one of them or β is NaN or infinite.
    """
    if isinstance(beta, Tensor):
        if tuple(beta.shape) != (dim,) or not bool(beta.isfinite().all()):
            raise InvalidError(
                f"beta has shape {tuple(beta.shape)}; it must be one finite number, or one for "
                f"each of the {dim} numbers of a row."
            )
    elif not math.isfinite(beta):
        raise InvalidError(f"beta={beta} must be a finite number: 0 for FedAvg, 1 for FedVARP.")
    if a.shape != clients.shape or not bool(a.isfinite().all()):
        raise InvalidError(
            f"The weights a have shape {tuple(a.shape)} for {len(clients)} clients; give one "
            f"finite number for each client that answered."
        )


def check_shares(shares: Tensor, total: float, num_clients: int) -> None:
    """Refuses what cannot be what each client counts for.

    Args:
        shares: (N,) float64, finite, none below zero.
        total: What all count for together, above zero.
        num_clients: N.

    Raises:
        ValueError: They are no such numbers, or not one a client.
    """
    if tuple(shares.shape) != (num_clients,) or shares.dtype != torch.float64:
        raise InvalidError(
            f"Shares are {shares.dtype} of shape {tuple(shares.shape)}; give one float64 number "
            f"for each of the {num_clients} clients."
        )
    if not bool(((shares >= 0) & shares.isfinite()).all()) or not 0 < total < math.inf:
        raise InvalidError(
            f"Shares must be finite and not below zero, and what all clients count for, {total}, "
            f"above zero."
        )


def refuse_duplicates(clients: Tensor, where: str) -> None:
    """Refuses clients of which one appears twice.

    Args:
        clients: (M,) int64.
        where: What the message says they stand in.

    Raises:
        ValueError: A client appears twice.
    """
    numbers = clients.tolist()
    if len(set(numbers)) != len(numbers):
        shown = str(numbers) if len(numbers) <= 12 else f"{str(numbers[:12])[:-1]}, …]"
        raise InvalidError(
            f"{where} holds {shown}. Each client may appear once per round; this usually means "
            f"sampling with replacement. Average the repeated updates first."
        )
