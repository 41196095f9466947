"""The kinds of numbers that settings are, each with its bounds."""

from __future__ import annotations

import numbers
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field


def _as_python(value: Any) -> Any:
    """NumPy's whole numbers as Python's; all else as it is."""
    return (
        int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value
    )


def _as_text(value: Any) -> Any:
    """A path as a text; all else as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


WholeNumber = Annotated[int, BeforeValidator(_as_python)]
Count = Annotated[WholeNumber, Field(ge=1)]
KeepCheckpoints = Annotated[WholeNumber, Field(ge=2, le=100)]  # of 126 that LMDB can hold
Seed = Annotated[WholeNumber, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, le=1e38)]  # beyond that lies no 32-bit number
AboveOne = Annotated[float, Field(gt=1)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowHalf = Annotated[float, Field(ge=0, lt=0.5)]
Decay = Annotated[float, Field(gt=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
PathText = Annotated[str, BeforeValidator(_as_text)]
AbsolutePath = Annotated[str, AfterValidator(lambda path: str(Path(path).expanduser().resolve()))]
