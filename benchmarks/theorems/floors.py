"""Where FedAvg, FedVARP and ClusterFedVARP stop, against what the theorems say it depends on.

`python -m benchmarks.theorems.floors docs/figures/floors.png` measures, prints the table and
draws it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.theorems.noisy_quadratics import NoisyQuadratics
from benchmarks.timing import table
from fedvarp.analysis.styles import LOOKS
from fedvarp.theory import Problem, conditions, sampling_variance

NUM_CLIENTS, NUM_CLUSTERS, NUM_STEPS = 20, 5, 1
COHORTS = (2, 4, 8, 16)
HETEROGENEITY = (0.1, 1.0, 10.0)  # σ_g²; for ClusterFedVARP σ_K², with σ_g² = 10 throughout
NOISE = 2e-4  # σ²/M: small beside the smallest partial participation error
ROUNDS, BURN_IN, COPIES = 2000, 600, 8
MARKERS = dict(zip(COHORTS, "osD^", strict=True))


@dataclass(frozen=True)
class Floor:
    """The mean of ‖∇f(w)‖² after the burn-in."""

    algorithm: str
    clients_per_round: int
    heterogeneity: float
    measured: float

    @property
    def x(self) -> float:
        """(N − M) / (M (N − 1)) times σ_g², or σ_K² for ClusterFedVARP."""
        return sampling_variance(NUM_CLIENTS, self.clients_per_round) * self.heterogeneity


def client_lr() -> float:
    """The largest that Theorem 2 allows for the smallest cohort; the same for all points."""
    problem = Problem(
        num_clients=NUM_CLIENTS,
        clients_per_round=min(COHORTS),
        num_steps=NUM_STEPS,
        smoothness=1.0,
    )
    of_fedvarp = conditions("fedvarp", problem, client_lr=1.0)
    return min(condition.largest_client_lr for condition in of_fedvarp)


def measure_floor(algorithm: str, cohort: int, heterogeneity: float) -> Floor:
    """One point of the figure. FedAvg and FedVARP know no clusters, so all clients are in one."""
    clustered = algorithm == "cluster_fedvarp"
    problem = NoisyQuadratics.with_constants(
        NUM_CLIENTS,
        sigma2=NOISE * cohort,
        sigma_g2=max(HETEROGENEITY) if clustered else heterogeneity,
        sigma_K2=heterogeneity,
        num_clusters=NUM_CLUSTERS if clustered else 1,
        copies=COPIES,
    )
    path = problem.run(
        algorithm,
        problem.optimum,
        clients_per_round=cohort,
        num_steps=NUM_STEPS,
        client_lr=client_lr(),
        server_lr=1.0,
        rounds=ROUNDS,
        seed=0,
    )
    measured = float(problem.gradient_norms2(path[BURN_IN:]).mean())
    return Floor(algorithm, cohort, heterogeneity, measured)


def measure_floors(algorithm: str) -> list[Floor]:
    """All points of one algorithm."""
    return [measure_floor(algorithm, M, value) for M in COHORTS for value in HETEROGENEITY]


def slope(floors: list[Floor]) -> float:
    """Of the line through the points, both axes logarithmic."""
    x, y = (np.log([getattr(floor, name) for floor in floors]) for name in ("x", "measured"))
    return float(np.polyfit(x, y, 1)[0])


def predicted(x: float) -> float:
    """FedAvg's floor with all curvatures L = 1: η̃ (x + σ²/M) / (2 − η̃)."""
    step = client_lr() * NUM_STEPS
    return step * (x + NOISE) / (2 - step)


def draw(floors: list[Floor], file: Path) -> None:
    """Two panels: against σ_g² for FedAvg and FedVARP, against σ_K² for ClusterFedVARP."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.3), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    xs = np.geomspace(min(floor.x for floor in floors) / 1.5, max(f.x for f in floors) * 1.5, 60)
    for panel, symbol, algorithms in (
        (axes[0], "g", ("fedavg", "fedvarp")),
        (axes[1], "K", ("cluster_fedvarp",)),
    ):
        label = "FedAvg's floor, worked out" if symbol == "g" else "the same line"
        panel.plot(xs, [predicted(x) for x in xs], color="#999999", linewidth=1, label=label)
        for algorithm in algorithms:
            mine = [floor for floor in floors if floor.algorithm == algorithm]
            look = LOOKS[algorithm]
            for floor in mine:
                marker = MARKERS[floor.clients_per_round]
                panel.plot(floor.x, floor.measured, marker, color=look.colour, markersize=5)
            steep = f"{look.label}: slope {slope(mine):.2f}"
            panel.plot([], [], "o", color=look.colour, label=steep)
        panel.set(xscale="log", yscale="log")
        panel.set_xlabel(rf"$(N-M)\,/\,(M(N-1))\cdot\sigma_{symbol}^2$")
        panel.grid(color="#DDDDDD", linewidth=0.5)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    for cohort, marker in MARKERS.items():
        axes[1].plot([], [], marker, color="#777777", label=f"M = {cohort}")
    axes[0].set_ylabel(r"measured floor of $\|\nabla f(w)\|^2$")
    for panel in axes:
        panel.legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(file, dpi=150)


def main(file: Path) -> None:
    """Measures, prints and draws."""
    torch.set_num_threads(1)
    algorithms = ("fedavg", "fedvarp", "cluster_fedvarp")
    floors = {algorithm: measure_floors(algorithm) for algorithm in algorithms}
    header = ["M", "σ_g² (σ_K²)", "x", *(LOOKS[a].label for a in algorithms)]
    rows = [
        [str(points[0].clients_per_round), f"{points[0].heterogeneity:g}", f"{points[0].x:.2g}"]
        + [f"{point.measured:.2e}" for point in points]
        for points in zip(*floors.values(), strict=True)
    ]
    print(table("Floors of ‖∇f(w)‖²", header, rows))
    draw([floor for points in floors.values() for floor in points], file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
