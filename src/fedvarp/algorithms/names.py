"""The names of the algorithms. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedvarp.settings.calls import parse_call, written_call
from fedvarp.settings.names import Registry, options_of

ALGORITHMS: Final = Registry(
    "algorithm",
    {
        name: f"fedvarp.algorithms.registry:{name}"
        for name in (
            "fedavg",
            "fedvarp",
            "cluster_fedvarp",
            "mifa",
            "scaffold",
            "fedstale",
            "fedvarp_adaptive",
            "fedvarp_mixed",
            "fedprox",
            "feddyn",
            "trimmed_mean",
            "median",
        )
    },
    fills_required=True,
)
"""One line registers an algorithm of one's own, and settings then find it by its name:
``ALGORITHMS["mine"] = lambda table, beta=0.5: Mine(table.row_per_client(), beta)``, with `table`
the `TableSettings` of the run and all other parameters options: "mine(beta=0.3)". The tests in
tests/laws run over whatever stands here."""


_HAD_ANOTHER_DEFAULT: Final = (("fedvarp_adaptive", "beta"), ("fedvarp_mixed", "beta"))
"""Options that are always written: runs of earlier versions without them are something else."""


def algorithm_text(given: Any) -> Any:
    """The one text by which an algorithm and its options go; all that is none as it is.

    >>> algorithm_text({"name": "fedstale", "beta": 0.3})
    'fedstale(beta=0.3)'

    Args:
        given: A text, or a section with a name and options.

    Returns:
        The text.

    Raises:
        SettingsError: There is no algorithm of that name; without a subject.
    """
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        choice = parse_call(given["name"])
        options = {n: v for n, v in given.items() if n != "name"}
        given = written_call(choice.name, {**choice.options, **options})
    if isinstance(given, str):
        ALGORITHMS.check(parse_call(given).name)
    return given


def but_defaults(text: str) -> str:
    """The same algorithm without options that say what holds anyway; loads what it names.

    >>> but_defaults("fedstale(beta=0.5)"), but_defaults("fedstale(beta=1)")
    ('fedstale', 'fedstale(beta=1.0)')
    >>> but_defaults("fedvarp_mixed")
    'fedvarp_mixed(beta=per_layer)'

    Args:
        text: A name, perhaps with options.

    Returns:
        The shortest text for it: two runs of one algorithm are then called the same.

    Raises:
        ValidationError: There is no such algorithm or option, or a value is out of bounds.
    """
    choice = parse_call(text)
    maker = ALGORITHMS.load(choice.name, "algorithm.name")
    always = [option for name, option in _HAD_ANOTHER_DEFAULT if name == choice.name]
    if not choice.options and not always:
        return choice.name
    full = ALGORITHMS.complete(choice, "algorithm").options
    fields = options_of(maker, but_required=True).model_fields
    told = {n: v for n, v in full.items() if v != fields[n].default or n in always}
    return written_call(choice.name, told)
