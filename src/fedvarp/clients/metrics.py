"""Metrics of one's own: functions of a model's outputs and the targets, by name. No torch.

>>> def mean_output(outputs, targets):
...     return sum(outputs) / len(outputs)
>>> measure("mean_output", mean_output, [1.0, 2.0], [0, 1], "the test examples")
1.5
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer

from fedvarp.errors import FedvarpError, InvalidError
from fedvarp.settings.names import Registry
from fedvarp.settings.problems import shown

if TYPE_CHECKING:
    from torch import Tensor

    Metric = Callable[[Tensor, Tensor], Any]
else:
    Metric = Callable[[Any, Any], Any]

OWN_METRICS: Final = Registry("metric", {})
"""Names for metrics in settings files besides import paths; ``OWN_METRICS["auc"] = auc`` adds."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAKEN: Final = ("loss", "accuracy")
_CALLED_WITH: Final = (
    "A metric is called with the model's outputs and the targets of all these examples at once, "
    "and returns one number"
)


class MetricError(FedvarpError):
    """A metric of one's own failed, or gave no number."""


def measure(name: str, metric: Metric, outputs: Any, targets: Any, whose: str) -> float:
    """Calls a metric.

    Args:
        name: What it is called.
        metric: (outputs, targets) → one number.
        outputs: The model's, for some examples.
        targets: Of the same examples.
        whose: Which examples these are, for messages.

    Returns:
        The number; NaN where the metric says that it has none for these examples.

    Raises:
        MetricError: The metric failed, or gave something else.
    """
    try:
        value = metric(outputs, targets)
    except Exception as error:
        raise MetricError(
            f"The metric {name!r} failed on {whose}: {type(error).__name__}: {error}. "
            f'{_CALLED_WITH}; where it has none, as for a single class, float("nan") will do.'
        ) from error
    try:
        if isinstance(value, (str, bool)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MetricError(
            f"The metric {name!r} gave {shown(value)} for {whose}, which is no number. "
            f"{_CALLED_WITH}."
        ) from error


def metric_functions(metrics: Mapping[str, Metric | str] | None) -> dict[str, Metric]:
    """The functions behind the names.

    Args:
        metrics: As a setting holds them: functions, or names and import paths of some.

    Returns:
        Functions by the names of their figures.

    Raises:
        SettingsError: One cannot be imported.
    """
    found = (metrics or {}).items()
    return {n: OWN_METRICS.find(one) if isinstance(one, str) else one for n, one in found}


def _checked(given: Any) -> Any:
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given:
        raise InvalidError(
            f"= {shown(given)} should be functions by name, such as "
            f'{{"auc": my_auc}}; in a file, {{auc = "my_package:auc"}}'
        )
    for name, metric in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
            raise InvalidError(
                f"has a metric called {name!r}: a name has letters, digits and underscores, and is "
                f"neither of {' and '.join(_TAKEN)}, which every evaluation has"
            )
        if isinstance(metric, str):
            _refuse_unknown(name, metric)
        elif not callable(metric) or isinstance(metric, type):
            raise InvalidError(
                f"has {name} = {shown(metric)}, which is no function of outputs and targets, nor "
                f'the import path of one, such as "my_package:auc"'
            )
    return dict(given)


def _refuse_unknown(name: str, path: str) -> None:
    if path not in OWN_METRICS and ":" not in path:
        raise InvalidError(
            f"has {name} = {path!r}, which is no import path: write package.module:function, of a "
            f"module that is installed or lies in the folder you are in"
        )


def _described(metrics: Mapping[str, Any] | None) -> dict[str, str] | None:
    """The import path of each, as far as a function has one."""
    if metrics is None:
        return None
    return {n: one if isinstance(one, str) else _path(one) for n, one in metrics.items()}


def _path(function: Any) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}:{kind.__qualname__}"


if TYPE_CHECKING:
    MetricsSetting = Mapping[str, Metric | str] | None
else:
    MetricsSetting = Annotated[Any, BeforeValidator(_checked), PlainSerializer(_described)]
