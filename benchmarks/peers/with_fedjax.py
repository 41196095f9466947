"""A workload in fedjax: its federated averaging, compiled by JAX."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rounds.contestant import Pace
from benchmarks.rounds.workload import Workload, load, make_model, without_the_package


def outputs(parameters: Any, x: Any) -> Any:
    """The logits of the workload's model, in JAX: LeNet-5 for images, else one dense layer."""
    import jax  # type: ignore[import-not-found]

    def dense(name: str, x: Any) -> Any:
        return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]

    def convolved(name: str, x: Any) -> Any:
        x = jax.lax.conv_general_dilated(x, parameters[f"{name}.weight"], (1, 1), "VALID")
        x = x + parameters[f"{name}.bias"][:, None, None]
        window = (1, 1, 2, 2)
        pooled = jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, window, "VALID")
        return jax.nn.relu(pooled)

    if x.ndim == 2:
        return dense("linear", x)
    x = convolved("conv2", convolved("conv1", x))
    x = jax.nn.relu(dense("fc1", x.reshape(len(x), -1)))
    return dense("fc3", jax.nn.relu(dense("fc2", x)))


def run(workload: Workload) -> None:
    """Federated averaging without evaluation."""
    import jax

    jax.tree_map = jax.tree_util.tree_map  # which JAX has dropped since fedjax's last version
    import fedjax  # type: ignore[import-not-found]
    from fedjax.algorithms import fed_avg  # type: ignore[import-not-found]

    def loss(parameters: Any, batch: Any, _: Any) -> Any:
        logits = jax.nn.log_softmax(outputs(parameters, batch["x"]))
        return -logits[np.arange(len(batch["y"])), batch["y"]].mean()

    settings = workload.settings
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(learning_rate=settings.lr),
        fedjax.optimizers.sgd(learning_rate=1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=settings.batch_size, num_epochs=settings.epochs, drop_remainder=False
        ),
    )
    module = make_model(settings)
    state = algorithm.init({n: p.detach().numpy() for n, p in module.named_parameters()})
    pace, draw = Pace(), np.random.default_rng(0)
    pace()
    for t in range(pace.rounds):
        keys = jax.random.split(jax.random.PRNGKey(t), settings.clients_per_round)
        chosen = draw.choice(workload.num_clients, settings.clients_per_round, replace=False)
        clients = []
        for i, key in zip(chosen.tolist(), keys, strict=True):
            x, y = workload.client(i)
            examples = fedjax.ClientDataset({"x": x.numpy(), "y": y.numpy()})
            clients.append((i, examples, key))
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        pace()


if __name__ == "__main__":
    without_the_package()
    run(load(Path(sys.argv[1])))
