"""What a run is: the settings and the content of everything that changes its figures."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import TYPE_CHECKING, Any

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.clipped import Clipped
from fedvarp.algorithms.cluster_fedvarp import ClusterFedVARP
from fedvarp.algorithms.names import ALGORITHMS
from fedvarp.algorithms.registry import TableSettings
from fedvarp.clients.local_sgd import OPTIMIZERS, LocalSGD
from fedvarp.clients.metrics import metric_functions
from fedvarp.settings.section import Section
from fedvarp.simulation.code_content import is_of_a_library
from fedvarp.simulation.content import content
from fedvarp.simulation.settings import Evaluation
from fedvarp.trainers.base import ClientTrainer

if TYPE_CHECKING:
    from fedvarp.simulation.task import Task


def description(task: Task) -> dict[str, Any]:
    """Everything that changes a run's figures, as TOML can hold it.

    Args:
        task: What was asked for.

    Returns:
        Settings by their names, and the content of what was passed as objects; for config.toml, for
        a resumed run to be held against, and for comparisons.

    Raises:
        SettingsError: Something that was passed cannot be described.
    """
    told: dict[str, Any] = {
        "algorithm": task.algorithm_name,
        "rounds": task.rounds,
        "seed": task.seed,
        "num_clients": task.dataset.num_clients,
        **_objects(task),
    }
    for name in ("local_sgd", "table", "evaluation"):
        told[name] = content(getattr(task, name), name)
    told["server_optimizer"] = content(task.server_optimizer, "server_optimizer")
    if is_of_a_library(type(task.server_optimizer)):
        del told["server_optimizer"]["kind"]  # what it says of itself begins with its name
    # Last, as in the settings of the command line: a file that ends with it was not cut off.
    return told | _trainer(task.trainer) | {"recording": {"fsync": task.recording.fsync}}


def behind_names(task: Task) -> dict[str, Any]:
    """The content of what settings only name: a file with a trace, data, code of one's own.

    Args:
        task: Made from settings that have a description of their own.

    Returns:
        What a checkpoint holds beside the settings, under names that they do not have.

    Raises:
        SettingsError: Something cannot be described.
    """
    told = _objects(task)
    if not isinstance(task.local_sgd.schedule, Section):
        told["schedule"] = content(task.local_sgd.schedule, "local_sgd.schedule")
    if not is_of_a_library(type(task.server_optimizer)):
        told["server_optimizer"] = content(task.server_optimizer, "server_optimizer")
    return {"sampler": told.pop("sampler"), "given": told}


def _objects(task: Task) -> dict[str, Any]:
    aggregator = aggregator_content(task.fresh_aggregator, task.table_in_memory)
    return {
        "dataset": content(task.dataset, "dataset"),
        "model": content(task.model, "model", initial_weights=False),
        "loss": content(task.loss, "loss"),
        "sampler": content(task.sampler, "sampler"),
        **_own_optimizer(task.local_sgd),
        **_own_metrics(task.evaluation),
        **({"aggregator": aggregator} if aggregator else {}),
    }


def _own_optimizer(local_sgd: LocalSGD) -> dict[str, Any]:
    """The code of an optimiser of one's own, of which the settings have the import path."""
    if local_sgd.optimizer is None or local_sgd.optimizer.name in OPTIMIZERS:
        return {}
    return {"optimizer": content(OPTIMIZERS.find(local_sgd.optimizer.name), "optimizer")}


def _own_metrics(evaluation: Evaluation) -> dict[str, Any]:
    """The code of metrics: no step depends on it, but what is recorded under their names does."""
    functions = metric_functions(evaluation.metrics)
    return {"metrics": content(functions, "evaluation.metrics")} if functions else {}


def aggregator_name(made: Aggregator) -> str:
    """What an aggregator is called in tables and bars.

    Args:
        made: It.

    Returns:
        The name of its class: of this package as settings spell it; of one's own as it is, with its
        module where the package has one of the same name.
    """
    kind = type(made.unwrapped if type(made).__module__.startswith("fedvarp.") else made)
    known = {name.replace("_", ""): name for name in ALGORITHMS}.get(kind.__name__.lower())
    if kind.__module__.startswith("fedvarp."):
        return known or kind.__name__
    return f"{kind.__module__}.{kind.__name__}" if known else kind.__name__


def aggregator_content(made: Aggregator, table: TableSettings) -> dict[str, Any]:
    """What sets an aggregator apart from others of its name.

    Args:
        made: It, before its first round.
        table: What it was made from.

    Returns:
        Its code if it is one's own, its settings, and its table where that is not the one that the
        run's settings describe. Nothing is left of the package's own algorithms.
    """
    if type(made) is Clipped:  # a subclass has code, and perhaps settings, of its own
        within = aggregator_content(made.aggregator, table)
        by_settings = made.multiple == table.clip_updates
        return within if by_settings else {**within, "clip_updates": made.multiple}
    of_table = {} if made.table is None else dict(made.table.describe())
    told: dict[str, Any] = content(made, "aggregator")
    the_table = {name for name, value in vars(made).items() if value is made.table}
    for name in {"algorithm", *of_table} - vars(made).keys() | the_table:
        told.pop(name, None)
    if made.__module__.startswith("fedvarp."):
        del told["kind"]
    usual = {"one for each client": dict(table.row_per_client().describe())}
    if table.cluster_of is not None:
        usual["one for each cluster"] = dict(table.row_per_cluster().describe())
    rows = next((name for name, described in usual.items() if described == of_table), None)
    if of_table and rows is None:
        told["table"] = of_table
    elif of_table and isinstance(made, ClusterFedVARP) != (rows == "one for each cluster"):
        told["rows"] = rows
    own = [] if made.table is None else [made.table, *made.table.made_of(), *made.table.tables()]
    for part in (part for part in own if not type(part).__module__.startswith("fedvarp.")):
        told["table"] = content(part, "aggregator.table")
    return told


def _trainer(trainer: object) -> dict[str, Any]:
    """Who trains, and what else changes the figures if it is a trainer of one's own."""
    if not isinstance(trainer, ClientTrainer):
        return {"trainer": content(trainer, "trainer")}
    told: dict[str, Any] = {"trainer": {"name": type(trainer).__qualname__}}
    if not is_of_a_library(type(trainer)):
        # Trainers hold the parts of the run, which are described, and processes, which cannot be:
        # numbers, texts, settings and functions in it count, or what it says of itself.
        describe = getattr(trainer, "describe", None)
        counts = (bool, int, float, str, Section, FunctionType, functools.partial)
        held = {n: v for n, v in vars(trainer).items() if isinstance(v, counts)}
        says = describe() if callable(describe) else held
        told["own_trainer"] = {
            **content(type(trainer), "trainer"),
            **content(says, "trainer"),
        }
    return told
