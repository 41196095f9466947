"""The benchmarks run, on sizes too small to measure anything."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks import (
    attacks,
    cohorts,
    commits,
    local_step,
    restoring,
    server_update,
    sizing,
    whole_commands,
)
from benchmarks.peers import environments
from benchmarks.peers.__main__ import PEERS, entries, installed
from benchmarks.reproduction import rates, steadiness
from benchmarks.rounds import overhead, trainers, workloads
from benchmarks.rounds.contest import Result, Turns, contest_table
from benchmarks.rounds.contestant import Contestant, ContestantError, Entry
from benchmarks.rounds.process_tree import PeakMemory, pss_mb, tree
from benchmarks.rounds.with_plain_torch import train
from benchmarks.rounds.workload import Workload, load, make_model
from benchmarks.timing import beside_the_first, ratios, with_spread
from torch.nn.functional import cross_entropy

from fedvarp.models import LeNet5, initialised
from some_runs import write_run


@pytest.fixture(autouse=True)
def _no_data_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDVARP_DATA", raising=False)


@pytest.mark.parametrize(
    ("made", "shape", "dim"),
    [
        (workloads.w1, (250, 200, 3, 32, 32), 62_006),
        (workloads.w2, (1000, 50, 60), 610),
        (workloads.w3, (50, 640, 20), 63_952),
    ],
)
def test_workloads_have_their_sizes_and_survive_their_files(
    made: Callable[[], Workload], shape: tuple[int, ...], dim: int, tmp_path: Path
) -> None:
    workload = made()
    assert workload.x.shape == shape
    assert workload.y.shape == shape[:2]
    again = load(workload.save(tmp_path))
    assert again.settings == workload.settings
    assert torch.equal(again.x, workload.x)
    assert torch.equal(again.y, workload.y)
    model = make_model(again.settings)
    assert sum(p.numel() for p in model.parameters()) == dim
    x, y = again.client(3)
    assert model(x[:2]).isfinite().all()
    ours_x, ours_y = workloads.federated(workload).client(3)
    assert torch.equal(x, ours_x)
    assert torch.equal(y, ours_y)


def test_pixels_are_normalised_by_channel() -> None:
    workload = workloads.w1(num_clients=10, per_client=20)
    pixel, mean, std = float(workload.x[4, 0, 2, 5, 6]), 0.4465, 0.2616  # blue
    assert float(workload.client(4)[0][0, 2, 5, 6]) == pytest.approx((pixel / 255 - mean) / std)


def test_the_bare_training_is_sgd() -> None:
    # One full batch: w - lr * gradient, whatever the order of the examples.
    workload = workloads.w2(num_clients=3)
    settings = dataclasses.replace(workload.settings, batch_size=50)
    workload = dataclasses.replace(workload, settings=settings)
    model, again = make_model(settings), make_model(settings)
    train(model, workload, client=1)
    x, y = workload.client(1)
    gradients = torch.autograd.grad(cross_entropy(again(x), y), list(again.parameters()))
    for new, old, gradient in zip(model.parameters(), again.parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old - settings.lr * gradient)


def test_lenet5_as_usually_written_gives_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workloads.w1(num_clients=10, per_client=20)
    x, _ = workload.client(3)
    ours = make_model(workload.settings)
    (variable, value), *_ = trainers.as_usual(Entry([])).environment.items()
    monkeypatch.setenv(variable, value)
    usual = make_model(workload.settings)
    assert "forward" in vars(usual)
    assert "forward" not in vars(ours)
    assert torch.equal(ours(x), usual(x))


def test_on_w1_the_fastest_peer_also_runs_the_usual_lenet5(tmp_path: Path) -> None:
    of_w1, of_w2 = (entries(PEERS, tmp_path, workload) for workload in ("W1", "W2"))
    usual = {name: one for name, one in of_w1.items() if name not in of_w2}
    ((name, entry),) = usual.items()
    same = of_w2[name.removesuffix(trainers.USUAL)]
    assert entry == trainers.as_usual(same)
    assert entry.environment != same.environment
    assert (entry.arguments, entry.python) == (same.arguments, same.python)


@pytest.mark.slow
def test_rounds_of_every_trainer_are_timed_and_missing_ones_named() -> None:
    broken = Entry(["-c", "raise SystemExit('no such trainer')"])
    text = trainers.contest(
        workloads.w2(num_clients=30),
        [trainers.PLAIN, trainers.TWO_BARE, trainers.SEQUENTIAL],
        [trainers.PLAIN, "one that is not there"],
        {trainers.SEQUENTIAL: "a target"},
        Turns(starts=1, warm_up=1, turns=2, at_once=2),
        lambda folder: {"one that is not there": broken},
    )
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if "|" in line}
    assert "| 1.000 (1.000 to 1.000) |" in lines[trainers.PLAIN]
    assert "ratio to one that is not there" not in text
    assert "| a target |" in lines[trainers.SEQUENTIAL]
    assert "missing" not in lines[trainers.TWO_BARE]
    assert "missing: no such trainer" in lines["one that is not there"]


def test_a_contestant_that_dies_leaves_its_last_words_and_no_process() -> None:
    script = (
        "from benchmarks.rounds.contestant import Pace\n"
        "pace = Pace(); pace(); print('out of luck', flush=True); raise SystemExit(1)\n"
    )
    with Contestant(Entry(["-c", script])) as contestant:
        contestant.announce(5)
        with pytest.raises(ContestantError, match="out of luck"):
            contestant.run(1)
        pid = contestant.pid
    assert not Path(f"/proc/{pid}").exists()
    assert tree(pid) == {pid}


def test_a_contestant_runs_as_many_rounds_as_it_is_granted() -> None:
    script = (
        "import time\n"
        "from benchmarks.rounds.contestant import Pace\n"
        "pace = Pace(); pace()\n"
        "for number in range(pace.rounds): time.sleep(0.01 * number); pace()\n"
    )
    with Contestant(Entry(["-c", script])) as contestant:
        contestant.announce(5)
        assert len(contestant.run(1)) == 1
        seconds = contestant.run(4)
    assert len(seconds) == 4
    assert all(taken >= 0.01 * number for number, taken in enumerate(seconds, start=1))


def test_memory_is_that_of_all_descendants() -> None:
    held = "import time; held = bytearray(50_000_000); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert child.pid in tree(os.getpid())
            assert pss_mb(os.getpid()) > pss_mb(child.pid) > 50
            with PeakMemory(child.pid, every=0.001) as memory:
                time.sleep(0.1)
            assert memory.mb > 50
        finally:
            child.kill()


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environments, "PLACE", tmp_path)
    script = "raise SystemExit('ERROR: No matching distribution')"
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "python", script)))
    there, lines = installed([dataclasses.replace(PEERS[1], name="some-peer")])
    assert there == []
    assert lines == ["- some-peer: not installed. ERROR: No matching distribution"]


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{script}\n")
    path.chmod(0o755)
    return path


def test_ratios_are_taken_turn_by_turn() -> None:
    seconds = {"base": [2.0, 4.0, 2.0], "ours": [1.0, 4.0, 3.0]}
    assert ratios(seconds["ours"], seconds["base"]) == [0.5, 1.0, 1.5]
    assert beside_the_first(seconds, 0, per=2) == [
        ["base", "1000 ms", "1.00 (1.00 to 1.00)"],
        ["ours", "1500 ms", "1.00 (0.75 to 1.25)"],
    ]
    assert with_spread([0.5, 1.0, 1.5], 2) == "1.00 (0.75 to 1.25)"
    assert with_spread([0.25], 1, factor=10) == "2.5"


def test_the_table_subtracts_a_usual_round_from_the_start_up() -> None:
    result = Result(seconds=[1.0, 2.0, 3.0], first_round=[7.0], peak_mb=[500.0])
    text = contest_table("Title", {"base": result}, ["base"], {})
    assert "| base | 2.000 (1.500 to 2.500) | 1.000 (1.000 to 1.000) |  | 5.0 | 500 |" in text


def test_the_table_shows_the_quickest_in_a_unit_that_tells() -> None:
    quick, slow = (Result([s], first_round=[5.0], peak_mb=[1.0]) for s in (0.004, 0.5))
    text = contest_table("Title", {"quick": quick, "slow": slow}, ["slow", "quick"], {})
    assert "round, ms" in text
    assert "| quick | 4.00 | 0.008 | 1.000 |" in text


def test_overhead_is_what_training_leaves_of_a_round(tmp_path: Path) -> None:
    workload = workloads.w2(num_clients=30)
    training, beside = overhead.seconds_beside_training(workload, "fedvarp", 4, 2, tmp_path / "run")
    assert len(training) == len(beside) == 3  # the last one, evaluated, is left out
    assert all(seconds > 0 for seconds in [*training, *beside])
    assert overhead.means([1.0] * 15 + [17.0] + [3.0] * 20) == [2.0, 3.0]
    assert "W2" in overhead.table_of(
        [overhead.row(workload, "fedavg", "tiny", "", 3, 1, committed=False)]
    )


@pytest.mark.slow
def test_whole_commands_are_timed() -> None:
    assert "fedvarp run digits" in whole_commands.start_up(repeats=1)
    text = whole_commands.sweeps("digits", rounds=2, seeds=2, repeats=1)
    assert "packed" in text


@pytest.mark.slow
def test_a_run_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="no-such-preset"):
        whole_commands.first_round(["no-such-preset"])


def test_steadiness_is_counted_seed_by_seed_at_common_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", [0.1, 0.5, 0.3, 0.5], algorithm="fedavg", seed=0)
    write_run(tmp_path / "a1", [0.1, 0.2, 0.3, 0.4], algorithm="fedavg", seed=1)
    write_run(tmp_path / "v0", [0.1, 0.4, 0.6], seed=0)  # ends a round earlier
    text = steadiness.text([str(tmp_path), "--targets", "0.3,0.5", "--smooth", "2"])
    lines = [line.split() for line in text.splitlines()]
    (speed_ups, fedvarp), (fedavg,) = (
        [line for line in lines if line[:1] == [name]] for name in ("FedVARP", "FedAvg")
    )
    # Of seed 0: 0.3 at round 10 of both, its means of two .25 .5 and .3; 0.5 at 20 and 10, by the
    # means at 20 and in 30 rounds never.
    assert speed_ups[1:] == ["1.00", "0.50", "0.50", ">", "1.50"]
    # At rounds 10 and 20: −0.1 and +0.3.
    assert fedvarp[1:] == ["0", "25.0", "100", "+10.0", "50"]
    assert fedavg[1:3] == ["0,", "1"]
    assert "67, –" in text


def test_rates_are_chosen_by_the_mean_over_seeds_of_the_last_fifth(tmp_path: Path) -> None:
    late = {0.1: [0.5, 0.2], 1.0: [0.4, 0.4], 10.0: [0.1, 0.1]}  # by seed
    for lr, of_seeds in late.items():
        for seed, accuracy in enumerate(of_seeds):
            write_run(
                tmp_path / f"v{lr}-{seed}",
                [0.0, 0.1, lr / 20],
                algorithm="mifa",
                lr=lr,
                seed=seed,
                validation_accuracy=[0.9, accuracy, accuracy],
            )
    write_run(tmp_path / "one", [0.1, 0.2], algorithm="fedavg", validation_accuracy=[0.1, 0.2])
    for lr, accuracy in ((1.0, 0.3), (100.0, 0.2)):  # a grid of its own
        write_run(
            tmp_path / f"own{lr}",
            [0.1, 0.2],
            algorithm="fedvarp",
            lr=lr,
            validation_accuracy=[0.9, accuracy],
        )
    text = rates.text([str(tmp_path)])
    assert "fedavg" not in text  # it has one rate alone
    assert [line.split() for line in text.splitlines() if line.startswith("fedvarp  ")] == [
        ["fedvarp", "–", "0.3*", "–", "0.2"]
    ]
    assert "fedvarp: the best rate, 1, lies at the edge of the grid" in text
    assert "Try 0.01 too" in text
    assert "mifa: the best rate" not in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("mifa  ")]
    assert row == ["mifa", "0.35", "0.4*", "0.1", "–"]
    of_first = rates.text([str(tmp_path), "--seeds", "0"]).splitlines()
    assert [line.split() for line in of_first if line.startswith("mifa  ")] == [
        ["mifa", "0.5*", "0.4", "0.1", "–"]
    ]
    (by_test,) = [
        line.split()
        for line in rates.text([str(tmp_path), "--select-on", "test"]).splitlines()
        if line.startswith("mifa  ")
    ]
    assert by_test == ["mifa", "0.005", "0.05", "0.5*", "–"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (["--seeds", "7"], "no algorithm has runs of these seeds with more than one rate"),
        (["--select-on", "valdation"], "invalid choice: 'valdation'"),
        ([], "2 runs of mifa have the rate 0.1 and seed 0"),
    ],
)
def test_rates_are_not_chosen_by_runs_that_do_not_tell(
    told: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, lr in (("short", 0.1), ("long", 0.1), ("other", 1.0)):
        write_run(tmp_path / name, [0.1, 0.2], algorithm="mifa", lr=lr, seed=0)
    with pytest.raises(SystemExit):
        rates.text([str(tmp_path), *told])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("name", sizing.KINDS)
def test_a_cell_of_the_sizes_is_measured_and_what_does_not_fit_is_not(name: str) -> None:
    kind = sizing.KINDS[name]
    found = sizing.cell(kind, num_clients=1000, dim=1000, passes=2)
    assert found.seconds > 0
    assert (found.disk_mb > 0) == kind.on_disk
    assert kind.fits(1000, 1000)
    assert not kind.fits(1000, 10**9)


def test_the_clients_that_lie_are_otherwise_those_of_the_preset() -> None:
    """Those whose clients add to their gradients, beside the product's own runs."""
    found = attacks.accuracies(2, seed=0, rounds=25, algorithms=["scaffold", "feddyn"])
    assert len(found) == 2 * 2 * len(attacks.ATTACKS)
    for name in ("scaffold", "feddyn"):  # which adds a proximal term, too
        result = attacks.experiment_of(name, "false", 2, 0).task(progress=False)
        records = dataclasses.replace(result, rounds=25).run().metrics
        expected = [r["test_accuracy"] for r in records if r["round"] in (5, 10, 15, 20, 25)]
        assert found[f"{name}|false|none"] == pytest.approx(sum(expected) / 5, abs=1e-6)
        assert found[f"{name}|false|10 % × −10"] != found[f"{name}|false|none"]


def test_bad_replies_of_every_kind_cost_nothing_but_themselves() -> None:
    """The campaign of `python -m benchmarks.faults replies`, in short."""
    from benchmarks.faults import bad_replies, replies

    log_from = logging.getLogger("flwr").level
    counts = replies.campaign(count=480, rounds=20)
    assert logging.getLogger("flwr").level == log_from  # for the tests that read the log
    assert counts.thrown.keys() == bad_replies.BROKEN.keys() | bad_replies.PLAUSIBLE.keys()
    assert len(counts.thrown) > 90
    assert (counts.foreign, counts.ended) == ([], [])
    assert (counts.used, counts.lost) == ({}, {})
    assert counts.faults == 0


def test_bad_replies_come_in_the_same_order_again_and_a_name_may_be_held_by_a_liar() -> None:
    from benchmarks.faults import bad_replies, replies

    def attacked(seed: int) -> tuple[replies.Counts, replies.Federation]:
        plausible = sorted(bad_replies.PLAUSIBLE, key=lambda kind: kind != "another's name")
        kinds = list(bad_replies.BROKEN), plausible  # somebody's name is taken in the first round
        federation = replies.Federation(seed, kinds, replies.Counts())
        replies.run("SCAFFOLD", federation, rounds=3)
        return federation.counts, federation

    not_used = 0
    for seed in range(4):
        (counts, federation), (again, same) = attacked(seed), attacked(seed)
        assert (counts.thrown, counts.furthest) == (again.thrown, again.furthest)
        assert federation.sent == same.sent
        assert (counts.foreign, counts.ended, counts.lost) == ([], [], {})
        assert counts.held.total() == 3 * 20
        assert counts.thrown.total() > 30
        not_used += counts.held[True]
    assert not_used > 4  # also in the round after, by whoever has the name


def test_a_local_step_is_the_same_in_every_way_to_take_it() -> None:
    net, x = initialised(LeNet5, seed=0), torch.randn(4, 3, 32, 32)
    for forward in (
        local_step.six_channels,
        local_step.padded_inputs(4),
        local_step.padded_inputs(8),
        local_step.as_products,
    ):
        assert torch.allclose(forward(net, x), net(x), atol=1e-5)
    assert "without oneDNN" in local_step.measure(repeats=1)


def test_cohorts_tell_time_and_memory() -> None:
    found = cohorts.rounds("LeNet-5", 2, 1, 10, "fedvarp", repeats=1)
    assert found["seconds"] > 0 < found["peak_mb"]


def test_restoring_tells_what_either_place_of_rows_takes() -> None:
    found = restoring.measure(num_clients=50, dim=8, repeats=1)
    assert "50 rows" in found
    assert "memory" in found
    assert "disk" in found


def test_commits_beside_training_and_the_server_of_a_small_round() -> None:
    assert "beside the next training" in commits.beside_training(width=2, rounds=5, training=0.01)
    assert "FedVARP" in server_update.small(rounds=2)
