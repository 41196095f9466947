"""The table of client states: y_1 … y_N, the memory of the server.

Three operations, `get`, `put` and `mean`, and one law that every table keeps after any sequence of
puts, the lossy ones included: ``mean() == get(all clients).mean(0)``.

- `InMemoryStates`, `OnDiskStates`: one row per client.
- `SharedByCluster`: one row per cluster, over either.
- `codecs`: how a row is written down, whichever table holds it.
"""

from fedvarp.client_states.client_states import ClientStates
from fedvarp.client_states.codecs import CODECS
from fedvarp.client_states.in_memory import InMemoryStates
from fedvarp.client_states.on_disk import OnDiskStates
from fedvarp.client_states.row_table import RowTable
from fedvarp.client_states.shared_by_cluster import SharedByCluster

__all__ = [
    "CODECS",
    "ClientStates",
    "InMemoryStates",
    "OnDiskStates",
    "RowTable",
    "SharedByCluster",
]
