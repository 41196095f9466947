"""Runs that belong together, and runs that cannot be compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedvarp.analysis.ablation_plots import plot_against
from fedvarp.analysis.comparison import compare
from fedvarp.analysis.curve_plots import plot
from fedvarp.analysis.groups import group_runs
from fedvarp.analysis.runs import read_runs
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from some_runs import write_run


def test_groups_come_in_the_papers_order_and_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    for algorithm in ("fedvarp", "mine", "fedavg"):
        for seed in (0, 1):
            run = tmp_path / f"{algorithm}{seed}"
            write_run(run, [0.1, 0.2], algorithm=algorithm, seed=seed)
    write_run(tmp_path / "other", [0.1, 0.2], algorithm="fedvarp", lr=0.03)
    groups = compare([tmp_path]).groups
    labels = [group.label for group in groups]
    assert labels == ["FedAvg", "FedVARP (lr=0.03)", "FedVARP (lr=0.1)", "mine"]
    assert [len(group.runs) for group in groups] == [2, 1, 2, 2]
    assert [group.client_rate for group in groups] == [0.1, 0.03, 0.1, 0.1]


def test_real_runs_make_one_group_for_each_algorithm(real_runs: Path) -> None:
    groups = compare([real_runs]).groups
    assert [group.label for group in groups] == ["FedAvg", "MIFA", "FedVARP"]
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1]] * 3
    assert all(group.rounds.tolist() == [0, 5, 10, 15, 20] for group in groups)


def test_a_seed_of_the_data_is_part_of_the_task(tmp_path: Path) -> None:
    # data.seed is 0 in both runs, and no copy of the run's seed: they share their federation.
    for seed in (0, 1):
        write_run(tmp_path / "same" / str(seed), [0.1], seed=seed, settings={"data": {"seed": 0}})
    assert len(compare([tmp_path / "same"]).groups) == 1
    for seed in (0, 1):
        other = {"data": {"seed": 7 + seed}}
        write_run(tmp_path / "other" / str(seed), [0.1], seed=seed, settings=other)
    with pytest.raises(RunError, match=r"data\.seed: 7 .*, 8 "):
        compare([tmp_path / "other"])


def test_what_is_ignored_keeps_nobody_apart_and_is_said(tmp_path: Path) -> None:
    for seed, setting in ((0, {}), (1, {"model": {"classes": 10}}), (2, {"model": {"width": 4}})):
        write_run(tmp_path / str(seed), [0.1, 0.2], seed=seed, settings=setting)
    with pytest.raises(RunError, match=r"model\.classes: not set"):
        compare([tmp_path])
    with pytest.raises(RunError, match=r"model\.width: not set"):
        compare([tmp_path], ignore=["model.classes"])
    for ignored in (["model.classes", "model.width"], ["model"]):
        found = compare([tmp_path], ignore=ignored)
        assert [run.seed for run in found.groups[0].runs] == [0, 1, 2]
        said = " ".join(found.notes)
        assert "model.classes (unset, 10)" in said
        assert "model.width (unset, 4)" in said
    assert "in which no runs differ" in " ".join(compare([tmp_path / "1"], ignore="model").notes)
    with pytest.warns(UserWarning, match=r"Ignored: model\.classes \(unset, 10\)"):
        plot([tmp_path / "0", tmp_path / "1"], ignore="model")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("seed", "seed cannot be ignored: .* different runs"),
        ("algorithm", "algorithm cannot be ignored: .* different runs"),
        ("rounds", "rounds need not be ignored"),
        ("lr", "'lr' cannot be ignored: no run has"),
    ],
)
def test_what_cannot_be_ignored_is_refused_by_name(tmp_path: Path, name: str, why: str) -> None:
    write_run(tmp_path / "one", [0.1, 0.2])
    with pytest.raises(RunError, match=why):
        compare([tmp_path], ignore=[name])


def test_what_is_ignored_is_still_known_where_it_says_when_a_run_ends(tmp_path: Path) -> None:
    settings = {"rounds": 100, "evaluation": {"target_accuracy": 0.2, "every": 10}}
    write_run(tmp_path / "one", [0.1, 0.2], settings=settings)
    target = compare([tmp_path], ignore=["evaluation"]).target
    assert target is not None
    assert target.value == 0.2


def test_who_differs_in_what_is_ignored_alone_is_told_to_ignore_less(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        write_run(tmp_path / str(lr), [0.1, 0.2], lr=lr)
    with pytest.raises(RunError, match="ignore less"):
        compare([tmp_path], ignore=["local_sgd.lr"])
    with pytest.raises(RunError, match=r"local_sgd\.lr is ignored"):
        plot_against(tmp_path, "local_sgd.lr", tmp_path / "x.png", ignore="local_sgd")


def test_different_tasks_are_refused_with_their_differences(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [0.1, 0.2], settings={"data": {"name": "digits"}})
    for seed in (0, 1):
        setting = {"data": {"name": "cifar10"}}
        write_run(tmp_path / f"two{seed}", [0.1, 0.2], seed=seed, settings=setting)
    with pytest.raises(RunError) as refusal:
        compare([tmp_path])
    assert f"data.name: digits ({tmp_path / 'one'}), cifar10 ({tmp_path / 'two0'} and 1 more)" in (
        str(refusal.value)
    )
    assert "--allow-different" in str(refusal.value)
    allowed = compare([tmp_path], allow_different=True)
    assert [group.label for group in allowed.groups] == [
        "FedVARP (name=cifar10)",
        "FedVARP (name=digits)",
    ]
    assert any("different tasks" in note for note in allowed.notes)


def test_of_many_differences_those_that_both_sides_set_come_first(tmp_path: Path) -> None:
    many = {"extra": {f"s{i}": i for i in range(20)}}
    write_run(tmp_path / "a", [0.1], settings=many | {"clients_per_round": 2})
    write_run(tmp_path / "b", [0.1], settings={"clients_per_round": 5})
    with pytest.raises(RunError) as refusal:
        compare([tmp_path])
    lines = str(refusal.value).splitlines()
    assert lines[1].startswith("  clients_per_round: 2 ")
    assert lines[-2] == "  and 13 more settings"  # 21 differences, 8 of them listed


def test_method_and_machine_may_differ(tmp_path: Path) -> None:
    int8 = {"server": {"lr": 0.5}, "table": {"codec": "int8"}}
    write_run(tmp_path / "a", [0.1, 0.2], settings=int8)
    elsewhere = {
        "recording": {"commit_every": 5},
        "table": {"codec": "float32", "where": "disk"},
        "trainer": {
            "name": "parallel",
            "workers": 2,
            "threads": 4,
            "compile": True,
            "exact": False,
            "auto": "parallel 0.1 s a round",
        },
    }
    write_run(tmp_path / "b", [0.1, 0.2], seed=1, settings=elsewhere)
    write_run(tmp_path / "c", [0.1, 0.2], seed=2, settings={"table": {"codec": "float32"}})
    groups = compare([tmp_path]).groups
    assert [[run.seed for run in group.runs] for group in groups] == [[0], [1, 2]]


def test_rates_of_clients_and_server_are_told_apart(tmp_path: Path) -> None:
    for server_lr in (0.5, 1.0):
        settings = {"server": {"lr": server_lr, "momentum": 0.9}}
        write_run(tmp_path / str(server_lr), [0.1, 0.2], settings=settings)
    write_run(tmp_path / "own", [0.1, 0.2], lr=0.3, settings=settings)
    assert [group.label for group in compare([tmp_path]).groups] == [
        "FedVARP (lr=0.1, server.lr=0.5)",
        "FedVARP (lr=0.1, server.lr=1)",
        "FedVARP (lr=0.3, server.lr=1)",
    ]


def test_another_initial_model_is_another_task(tmp_path: Path) -> None:
    write_run(tmp_path / "a", train_loss=[2.3, 1.0], algorithm="fedavg")
    write_run(tmp_path / "b", train_loss=[2.2, 1.0], algorithm="fedvarp")
    with pytest.raises(RunError, match=r"initial model with seed 0: 2\.3 .*, 2\.2 "):
        compare([tmp_path])
    write_run(tmp_path / "c", train_loss=[2.2001, 1.0], algorithm="mifa")
    compare([tmp_path / "b", tmp_path / "c"])  # another machine's rounding


def test_the_same_run_twice(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.1, 0.2])
    (tmp_path / "link").symlink_to(run)
    assert len(read_runs([run, tmp_path, tmp_path / "link"])[0]) == 1
    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(RunError, match="would count twice"):
        compare([tmp_path])


def test_rates_of_the_papers_grid_are_powers_of_ten(tmp_path: Path) -> None:
    for lr in (0.1, 10**-1.5):
        write_run(tmp_path / str(lr), [0.1, 0.2], lr=lr)
    labels = [row.group.label for row in compare([tmp_path]).rows]
    assert labels == ["FedVARP (lr=10^-1.5)", "FedVARP (lr=0.1)"]


def test_groups_need_a_common_round(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 1):
        run = write_run(tmp_path / str(seed), [0.1, 0.2], seed=seed)
        metrics = RunDirectory(run).metrics_file
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text(lines[0] if seed else lines[10])
        runs.append(run)
    (group,) = group_runs(read_runs(runs)[0])
    with pytest.raises(RunError, match="share no evaluated round"):
        _ = group.rounds


def sweep_over_epochs(folder: Path, said: object) -> Path:
    for epochs in (1, 5):
        sgd = {"local_sgd": {"lr": 0.1, "epochs": epochs}}
        write_run(folder / f"epochs{epochs}", [0.1, 0.2 * epochs], settings=sgd)
    (folder / "sweep.json").write_text(json.dumps(said))
    return folder


def test_what_one_sweep_tried_is_compared_without_asking(tmp_path: Path) -> None:
    tried = {"runs": [{"settings": {"local_sgd.epochs": "1"}}]}
    compared = compare([sweep_over_epochs(tmp_path / "sweep", tried)])
    assert [group.label for group in compared.groups] == [
        "FedVARP (epochs=1)",
        "FedVARP (epochs=5)",
    ]
    assert any("different tasks: local_sgd.epochs: 1 (" in note for note in compared.notes)


@pytest.mark.parametrize("said", [[], {"runs": 3}, {"runs": ["one"]}, {"runs": [{"seed": 0}]}])
def test_what_no_sweep_says_it_tried_is_refused(tmp_path: Path, said: object) -> None:
    with pytest.raises(RunError, match=r"local_sgd\.epochs: 1 \("):
        compare([sweep_over_epochs(tmp_path / "sweep", said)])


def test_a_sweep_beside_a_run_of_another_task_is_refused(tmp_path: Path) -> None:
    tried = {"runs": [{"settings": {"local_sgd.epochs": "1"}}]}
    sweep = sweep_over_epochs(tmp_path / "sweep", tried)
    another = write_run(tmp_path / "another", [0.1, 0.3], algorithm="fedavg")
    with pytest.raises(RunError, match=r"local_sgd\.epochs"):
        compare([sweep, another])


def test_rates_are_short_and_still_told_apart(tmp_path: Path) -> None:
    for place, rate in enumerate((0.1 / 3, 0.1)):
        write_run(tmp_path / "short" / f"{place}", [0.1, 0.2], lr=rate)
    for place, rate in enumerate((0.033333301, 0.033333302)):
        write_run(tmp_path / "alike" / f"{place}", [0.1, 0.2], lr=rate)
    short, alike = (compare([tmp_path / name]).groups for name in ("short", "alike"))
    assert [group.label for group in short] == ["FedVARP (lr=0.0333)", "FedVARP (lr=0.1)"]
    assert [group.label for group in alike] == [
        "FedVARP (lr=0.033333301)",
        "FedVARP (lr=0.033333302)",
    ]
