"""What a run's settings mean to whoever compares runs; each list stands here, and here alone.

Settings of the *running* (how long, on which machine, who trains) leave the mathematics alone and
are ignored. Those of the *method* (the algorithm, its rates, its table) are what a comparison is
about. All others are the *task*, which has to be the same on both sides.

Names are those in config.toml with dots between their parts; the name of a section stands for all
that is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CLIENT_RATE: Final = "local_sgd.lr"
TARGET_ACCURACY: Final = "evaluation.target_accuracy"

METRIC_SETTINGS: Final = ("evaluation.metrics.", "metrics.")
"""What metrics of one's own are: under one name, all runs of a comparison measure by one code."""

RUNNING: Final = {
    "name": "What the run is called.",
    "rounds": "How long it trains; figures of different lengths are noted, not refused.",
    TARGET_ACCURACY: "When it stops.",
    "evaluation.metrics": "What else is measured: runs without a metric are of the same task.",
    "metrics": "The code of these metrics.",
    "evaluation.per_client": "How much is recorded of single clients.",
    "recording": "Where and how often it is written down.",
    "trainer": "Who trains the clients, on which device, with how many processes and threads.",
    "table.where": "Whether rows lie in memory or on disk.",
}

METHOD: Final = {
    "algorithm": "How replies become a step.",
    "aggregator": "The content of an algorithm of one's own: its settings, its table, its code.",
    CLIENT_RATE: "η_c.",
    "local_sgd.schedule": "How η_c falls from round to round.",
    "local_sgd.step_decay": "How η_c falls from local step to local step.",
    "local_sgd.optimizer": "What takes the local steps, if not SGD.",
    "server": "The server's optimiser: its rate, its momentum, what it multiplies v by.",
    "server_optimizer": "The same of a run that was made from Python.",
    "own_trainer": "The content of a trainer of one's own, which may train otherwise.",
    "table": "What the server remembers: its codec, its clusters, how often they are found anew.",
}

AXIS_LABELS: Final = {
    CLIENT_RATE: "Client rate η_c",
    "local_sgd.epochs": "Local epochs",
    "local_sgd.steps": "Local steps τ",
    "local_sgd.batch_size": "Batch size",
    "clients_per_round": "Clients per round M",
    "data.alpha": "Dirichlet concentration α",
    "table.clusters": "Clusters K",
    "table.codec": "Rows stored as",
    "server.lr": "Server rate η_s",
}
"""What settings are called below an axis; all others go by their names."""

NO_AXIS: Final = {
    "algorithm": "Each algorithm is a line of the figure",
    "seed": "The figure shows means over seeds",
}
"""Settings that a figure cannot be drawn against, and why."""


def is_of_the_running(name: str) -> bool:
    """Tells whether a setting says how a run was made, not what it is.

    >>> is_of_the_running("trainer.workers"), is_of_the_running("table.codec")
    (True, False)
    """
    return belongs(name, RUNNING)


def is_of_the_method(name: str) -> bool:
    """Tells whether a setting is one that comparisons are about.

    >>> is_of_the_method("table.codec"), is_of_the_method("data.alpha")
    (True, False)
    """
    return belongs(name, METHOD)


def axis_label(name: str) -> str:
    """What to call a setting below an axis."""
    return AXIS_LABELS.get(name, name)


def shown_name(name: str, among: Iterable[str]) -> str:
    """Shortens a setting's name to its last part, unless another setting ends in the same.

    The settings of the clients' SGD are short all the same: lr is η_c, as in the paper.

    Args:
        name: The setting.
        among: The settings that the reader may think of.

    >>> shown_name("data.alpha", ["data.alpha", "server.lr"])
    'alpha'
    >>> [shown_name(name, ["local_sgd.lr", "server.lr"]) for name in ("local_sgd.lr", "server.lr")]
    ['lr', 'server.lr']
    """
    section, _, last = name.rpartition(".")
    alike = any(other != name and other.rpartition(".")[2] == last for other in among)
    return name if alike and section != "local_sgd" else last


def belongs(name: str, kind: Iterable[str]) -> bool:
    """Tells whether a setting is one of some settings, or in one of some sections."""
    return any(name == known or name.startswith(f"{known}.") for known in kind)
