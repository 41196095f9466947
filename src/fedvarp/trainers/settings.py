"""The settings of who trains the clients. No torch."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator

from fedvarp.settings.bounds import Count
from fedvarp.settings.names import Registry
from fedvarp.settings.section import Section

TRAINERS: Final = Registry(
    "trainer",
    {
        name: f"fedvarp.trainers.makers:make_{name}"
        for name in ("auto", "sequential", "parallel", "vectorised", "ray")
    },
)
"""How each trainer is made from `TrainerParts`; ``TRAINERS["mine"] = make_mine`` adds one."""


class Trainer(Section):
    """Who runs Algorithm 1 for the clients of a round, and on what."""

    name: Annotated[str, AfterValidator(TRAINERS.check)] = "sequential"
    """"sequential" is the plain loop; "parallel" has processes and the same bits; "vectorised"
    suits small dense models and GPUs; "ray" goes to the cluster at RAY_ADDRESS, or to one of its
    own; "auto" tries on the first rounds which is fastest here."""
    workers: Count | None = None
    """Processes of "parallel", actors of "ray"; one for each core unless given."""
    compile: bool = False
    """Whether gradients are compiled: takes a while at first, and then may be faster."""
    exact: bool = True
    """Whether auto and parallel keep to the plain loop's figures bit for bit; if not, auto may
    choose "vectorised", as it always may on a GPU, and the workers of parallel share the clients
    that are left over."""
    device: str = "cpu"
    """Where to train, such as "cuda"; no GPU has run it so far."""
    threads: Count | None = None
    """Of torch while the run lasts, evaluations included; 1 unless given, the fastest for small
    models. Sums of floats depend on it, so it is a setting like any other."""
    auto: str | None = None
    """Why auto chose the trainer it did; the run writes it here."""
