"""Whether two runs are the same: which settings must agree, and what to say where they do not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fedvarp.runs.errors import RunError

if TYPE_CHECKING:
    from fedvarp.runs.directory import RunDirectory

ROUNDS: Final = "rounds"
TARGET: Final = "evaluation.target_accuracy"
_TRAINER: Final = "trainer.name"
_WORKERS: Final = "trainer.workers"
_EXACT: Final = "trainer.exact"
_AUTO: Final = "trainer.auto"  # why `trainer = "auto"` chose the trainer that is recorded
_THREADS: Final = "trainer.threads"
_PYTHON: Final = re.compile(r", Python \d+\.\d+")  # behind the hash of code
_CONTENT: Final = re.compile(r"(given\.)?(loss|model|sampler|server_optimizer)\b")
_HOW_KEPT: Final = tuple(
    f"recording.{name}"
    for name in ("commit_every", "keep_checkpoints", "fsync", "tensorboard", "mlflow", "wandb")
)

MAY_CHANGE: Final = frozenset({ROUNDS, TARGET, _TRAINER, _WORKERS, _AUTO, *_HOW_KEPT})
"""What a resumed run may be told anew: how long to go on, how it is kept, and who trains, if to the
same bits."""


def refuse_other_settings(directory: RunDirectory, settings: Mapping[str, Any]) -> None:
    """Refuses settings that would make a run another one.

    Args:
        directory: The run.
        settings: Those it shall go on with, nested as in config.toml.

    Raises:
        RunError: They differ from the recorded ones in more than a resumed run may be told anew;
            names each difference.
    """
    if found := differences(directory.settings(), settings):
        raise RunError(
            f"The run in {directory.path} was made with {'; '.join(found)}. Resume it with what it "
            f"was made with, or choose another directory.{_hints(found)}"
        )


def refuse_edited_settings(
    directory: RunDirectory, committed: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Refuses settings that were edited since the checkpoint was made.

    Args:
        directory: The run.
        committed: What `lasting` said when the checkpoint was made.
        now: What it says now. Names may have joined; those that were there must be the same.

    Raises:
        RunError: Some are not; names each difference.
    """
    if edited := changes(committed, now, committed):
        raise RunError(
            f"The checkpoint in {directory.path} was made with {'; '.join(edited)}: config.toml "
            f"was edited since, or a file that it names, or the data or code behind a name. Put it "
            f"back to go on, or begin a run of its own.{_hints(edited)}"
        )


def _hints(differences: Iterable[str]) -> str:
    """What is easily overlooked about differences in the content of objects."""
    hints = ""
    if any("dataset.fingerprint = " in each for each in differences):
        hints += (
            " (A data set that changes each time it is loaded cannot be resumed; randomness "
            "belongs into its `augment`.)"
        )
    if any(_CONTENT.match(each) for each in differences):
        hints += (
            " (What changes as it is used, such as a loss that counts its calls, is another one "
            "afterwards: make it anew, or give it a method `describe()` that returns its settings.)"
        )
    if any(len(set(_PYTHON.findall(each))) > 1 for each in differences):
        hints += (
            " (Code is known by its bytecode, which another Python writes otherwise: resume with "
            "the one that the run was begun with.)"
        )
    return hints


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compares the settings of two runs in all that makes them the same run.

    Args:
        before: Settings of the one, nested as in config.toml.
        now: Settings of the other.

    Returns:
        Each difference, as "local_sgd.lr = 0.1 (now 0.2)"; empty if they are the same run.
    """
    was, told = flattened(without_none(before)), flattened(without_none(now))
    found = changes(was, told, (was.keys() | told.keys()) - MAY_CHANGE)
    trainers = was.get(_TRAINER), told.get(_TRAINER)
    goes_by_the_choice = trainers[1] == "auto" and _AUTO in was
    # Several threads sum in another order than the single one of a worker.
    not_the_same_bits = "vectorised" in trainers or was.get(_THREADS, 1) != 1
    shared = "parallel" in trainers and not was.get(_EXACT, True)  # clients are, by the workers
    if (not_the_same_bits or shared) and not goes_by_the_choice:
        found += changes(was, told, [_TRAINER, *[_WORKERS] * shared])
    return found


def changes(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Says which values are no longer what they were.

    Args:
        before: Values by name.
        now: The same later.
        names: Which to compare.

    Returns:
        Each difference in the order of names, as "lr = 0.1 (now 0.2)".
    """
    return [
        f"{name} = {before.get(name, 'not set')} (now {now.get(name, 'not set')})"
        for name in sorted(names)
        if before.get(name) != now.get(name)
    ]


def lasting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a resumed run must keep.

    Args:
        settings: All of them, nested.

    Returns:
        Those that must not change, under dotted names, as JSON gives them back.
    """
    kept = {n: v for n, v in flattened(without_none(settings)).items() if n not in MAY_CHANGE}
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def with_choice_of_auto(settings: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the trainer that `trainer = "auto"` has chosen in an earlier part of a run.

    Args:
        settings: Those the run shall go on with.
        recorded: Those of its config.toml.

    Returns:
        The same settings, where they name a trainer or auto has not chosen yet; else the recorded
        trainer with its workers and the reason in place of "auto".
    """
    flat, was = flattened(settings), flattened(recorded)
    if flat.get(_TRAINER, "auto") != "auto" or _AUTO not in was or was.get(_TRAINER) == "auto":
        return dict(settings)
    return nested(flat | {n: was[n] for n in (_TRAINER, _WORKERS, _AUTO) if n in was})


def with_later_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run as they would be written today: some things were no settings once.

    >>> with_later_settings({"server": {"lr": 1.0, "momentum": 0.0}})
    {'server': {'name': 'sgd', 'lr': 1.0, 'momentum': 0.0}}
    >>> with_later_settings({"table": {"codec": "float32"}})
    {'table': {'rows': 'all', 'codec': 'float32'}}

    Args:
        settings: Nested, as config.toml has them.

    Returns:
        The same, with what the run had no choice about.
    """
    later, server, table = dict(settings), settings.get("server"), settings.get("table")
    if isinstance(server, Mapping) and "momentum" in server:  # which was always written
        later["server"] = {"name": "sgd", **server}
    if isinstance(table, Mapping) and "codec" in table:  # likewise
        later["table"] = {"rows": "all", **table}
    return later


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names.

    Args:
        settings: Values and sections of them, which may hold sections in turn.
        prefix: What stands before every name.

    Returns:
        Every value by its dotted name; settings that have dotted names already stay as they are.

    >>> flattened({"seed": 1, "data": {"name": "digits"}})
    {'seed': 1, 'data.name': 'digits'}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted names as sections: the inverse of `flattened`.

    Args:
        flat: Values by dotted name.

    Returns:
        Values and sections.

    >>> nested({"seed": 1, "data.name": "digits"})
    {'seed': 1, 'data': {'name': 'digits'}}
    """
    whole: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        section = whole
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = value
    return whole


def without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as TOML gives them back: it knows no null and no tuples.

    Args:
        settings: Nested.

    Returns:
        The same without what is None, tuples as lists.

    >>> without_none({"workers": None, "local_sgd": {"betas": (0.9, 0.99)}})
    {'local_sgd': {'betas': [0.9, 0.99]}}
    """
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            kept[name] = without_none(value)
        elif isinstance(value, tuple):
            kept[name] = list(value)
        elif value is not None:
            kept[name] = value
    return kept
