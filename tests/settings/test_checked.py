"""Bounds of a signature hold for whoever calls the function from Python."""

from __future__ import annotations

import inspect
from typing import Literal

import pytest

from fedvarp.settings.bounds import Count, Positive
from fedvarp.settings.checked import checked


@checked
def rate(
    steps: Count, *, scale: Positive = 1.0, every: Count | None = None, kind: Literal["a"] = "a"
) -> float:
    """Divides."""
    return scale / steps


def test_right_arguments_arrive_as_they_were_given() -> None:
    assert rate(4, scale=2) == 0.5
    assert rate(steps=2, every=None) == 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps = 0 .* at least 1"),
        ({"steps": 1.5}, "steps = 1.5 .* whole number"),
        ({"steps": "3"}, "steps = '3' .* whole number"),
        ({"steps": 1, "scale": float("nan")}, "scale = nan .* finite"),
        ({"steps": 1, "every": 0}, "every = 0 .* at least 1"),
        ({"steps": 1, "kind": "b"}, "kind = 'b' .* 'a'"),
    ],
)
def test_wrong_arguments_are_named_with_their_bound(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"rate: {message}"):
        rate(**wrong)  # type: ignore[arg-type]


def test_arguments_given_by_position_are_named_too() -> None:
    with pytest.raises(ValueError, match="steps = -1"):
        rate(-1)


def test_the_signature_is_still_there_to_be_read() -> None:
    assert list(inspect.signature(rate).parameters) == ["steps", "scale", "every", "kind"]
    assert rate.__doc__ == "Divides."
