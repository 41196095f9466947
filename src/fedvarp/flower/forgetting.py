"""Lets go of a client in the folder of a run that nobody is running."""

from __future__ import annotations

import os
from collections.abc import Collection

import torch
from torch import Tensor

from fedvarp.flower.identity import ENTRY
from fedvarp.flower.names import name_of_node, name_order
from fedvarp.server.checkpoint import ENTRIES, Checkpoint, CheckpointError
from fedvarp.tables.store import as_json, from_json


def forget_client(folder: str | os.PathLike[str], name: str) -> None:
    """Takes a client out of a checkpoint: its row, its name, and the sums that hold its numbers.

    The file is written anew, so that nothing is left in pages that are free. A row that it shares
    with its cluster goes too: its update may be in there. Sums are made afresh when the run goes
    on. What the model has learned stays in the model.

    Args:
        folder: That of the checkpoint.
        name: What the client is known by.

    Raises:
        CheckpointError: There is no such client there.
        StoreError: The folder is damaged or in use.
    """
    with Checkpoint(folder) as checkpoint:
        store, clusters = checkpoint.store, checkpoint.notes.get("clusters")
        found = {e["name"]: (k, e) for k, e in checkpoint.entries().items() if k.startswith(ENTRY)}
        if name not in found:
            raise CheckpointError(f"In {store.path}: {unknown_client(name, found.keys())}")
        key, entry = found[name]
        # A client without a name at no node: nobody counts it, and the run that goes on drops it.
        nobody = {"name": name_of_node(entry["row"]), "row": entry["row"]}
        batch: dict[tuple[str, str], Tensor | None] = {
            (ENTRIES, key): as_json({**nobody, "cluster": entry["cluster"]})
        }
        tables = [k.removesuffix("/about") for k in store.keys("tables") if k.endswith("/about")]
        for table in tables:
            row = entry["row"]
            if clusters is not None and table == tables[0]:  # "clusters" comes before "rows"
                row = [None, *clusters["labels"]].index(entry["cluster"])
            about = from_json(store.read("tables", f"{table}/about"))
            batch["tables", f"{table}/about"] = as_json({**about, "row_weights": "out of date"})
            batch["tables", f"{table}/sum"] = torch.zeros(about["dim"], dtype=torch.float64)
            batch[f"rows/{table}", str(row)] = batch[f"written/{table}", str(row)] = None
        store.write(batch)
        store.compact()


def unknown_client(name: str, known: Collection[str]) -> str:
    """What to tell somebody who names a client that there is none of.

    Args:
        name: What was asked for.
        known: The names there are.

    Returns:
        A sentence or two.
    """
    some = ", ".join(map(repr, sorted(known, key=name_order)[:10]))
    return f"There is no client {name!r}. {len(known)} are known: {some}{'…' * (len(known) > 10)}."
