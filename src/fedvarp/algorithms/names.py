"""The names of the algorithms. No torch."""

from __future__ import annotations

from typing import Final

from fedvarp.settings.names import Registry

ALGORITHMS: Final = Registry(
    "algorithm",
    {
        name: f"fedvarp.algorithms.registry:{name}"
        for name in (
            "fedavg",
            "fedvarp",
            "cluster_fedvarp",
            "mifa",
            "scaffold",
            "fedprox",
            "feddyn",
        )
    },
)
"""One line registers an algorithm of one's own, and settings then find it by its name:
``ALGORITHMS["mine"] = lambda table: Mine(table.row_per_client())``, with `table` the
`TableSettings` of the run. The tests in tests/laws run over whatever stands here."""
