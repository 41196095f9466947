"""How runs ended, against a setting in which they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedvarp.analysis.ablation_plots import ablation_figure, plot_against, read_lines
from fedvarp.runs.errors import RunError
from some_runs import write_run

pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")


def panel(runs: Path, setting: str, **options: Any) -> Any:
    """The only panel of the figure."""
    lines = read_lines([runs], setting, allow_different=False)
    (axes,) = ablation_figure(lines, setting, **options).axes
    return axes


def heights(line: Any) -> NDArray[np.float64]:
    return np.asarray(line.get_ydata(), dtype=np.float64)


@pytest.fixture
def ablation(tmp_path: Path) -> Path:
    """FedVARP ends at 40 + M % and FedAvg at 20 + M %, one % more or less by the seed."""
    for base, algorithm in ((0.4, "fedvarp"), (0.2, "fedavg")):
        for M in (1, 5, 20):
            for seed in (0, 1):
                end = base + M / 100 + (0.01 if seed else -0.01)
                write_run(
                    tmp_path / f"runs/{algorithm}-{M}-{seed}",
                    [0.1, 0.1, end - 0.1, end + 0.1],
                    algorithm=algorithm,
                    seed=seed,
                    settings={"clients_per_round": M},
                )
    return tmp_path / "runs"


def test_means_and_bars(ablation: Path) -> None:
    axes = panel(ablation, "clients_per_round", smooth=2)
    curves = {bars.get_label(): bars for bars in axes.containers}
    assert list(curves) == ["FedAvg", "FedVARP"]
    for label, base in (("FedAvg", 20), ("FedVARP", 40)):
        line, _, (bars,) = curves[label]
        assert line.get_xdata().tolist() == [1, 5, 20]
        np.testing.assert_allclose(heights(line), [base + M for M in (1, 5, 20)])
        for segment, M in zip(bars.get_segments(), (1, 5, 20), strict=True):
            np.testing.assert_allclose(segment[:, 1], [base + M - 1, base + M + 1])
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "5", "20"]
    assert axes.get_xlabel() == "Clients per round M"


def test_bars_reach_from_the_lowest_to_the_highest_seed(tmp_path: Path) -> None:
    for M in (1, 5):
        for seed, end in enumerate((0.2, 0.2, 0.5)):
            write_run(
                tmp_path / f"runs/{M}-{seed}",
                [0.1, end],
                seed=seed,
                settings={"clients_per_round": M},
            )
    ((line, _, (bars,)),) = panel(tmp_path / "runs", "clients_per_round").containers
    np.testing.assert_allclose(heights(line), [30, 30])
    for segment in bars.get_segments():
        np.testing.assert_allclose(segment[:, 1], [20, 50])


@pytest.mark.parametrize(("log_loss", "scale"), [(True, "log"), (False, "linear")])
def test_losses_on_a_logarithmic_axis(tmp_path: Path, log_loss: bool, scale: str) -> None:
    for M in (1, 5):
        write_run(tmp_path / f"runs/{M}", train_loss=[3, M], settings={"clients_per_round": M})
    assert panel(tmp_path / "runs", "clients_per_round", log_loss=log_loss).get_yscale() == scale


def test_the_same_runs_give_the_same_file(ablation: Path, tmp_path: Path) -> None:
    one, other = (
        plot_against([ablation], "clients_per_round", tmp_path / name)
        for name in ("one.svg", "other.svg")
    )
    assert one.read_bytes() == other.read_bytes()


def test_names_with_a_number_stand_by_it_and_runs_without_the_setting_across(
    tmp_path: Path,
) -> None:
    for K, end in ((2, 0.3), (10, 0.4), (1, 0.2)):
        write_run(
            tmp_path / f"runs/{K}",
            [0.1, end],
            algorithm="cluster_fedvarp",
            settings={"table": {"clusters": f"auto:{K}:labels" if K == 10 else f"auto:{K}"}},
        )
    write_run(tmp_path / "runs/all", [0.1, 0.5], algorithm="fedvarp")
    axes = panel(tmp_path / "runs", "table.clusters")
    (bars,) = axes.containers
    assert bars[0].get_xdata().tolist() == [1, 2, 10]
    np.testing.assert_allclose(heights(bars[0]), [20, 30, 40])
    (across,) = [line for line in axes.lines if line.get_label() == "FedVARP"]
    assert heights(across).tolist() == [50, 50]


def test_names_without_a_number_stand_in_a_row(
    tmp_path: Path,
) -> None:
    for codec in ("int8", "float32", "bfloat16"):
        write_run(tmp_path / f"runs/{codec}", [0.1, 0.2], settings={"table": {"codec": codec}})
    axes = panel(tmp_path / "runs", "table.codec")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["bfloat16", "float32", "int8"]
    assert axes.get_xscale() == "linear"


def test_the_setting_may_change_the_loss_at_the_start(tmp_path: Path) -> None:
    for alpha, start in ((0.1, 2.5), (1.0, 2.0)):
        for algorithm in ("fedavg", "fedvarp"):
            write_run(
                tmp_path / f"runs/{alpha}-{algorithm}",
                train_loss=[start, 1.0],
                algorithm=algorithm,
                settings={"data": {"alpha": alpha}},
            )
    panel(tmp_path / "runs", "data.alpha")
    other_model = write_run(
        tmp_path / "runs/odd", train_loss=[9.0, 1.0], lr=0.3, settings={"data": {"alpha": 1.0}}
    )
    with pytest.raises(RunError, match="initial model"):
        panel(other_model.parent, "data.alpha")


def test_differences_that_go_with_the_setting_are_refused_too(tmp_path: Path) -> None:
    for M in (1, 5):
        settings = {"clients_per_round": M, "data": {"alpha": M / 10}}
        write_run(tmp_path / f"runs/{M}", [0.1, 0.2], settings=settings)
    with pytest.raises(RunError, match=r"data\.alpha: 0\.1 .* 0\.5"):
        panel(tmp_path / "runs", "clients_per_round")


def test_a_line_across_is_told_from_the_one_through_the_points(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/none", [0.1, 0.2])
    write_run(tmp_path / "runs/one", [0.1, 0.3], settings={"evaluation": {"num_test_examples": 9}})
    axes = panel(tmp_path / "runs", "evaluation.num_test_examples")
    handles, labels = axes.get_legend_handles_labels()
    assert labels == ["FedVARP, num_test_examples unset", "FedVARP"]
    across, (through, *_) = handles
    assert across.get_linestyle() != through.get_linestyle()
    assert axes.get_xlabel() == "evaluation.num_test_examples"


def test_other_differences_are_refused_unless_allowed(ablation: Path, tmp_path: Path) -> None:
    write_run(
        ablation / "odd",
        [0.1, 0.2, 0.3, 0.4],
        seed=3,
        settings={"clients_per_round": 5, "data": {"alpha": 0.1}},
    )
    words = [ablation], "clients_per_round", tmp_path / "f.png"
    with pytest.raises(RunError, match=r"data\.alpha"):
        plot_against(*words)
    plot_against(*words, allow_different=True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epochs", "No run has a setting epochs; in config.toml they differ in algorithm, clients"),
        ("local_sgd.lr", r"All these runs have the same local_sgd\.lr"),
    ],
)
def test_a_setting_that_tells_nothing(
    ablation: Path, tmp_path: Path, setting: str, message: str
) -> None:
    with pytest.raises(RunError, match=message):
        plot_against([ablation], setting, tmp_path / "f.png")


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((True, False), ["False", "True"]),
        (([2, 1], [1, 2]), ["[1, 2]", "[2, 1]"]),
        ((3, "auto"), ["3", "auto"]),
        ((float("inf"), 1.0), ["1", "inf"]),
        ((list(range(99)), "equal"), ["[0, 1, 2, 3, 4, 5, 6, 7…", "equal"]),
    ],
)
def test_values_of_any_kind_stand_in_a_row(
    tmp_path: Path, values: tuple[Any, Any], ticks: list[str]
) -> None:
    for i, value in enumerate(values):
        write_run(
            tmp_path / f"runs/{i}", [0.1, 0.2 + i / 10], settings={"sampling": {"objective": value}}
        )
    axes = panel(tmp_path / "runs", "sampling.objective")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ticks
    (bars,) = axes.containers
    assert bars[0].get_xdata().tolist() == [0, 1]
    ends = dict(zip(map(str, values), (20, 30), strict=True))
    np.testing.assert_allclose(heights(bars[0]), [ends[text] for text in sorted(ends)])


def test_another_number_of_seeds_makes_no_other_line(tmp_path: Path) -> None:
    """data.seed = 0 is no more than the seed where only seed 0 ran, but not where seed 1 did."""
    for M, seed in ((1, 0), (5, 0), (5, 1)):
        write_run(
            tmp_path / f"runs/{M}-{seed}",
            [0.1, 0.2],
            seed=seed,
            settings={"clients_per_round": M, "data": {"seed": 0}},
        )
    (bars,) = panel(tmp_path / "runs", "clients_per_round").containers
    assert bars[0].get_xdata().tolist() == [1, 5]


def test_lines_with_one_value_each_can_be_told_apart(tmp_path: Path) -> None:
    for M, lr in ((1, 0.1), (5, 0.3)):
        write_run(tmp_path / f"runs/{M}", [0.1, 0.2], lr=lr, settings={"clients_per_round": M})
    lines = panel(tmp_path / "runs", "clients_per_round").containers
    assert [line.get_label() for line in lines] == ["FedVARP (lr=0.1)", "FedVARP (lr=0.3)"]


@pytest.mark.parametrize("setting", ["seed", "algorithm"])
def test_seeds_and_algorithms_are_no_axis(ablation: Path, setting: str) -> None:
    with pytest.raises(RunError, match=f"another setting than {setting}"):
        panel(ablation, setting)


def test_a_mean_of_more_evaluations_than_there_are(ablation: Path) -> None:
    panel(ablation, "clients_per_round", smooth=4)
    with pytest.raises(RunError, match=r"has 4 evaluations up to round 30, too few .* last 5"):
        panel(ablation, "clients_per_round", smooth=5)


def test_runs_that_measured_nothing_in_common(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [0.1, 0.2], settings={"clients_per_round": 1})
    write_run(tmp_path / "two", train_loss=[2, 1], settings={"clients_per_round": 2})
    with pytest.raises(RunError, match="no loss and no accuracy in common"):
        panel(tmp_path, "clients_per_round")


def test_the_caption_speaks_of_diverged_runs(ablation: Path) -> None:
    def caption() -> str:
        drawn = panel(ablation, "clients_per_round").figure
        return " ".join(drawn.get_supxlabel().split())  # wrapped to the figure

    assert "diverged" not in caption()
    write_run(ablation / "bad", [0.1, None], settings={"clients_per_round": 50})
    assert caption().endswith("No point where a seed diverged")
