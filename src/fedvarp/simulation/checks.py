"""What a simulation refuses before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fedvarp.clients.availability import Trace
from fedvarp.clients.cohorts import ClientSampler, Cohort, LearningSampler
from fedvarp.clients.local_optimizer import refuse_unusable
from fedvarp.clients.local_training import mean_steps
from fedvarp.clients.metrics import metric_functions
from fedvarp.clients.trial import refuse_untrainable
from fedvarp.errors import InvalidError
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import refuse_other_settings
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.step_checks import refuse_belief_in_lengths
from fedvarp.settings.problems import SettingsError
from fedvarp.system.processes import usable_cores
from fedvarp.tables.checks import check_clients, refuse_duplicates
from fedvarp.trainers.settings import Trainer

if TYPE_CHECKING:
    from fedvarp.simulation.task import Task

_ROUNDS_PROBED: Final = 20  # cohorts that are drawn to see what weights they have
_THREADS_PER_CORE: Final = 16  # a run may go on where there are fewer cores than it began with


def refuse_impossible(task: Task) -> None:
    """Raises ValueError for parts that do not fit together.

    Args:
        task: What was asked for; each part is right by itself.
    """
    dataset, evaluation = task.dataset, task.evaluation
    if task.recording.resume and task.recording.out is None:
        raise InvalidError(
            "resume=True goes on with a run that was kept: say where, with "
            "recording=Recording(out=…, resume=True)."
        )
    if isinstance(task.trainer, Trainer):
        refuse_too_many_threads(task.trainer.threads)
    if task.table.where == "disk" and task.recording.out is None:
        raise InvalidError(
            'Table(where="disk") keeps rows in the run directory: say where with recording="…".'
        )
    FlatModel(task.model)  # which refuses what cannot be trained
    if isinstance(task.trainer, Trainer):  # one of the caller's own may want neither as they are
        refuse_untrainable(task.model, task.loss, dataset, task.local_sgd, task.seed)
    _refuse_clients_steps(task)
    mean_steps(task.local_sgd, dataset)
    clusters = task.table.clusters
    if isinstance(clusters, tuple) and len(clusters) != dataset.num_clients:
        raise InvalidError(
            f"Table(clusters=…) has {len(clusters)} numbers; give one for each of the "
            f"{dataset.num_clients} clients."
        )
    known = getattr(task.sampler, "num_clients", dataset.num_clients)
    if known != dataset.num_clients:
        raise InvalidError(
            f"The sampler is for {known} clients, the data set has {dataset.num_clients}."
        )
    asked = getattr(task.sampler, "clients_per_round", 0)
    if task.table.max_rows is not None and task.table.max_rows < asked:
        raise InvalidError(
            f"table.max_rows = {task.table.max_rows} is less than a cohort of {asked}: the rows of "
            f"a round should fit. Give {asked} or more, or leave it out."
        )
    _refuse_short_trace(task)
    _refuse_unequal_weights(task)
    refuse_belief_in_lengths(task.fresh_aggregator, task.server_optimizer)
    _refuse_unmeasurable(task)
    if evaluation.target_accuracy is not None and (lacking := _why_no_accuracy(task)):
        raise InvalidError(
            f"target_accuracy={evaluation.target_accuracy:g} cannot be reached: there is no "
            f"accuracy, since {lacking}."
        )


def _refuse_unmeasurable(task: Task) -> None:
    """Metrics, or figures of clients, that no evaluation would have examples for."""
    evaluation = task.evaluation
    if evaluation.per_client is not None and evaluation.num_train_clients == 0:
        raise InvalidError(
            f'evaluation.per_client = "{evaluation.per_client}" tells how clients fare, and '
            f"evaluation.num_train_clients = 0 looks at none of them. Leave one of the two out."
        )
    tested = task.dataset.test is not None and evaluation.num_test_examples != 0
    if metric_functions(evaluation.metrics) and not (
        tested or evaluation.per_client or evaluation.validation_share
    ):
        raise InvalidError(
            "evaluation.metrics are measured on test examples, and there are none. Give the data "
            'set some (test=…), or measure at the clients: evaluation.per_client = "summary".'
        )


def _refuse_unequal_weights(task: Task) -> None:
    """Clients that count unequally, for an algorithm that cannot have it."""
    if not task.fresh_aggregator.needs_equal_weights:
        return
    probed = range(min(task.rounds, _ROUNDS_PROBED))
    cohorts = (cohort_of(task.sampler, t, task.dataset.num_clients).weights for t in probed)
    learns = isinstance(task.sampler, LearningSampler)  # it begins with equal ones, and moves on
    if learns or any(bool((w != w[:1]).any()) for w in cohorts if w is not None):
        raise InvalidError(
            f"{task.algorithm_name} counts all clients of a cohort the same, and "
            f"{type(task.sampler).__name__} gives them unequal weights. Sample clients uniformly, "
            f'stratified or in turn, for an equal objective (sampling.objective = "equal").'
        )


def _refuse_clients_steps(task: Task) -> None:
    """Local steps that the algorithm, or the model, has no use for."""
    local = task.local_sgd
    if local.optimizer is not None:
        try:
            refuse_unusable(
                local.optimizer, [p for p in task.model.parameters() if p.requires_grad]
            )
        except SettingsError as error:
            sentence = f"local_sgd.optimizer {error}"
            raise SettingsError(sentence if sentence[-1] in ".?" else f"{sentence}.") from error
        if task.fresh_aggregator.needs_gradients:
            raise InvalidError(
                f"{task.algorithm_name} learns the means of the clients' gradients from their "
                f"updates, which those of local_sgd.optimizer = {local.optimizer.name!r} do not "
                f"tell. Let clients take steps of SGD, or choose another algorithm."
            )
    if local.normalise_steps and task.fresh_aggregator.needs_models:
        raise InvalidError(
            f"{task.algorithm_name} needs the models of clients, and local_sgd.normalise_steps "
            f"divides what they moved by the number of their steps. Leave it out: each client "
            f"counts once in it without."
        )


def refuse_too_many_threads(threads: int | None) -> None:
    """Refuses threads that would only wait for each other.

    Args:
        threads: Of torch; None: as they are.

    Raises:
        ValueError: There are far more than cores.
    """
    cores = usable_cores()
    if threads is not None and threads > _THREADS_PER_CORE * cores:
        raise InvalidError(
            f"threads={threads} is too many for the {cores} cores that there are here: more "
            f"threads than cores only wait for each other. Choose 1 to {cores}."
        )


def cohort_of(sampler: ClientSampler, round: int, num_clients: int) -> Cohort:
    """Draws the cohort of a round, and refuses one that no round can be trained with.

    Args:
        sampler: Perhaps one of somebody's own.
        round: t, from 0.
        num_clients: N.

    Returns:
        The cohort.

    Raises:
        ValueError: It is none, names a client twice, or one that there is not; names the sampler.
    """
    who = f"{type(sampler).__name__}.cohort({round})"
    cohort = sampler.cohort(round)
    if not isinstance(cohort, Cohort):
        raise InvalidError(
            f"{who} gives a {type(cohort).__name__}; it must give a fedvarp.clients.Cohort."
        )
    try:
        check_clients(cohort.clients, num_clients)
        refuse_duplicates(cohort.clients, "its list of clients")
    except (ValueError, IndexError) as error:
        raise InvalidError(f"{who} cannot be used: {error}") from error
    return cohort


def _refuse_short_trace(task: Task) -> None:
    availability = getattr(task.sampler, "availability", None)
    if not isinstance(availability, Trace):
        return
    availability.refuse_clients_beyond(task.dataset.num_clients)
    if availability.after_end == "error" and task.rounds > availability.num_rounds:
        raise InvalidError(
            f"The availability trace has {availability.num_rounds} rounds, and the run would have "
            f"rounds={task.rounds}. Train at most {availability.num_rounds} rounds; or let a run "
            f'of its own start the trace again, with after_end="repeat".'
        )


def _why_no_accuracy(task: Task) -> str | None:
    if task.dataset.test is None:
        return "the data set has no test examples (test=…)"
    if task.dataset.num_classes is None:
        return "the data set does not say how many classes there are (num_classes=…)"
    return "num_test_examples is 0" if task.evaluation.num_test_examples == 0 else None


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
