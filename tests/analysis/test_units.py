"""Numbers as people read them."""

from __future__ import annotations

from fedvarp.analysis.units import in_bytes, in_seconds


def test_units_do_not_round_into_nonsense() -> None:
    assert in_bytes(0) == "0 B"
    assert in_bytes(999_600) == "1 MB"
    assert in_seconds(59.97) == "1 min 00 s"
    assert in_seconds(3599.6) == "1 h 00 min"
