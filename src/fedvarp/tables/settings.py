"""The settings of the table of client states. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import AboveOne, Count
from fedvarp.settings.section import Section

CodecName = Literal["float32", "bfloat16", "float16", "int8"]
CODEC_NAMES: Final[tuple[str, ...]] = get_args(CodecName)
"""How rows can be stored."""

CLUSTERS_PATTERN: Final = r"^(own|labels|auto:[1-9]\d*(:updates)?)$"
"""The names of clusters that settings may use."""


CLIP_AT: Final = 3.0
"""The multiple of the running median norm that "median" stands for: see docs/robustness.md."""


ClipUpdates = Annotated[
    Literal["median"] | AboveOne | None,
    BeforeValidator(lambda value: None if value is False else value),
]
"""Whether updates are clipped, and at which multiple of the running median of their norms."""


def clip_multiple(clip_updates: ClipUpdates | Literal[False]) -> float | None:
    """The multiple of the median norm that updates are clipped at; None for none.

    >>> clip_multiple("median"), clip_multiple(5.0), clip_multiple(None)
    (3.0, 5.0, None)

    Args:
        clip_updates: As it was set.
    """
    if clip_updates is None or clip_updates is False:
        return None
    return CLIP_AT if clip_updates == "median" else float(clip_updates)


class Table(Section):
    """Where the server keeps what clients sent last, how, and who shares a row.

    >>> Table(where="disk", codec="int8").clusters is None
    True
    """

    where: Literal["memory", "disk"] = "memory"
    """Where rows live; on disk they are part of the run's checkpoint."""
    codec: CodecName = "float32"
    """How rows are stored: int8 takes a quarter of the memory."""
    rows: Annotated[str, Field(min_length=1)] = "all"
    """Of which numbers rows are kept: "all", "last_layer", or patterns of parameters' names
    separated by commas, such as "fc3.*"; elsewhere the algorithm is FedAvg."""
    max_rows: Count | None = None
    """How many clients may have a row at a time: the oldest rows are dropped, and whoever had them
    counts as never seen. All of them unless given. Rows of clusters are not counted."""
    clusters: str | tuple[int, ...] | None = None
    """For cluster_fedvarp and fedvarp_mixed: "own" (the data set's), "labels" (clients with the
    same labels), "auto:K" (k-means on sketched gradients) or "auto:K:updates"; own unless given. In
    Python also the cluster of each client."""
    recluster_every: Count | None = None
    """With "auto:K": rounds until clusters are made anew; never unless given."""

    clip_updates: ClipUpdates = None
    """How long an update may be before it is shortened: "median" (3 times the running median of the
    norms of updates), another multiple of it above 1 (with less that median would shrink from round
    to round), or false; as long as it is unless given."""

    @field_validator("clusters", mode="before")
    @classmethod
    def _known_name_or_numbers(cls, value: Any) -> Any:
        if value is None or isinstance(value, str):
            if value is not None and not re.match(CLUSTERS_PATTERN, value):
                raise InvalidError(
                    f"= {value!r} is not one of own, labels, auto:K and auto:K:updates, K from 1 on"
                )
            return value
        numbers = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(numbers, Iterable):
            raise InvalidError(
                f"= {value!r} is neither a name nor the cluster of each client; for {value} "
                f'clusters that are found, write "auto:{value}"'
            )
        return tuple(int(n) if isinstance(n, float) and n.is_integer() else n for n in numbers)

    @property
    def parameters_kept(self) -> list[str] | None:
        """The patterns in `rows`; None for whole rows."""
        if self.rows == "all":
            return None
        return [pattern.strip() for pattern in self.rows.split(",")]

    @model_validator(mode="after")
    def _only_auto_changes(self) -> Self:
        if self.recluster_every is not None and not str(self.clusters).startswith("auto:"):
            raise InvalidError('recluster_every goes with clusters = "auto:K"; others never change')
        return self
