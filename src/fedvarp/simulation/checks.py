"""What a simulation refuses before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedvarp.clients.local_training import mean_steps
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import refuse_other_settings
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked
from fedvarp.simulation.callbacks import Callback

if TYPE_CHECKING:
    from fedvarp.simulation.task import Task


def refuse_impossible(task: Task) -> None:
    """Raises ValueError for parts that do not fit together.

    Args:
        task: What was asked for; each part is right by itself.
    """
    dataset, evaluation = task.dataset, task.evaluation

    @checked
    def simulate(rounds: Count, seed: Seed) -> None:
        """Stands for the function of that name, whose numbers these are."""

    simulate(task.rounds, task.seed)
    for callback in task.callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(
                f"{callback!r} is no callback. Derive one from fedvarp.Callback; "
                f"fedvarp.OnRoundEnd(function) makes one of a function of (record, server)."
            )
    if task.table.where == "disk" and task.recording.out is None:
        raise ValueError(
            'Table(where="disk") keeps rows in the run directory: say where with recording="…".'
        )
    mean_steps(task.local_sgd, dataset)
    clusters = task.table.clusters
    if isinstance(clusters, tuple) and len(clusters) != dataset.num_clients:
        raise ValueError(
            f"Table(clusters=…) has {len(clusters)} numbers; give one for each of the "
            f"{dataset.num_clients} clients."
        )
    known = getattr(task.sampler, "num_clients", dataset.num_clients)
    if known != dataset.num_clients:
        raise ValueError(
            f"The sampler is for {known} clients, the data set has {dataset.num_clients}."
        )
    no_accuracy = dataset.test is None or dataset.num_classes is None
    if evaluation.target_accuracy is not None and (
        no_accuracy or evaluation.num_test_examples == 0
    ):
        raise ValueError(
            "target_accuracy needs a data set with test examples and num_classes, and "
            "num_test_examples above 0; without them there is no accuracy to reach."
        )


def refuse_another_run(directory: RunDirectory, settings: Mapping[str, Any], resume: bool) -> None:
    """Refuses a directory that holds what is no run, another run, or one not to be resumed.

    Args:
        directory: Where the run is to be kept.
        settings: Of the run.
        resume: Whether to go on with what is there.

    Raises:
        RunError: It holds something of the kind.
    """
    if not directory.exists:
        directory.refuse_if_taken()
        return
    if resume:
        refuse_other_settings(directory, settings)
        if settings["rounds"] < directory.rounds_done:
            raise RunError(
                f"{directory.path} has trained {directory.rounds_done} rounds already, more than "
                f"rounds={settings['rounds']}. A shorter run needs a directory of its own."
            )
        directory.refuse_without_checkpoint()
    else:
        raise RunError(
            f"{directory.path} holds a run already. Go on with it by "
            f"recording=Recording(out=…, resume=True), or choose another directory."
        )
