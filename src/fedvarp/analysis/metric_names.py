"""What metrics are called in figures and tables, and in which unit they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fedvarp.runs.figures import FIGURES

METRICS: Final = {
    "train_loss": "Training loss",
    "test_accuracy": "Test accuracy (%)",
    "validation_accuracy": "Validation accuracy (%)",
    "test_loss": "Test loss",
    "validation_loss": "Validation loss",
}
"""What an evaluation may record, in the order in which figures show it, and its name there."""

_KINDS: Final = {"test": "Test", "validation": "Validation", "train": "Training"}
_OF_CLIENTS: Final = {
    "_worst_decile": "worst tenth of clients",
    "_worst_cluster": "worst cluster",
    "_spread": "spread over clients",
}


def metric_label(name: str) -> str:
    """What a metric is called on an axis.

    >>> metric_label("test_accuracy"), metric_label("test_auc")
    ('Test accuracy (%)', 'Test auc')
    >>> metric_label("train_accuracy_worst_decile")
    'Training accuracy, worst tenth of clients (%)'
    """
    if name in METRICS:
        return METRICS[name]
    whole, of_clients = name, ""
    for ending, words in _OF_CLIENTS.items():
        if name.endswith(ending):
            whole, of_clients = name.removesuffix(ending), f", {words}"
    kind, _, what = whole.partition("_")
    label = f"{_KINDS[kind]} {what}" if kind in _KINDS and what else whole
    unit = " (%)" if scale_of(name) == 100 else ""
    return f"{label.replace('_', ' ')}{of_clients}{unit}"


def scale_of(metric: str) -> int:
    """Returns what to multiply a recorded metric by: figures show accuracies in per cent."""
    return 100 if "accuracy" in metric else 1


def is_of_clients(metric: str) -> bool:
    """Whether a metric says how single clients fare, not how the model does on the whole."""
    return metric.startswith("train_") and metric not in FIGURES


def own_metrics(recorded: Iterable[str]) -> list[str]:
    """Of some figures those that not every evaluation has: metrics of one's own, and of clients."""
    return [name for name in dict.fromkeys(recorded) if name not in FIGURES]
