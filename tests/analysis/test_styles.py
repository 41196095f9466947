"""What algorithms look like."""

from __future__ import annotations

from fedvarp.analysis.styles import LOOKS, look_of


def test_every_algorithm_looks_different() -> None:
    assert len({look.colour for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.dash for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.marker for look in LOOKS.values()}) == len(LOOKS)
    assert look_of("mine") == look_of("mine")
    assert look_of("mine").colour not in {look.colour for look in LOOKS.values()}
    assert len({look_of("fedvarp", variant).dash for variant in range(5)}) == 5
