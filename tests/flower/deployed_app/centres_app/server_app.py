"""The server of the deployment tests: FedVARP over whoever is online."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedvarp.flower import FedVARP

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains, and writes down whose replies it used: round 3 of clients 0 and 2 is `3: 0 2`."""
    config = context.run_config
    events = Path(str(config["events"]))

    def write_down(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        accepted = sorted(int(str(c.metric_records["metrics"]["client"])) for c in contents)
        return MetricRecord({"accepted": accepted})

    strategy = FedVARP(
        num_clients=int(config["num-clients"]) or None,
        clip_updates=None,
        fraction_evaluate=0.0,
        checkpoint=str(config["checkpoint"]),
        identity=str(config["identity"]),
        ask_names=bool(config["ask-names"]),
        late_replies=0,
        min_available_nodes=int(config["min-nodes"]),
        train_metrics_aggr_fn=write_down,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))}),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["deadline"]),
    )
    rounds = {t: metrics["accepted"] for t, metrics in result.train_metrics_clientapp.items()}
    (events / "history.json").write_text(json.dumps(rounds))
