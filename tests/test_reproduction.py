"""What pages of results show is what their commands give on the metrics in the repository."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from benchmarks import ROOT
from benchmarks.reproduction.page import PAGES, commands, renewed, run, scripts

from fedvarp.analysis import read_runs
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.sweep_grid import Grid

TEXTS = {page.name: page.read_text() for page in PAGES}
TEXT = TEXTS["reproduction-tables.md"]
EVERYTHING = "\n".join(TEXTS.values())


@pytest.fixture(autouse=True)
def in_the_projects_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def values_of(option: str, words: Sequence[str]) -> list[str]:
    return [value for name, value in itertools.pairwise(words) if name == option]


@pytest.mark.parametrize("name", TEXTS)
def test_tables_are_those_of_the_metrics(name: str) -> None:
    assert commands(TEXTS[name], "compare")
    assert renewed(TEXTS[name]) == TEXTS[name]


@pytest.mark.parametrize("words", [typed.words for typed in commands(EVERYTHING, "plot")])
def test_figures_are_those_of_the_metrics(words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    from matplotlib.image import imread

    (file,) = values_of("--out", words)
    assert f"]({Path(file).relative_to('docs')})" in EVERYTHING, "no page shows it"
    again = tmp_path / "again.png"
    run([str(again) if word == file else word for word in words])
    before, now = imread(file), imread(again)
    assert before.shape == now.shape
    # Another version of matplotlib may set its letters a hair differently.
    assert float(np.abs(before - now).mean()) < 0.01


@pytest.mark.parametrize(
    "words", [typed.words for name in ("run", "sweep") for typed in commands(EVERYTHING, name)]
)
def test_commands_that_train_are_accepted(words: list[str]) -> None:
    load_settings(words[1], values_of("--set", words))
    if words[0] == "sweep":
        (algorithms,) = values_of("--algorithms", words) or ["fedavg"]
        (rates,) = values_of("--client-lrs", words) or ["0.1"]
        (seeds,) = values_of("--seeds", words) or ["0"]
        Grid.parse(algorithms, rates, seeds)


RESNET = Path("reproduction/cifar10-resnet18.jsonl")
ROWS = {
    "fedavg": "FedAvg",
    **{
        f"{name}-{kind}": f"{label}, {where}"
        for name, label in {
            "fedvarp": "FedVARP",
            "cluster_fedvarp": "ClusterFedVARP",
            "mifa": "MIFA",
            "scaffold": "SCAFFOLD",
        }.items()
        for kind, where in {
            "memory-float32": "rows in memory",
            "disk-float32": "rows on disk",
            "memory-int8": "int8 in memory",
        }.items()
    },
}


@pytest.mark.parametrize(("run", "row"), ROWS.items())
def test_the_table_of_resnet_18_is_that_of_the_metrics(run: str, row: str) -> None:
    (line,) = [line for line in TEXT.splitlines() if line.startswith(f"| {row} |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    (found,) = [one for one in read_runs([RESNET])[0] if one.path.name == run]
    last = found.metrics[-1]
    assert last["round"] == 6
    assert cells[3] == f"{last['server_bytes'] / 1e9:.2f}"
    assert cells[5].removesuffix(", the same bits") == f"{last['train_loss']:.4f}"


def test_every_figure_and_every_run_is_used() -> None:
    plots = commands(EVERYTHING, "plot")
    drawn = {file for typed in plots for file in values_of("--out", typed.words)}
    assert len(drawn) >= 6
    shown = plots + commands(EVERYTHING, "compare") + scripts(EVERYTHING)
    named = [word for typed in shown for word in typed.all_words]
    kept = {str(file) for file in Path("reproduction").rglob("*.*")}
    assert kept
    assert kept - set(named) == {str(RESNET)}  # whose table is checked above
