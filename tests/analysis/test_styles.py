"""What algorithms look like."""

from __future__ import annotations

from fedvarp.analysis.styles import LOOKS, look_of


def test_every_algorithm_looks_different() -> None:
    papers = list(LOOKS.values())[:5]  # stand together in every figure of the paper
    assert len({look.colour for look in papers}) == 5
    assert len({look.dash for look in papers}) == 5
    assert len({look.marker for look in papers}) == 5
    assert len({(look.colour, look.marker) for look in LOOKS.values()}) == len(LOOKS)
    assert not {look.colour for look in list(LOOKS.values())[5:]} & {one.colour for one in papers}
    assert look_of("mine") == look_of("mine")
    assert look_of("mine").colour not in {look.colour for look in papers}
    assert len({look_of("fedvarp", variant).dash for variant in range(5)}) == 5
