"""What algorithms and errors are called and look like, in every table, figure and report.

The colours are those of Okabe and Ito, which the colour-blind can tell apart; dashes and markers
differ as well, so that a figure survives a black-and-white printer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

Dash = Literal["solid", "dash", "dot", "dashdot", "longdash"]
Marker = Literal["circle", "square", "diamond", "triangle-up", "triangle-down", "x", "star"]


@dataclass(frozen=True)
class Look:
    """How the curve of one algorithm is drawn.

    Attributes:
        label: Its name in print.
        colour: As #RRGGBB.
        dash: Of the line.
        marker: On the line.
    """

    label: str
    colour: str
    dash: Dash
    marker: Marker


# In the order of the paper's legends, then those that it does not have.
LOOKS: Final[dict[str, Look]] = {
    "fedavg": Look("FedAvg", "#000000", "dot", "circle"),
    "mifa": Look("MIFA", "#CC79A7", "dashdot", "triangle-down"),
    "scaffold": Look("SCAFFOLD", "#E69F00", "dash", "square"),
    "cluster_fedvarp": Look("ClusterFedVARP", "#0072B2", "longdash", "triangle-up"),
    "fedvarp": Look("FedVARP", "#D55E00", "solid", "diamond"),
    "fedstale": Look("FedStale", "#56B4E9", "dash", "x"),
    "fedvarp_adaptive": Look("Measured FedVARP", "#7F7F7F", "dashdot", "square"),
    "fedvarp_mixed": Look("Mixed FedVARP", "#009E73", "solid", "star"),
    "fedprox": Look("FedProx", "#56B4E9", "dot", "circle"),
    "feddyn": Look("FedDyn", "#7F7F7F", "longdash", "triangle-up"),
    "trimmed_mean": Look("Trimmed mean", "#009E73", "dash", "square"),
    "median": Look("Median", "#009E73", "dot", "x"),
}

# For algorithms of one's own: what is left of the palette but yellow, which white paper swallows.
_OWN_COLOURS: Final = ("#009E73", "#56B4E9", "#7F7F7F")
_DASHES: Final[tuple[Dash, ...]] = ("solid", "dash", "dot", "dashdot", "longdash")
_MARKERS: Final[tuple[Marker, ...]] = (
    "circle", "square", "diamond", "triangle-up", "triangle-down", "x", "star",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """How the part of an error that has one cause is drawn.

    Attributes:
        label: What the cause is called in print.
        colour: As #RRGGBB.
        hatch: For black-and-white printers, in the letters of matplotlib.
    """

    label: str
    colour: str
    hatch: str


CAUSES: Final = {
    "stochastic_gradient": Cause("mini-batches", "#56B4E9", ""),
    "partial_participation": Cause("partial participation", "#D55E00", "//"),
    "client_drift": Cause("client drift", "#009E73", ".."),
}
"""The three errors of the paper's floor, by their names in diagnosis.json."""


def with_rows(label: str) -> str:
    """What to call an algorithm whose error was measured with the rows of a run, however old.

    >>> with_rows("FedVARP")
    'FedVARP, its rows'
    """
    return f"{label}, its rows"


def in_order(algorithms: Iterable[str]) -> list[str]:
    """Sorts algorithms: the paper's in its order, then all others by name.

    >>> in_order({"mine", "fedstale(beta=0.3)", "fedvarp", "fedavg"})
    ['fedavg', 'fedvarp', 'fedstale(beta=0.3)', 'mine']
    """
    order = list(LOOKS)

    def place(algorithm: str) -> tuple[int, str]:
        name = algorithm.partition("(")[0]
        return (order.index(name) if name in LOOKS else len(order), algorithm)

    return sorted(set(algorithms), key=place)


def look_of(algorithm: str, variant: int = 0) -> Look:
    """Returns the look of an algorithm; if it is not one of ours, the name alone decides.

    Args:
        algorithm: Its name in the settings, perhaps with options.
        variant: Counts curves of one algorithm, as with several learning rates: they share the
            colour, and differ in dash and marker.

    >>> look_of("fedvarp").colour == look_of("fedvarp", variant=1).colour
    True
    >>> look_of("fedstale(beta=0.3)").label
    'FedStale (beta=0.3)'
    """
    name, _, options = algorithm.partition("(")
    look = LOOKS.get(name)
    if look is not None and options:
        variant += 1 + zlib.crc32(options.encode()) % (len(_DASHES) - 1)
        look = replace(look, label=f"{look.label} ({options}")
    if look is None:
        key = zlib.crc32(algorithm.encode())
        look = Look(
            label=algorithm,
            colour=_OWN_COLOURS[key % len(_OWN_COLOURS)],
            dash=_DASHES[key // 3 % len(_DASHES)],
            marker=_MARKERS[key // 15 % len(_MARKERS)],
        )
    if variant == 0:
        return look
    return replace(
        look,
        dash=_DASHES[(_DASHES.index(look.dash) + variant) % len(_DASHES)],
        marker=_MARKERS[(_MARKERS.index(look.marker) + variant) % len(_MARKERS)],
    )
