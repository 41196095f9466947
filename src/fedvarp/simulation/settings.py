"""How a simulation is judged, kept and shown: settings that concern no client. No torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedvarp.clients.metrics import MetricsSetting
from fedvarp.settings.bounds import Count, KeepCheckpoints, PathText
from fedvarp.settings.section import Section


class Evaluation(Section):
    """How often the model is judged, on what, and when it is good enough."""

    every: Count = 10
    """Rounds between evaluations; the last round that was planned is evaluated too."""
    num_train_clients: Annotated[int, Field(ge=0)] | None = None
    """Clients that the training loss is averaged over; all unless given, 0 for none."""
    num_test_examples: Annotated[int, Field(ge=0)] | None = None
    """Examples of the test set that are looked at; all unless given, 0 for none."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the test examples, the same in every run, that is set aside to choose settings by:
    validation_accuracy and validation_loss, left out of the test figures; none unless given."""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Ends the run at the first evaluation that reaches it, such as 0.5."""
    metrics: MetricsSetting = None
    """Metrics of your own, functions of (outputs, targets) by name, in a file by import path: {auc
    = "my_package:auc"} records test_auc."""
    per_client: Literal["summary", "all"] | None = None
    """Whether to record how unequally clients fare on their training data (the worst tenth, the
    spread, each cluster): summary; or all, with every client's own figures."""


class Recording(Section):
    """Where a run is kept, how often, and whether it shows its progress.

    >>> Recording(out="runs/mine").commit_every
    1
    """

    out: PathText | None = None
    """The directory of the run; nothing is kept unless given."""
    resume: bool = False
    """Whether to go on with the run in `out`; it is begun if there is none."""
    commit_every: Count = 1
    """Rounds between checkpoints."""
    keep_checkpoints: KeepCheckpoints = 2
    """How many of the last checkpoints are kept, to go back to if those after them are damaged.
    They share all rows that did not change, so that each takes the room of one round's rows."""
    fsync: bool = True
    """Whether a checkpoint waits for the disk, rows on disk included. Without it a killed process
    still loses nothing, but a power failure may cost the whole run: it is refused as damaged then,
    and never goes on with wrong figures."""
    progress: bool | None = None
    """Whether to show the progress; in a terminal (a bar) or a notebook unless given. Elsewhere it
    is a line on standard error now and then."""
    tensorboard: PathText | None = None
    """A folder in which each run logs into one of its own, for `tensorboard --logdir`."""
    mlflow: str | None = None
    """A tracking URI of MLflow to log to, such as sqlite:///mlflow.db."""
    wandb: str | None = None
    """A project of Weights & Biases to log to; WANDB_MODE=offline keeps it on this machine."""
