"""The command line as its users meet it: results, messages, exit codes, and nothing lost."""

from __future__ import annotations

import functools
import http.server
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock
import pytest
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.data import download
from fedvarp.experiments.build import build
from fedvarp.experiments.cost import Estimate
from fedvarp.experiments.files import load_settings, preset_names
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.identity import MAY_CHANGE
from waiting import lines_of, wait_for

SHORT = ("--set", "rounds=6", "--set", "evaluation.every=2")
KEPT = ("metrics.jsonl", "model.safetensors")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def fedvarp(*arguments: str | Path) -> Ended:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return Ended(result.exit_code, result.stdout, result.stderr)


def bytes_of(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in KEPT]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    assert fedvarp("run", "digits", *SHORT, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


# run


def test_a_run_is_named_after_what_it_is() -> None:
    ended = fedvarp("run", "digits", *SHORT, "--set", "algorithm=mifa", "--set", "client_lr=0.05")
    run = Path("runs/digits-mifa-lr0.05-seed0")
    assert ended.code == 0
    assert ended.out.startswith(f"{run}: 6 rounds, test_accuracy 0.")
    assert "kept in" in ended.err
    assert RunDirectory(run).metrics()[-1]["round"] == 6


def test_runs_that_chose_their_trainer_compare_like_any_others(tmp_path: Path) -> None:
    for algorithm in ("fedavg", "fedvarp"):
        set_ = [f"--set=algorithm={algorithm}", "--set=rounds=3", "--set=evaluation.every=1"]
        assert fedvarp("run", "digits", *set_, "--out", tmp_path / algorithm).code == 0
        assert "auto" in RunDirectory(tmp_path / algorithm).settings()["trainer"]
    ended = fedvarp("compare", tmp_path / "fedavg", tmp_path / "fedvarp")
    assert ended.code == 0, ended.err


def test_the_recorded_config_runs_again_to_the_same_bits(finished: Path) -> None:
    """config.toml is complete: it needs neither the preset nor the options it was made with."""
    again = fedvarp("run", finished / "config.toml", "--out", "again")
    assert again.code == 0
    assert bytes_of(Path("again")) == bytes_of(finished)
    assert tomllib.loads((finished / "config.toml").read_text())["rounds"] == 6


def test_the_command_line_is_the_python_interface(finished: Path) -> None:
    settings = load_settings("digits", ["rounds=6", "evaluation.every=2"])
    build(settings).run("python")
    assert bytes_of(Path("python")) == bytes_of(finished)


def test_json_is_all_that_is_printed_on_standard_output(tmp_path: Path) -> None:
    ended = fedvarp("run", "digits", *SHORT, "--json", "--out", "run")
    figures = json.loads(ended.out)
    records = RunDirectory("run").metrics()
    assert figures["final"]["test_accuracy"] == records[-1]["test_accuracy"]
    assert figures["best_test_accuracy"] == max(
        record["test_accuracy"] for record in records if "test_accuracy" in record
    )
    assert figures["bytes_up"] == 6 * 2 * 650 * 4  # rounds × clients × parameters × float32
    assert (figures["stopped"], figures["rounds"], figures["run"]) == ("rounds", 6, "run")


def test_a_run_without_evaluations_is_told_without_figures() -> None:
    blind = (
        "--set",
        "evaluation.num_train_clients=0",
        "--set",
        "evaluation.num_test_examples=0",
        "--out",
        "run",
    )
    told, objective = fedvarp("run", "digits", *SHORT, *blind).out.splitlines()
    assert told == "run: 6 rounds"
    assert objective.startswith("It optimised the mean loss over clients, each counted once")


def test_quiet_prints_nothing_but_errors() -> None:
    done = fedvarp("run", "digits", *SHORT, "--quiet", "--out", "run")
    assert done == Ended(0, "", "")
    assert fedvarp("resume", "run", "--quiet") == Ended(0, "", "")
    assert "holds a run already" in fedvarp("run", "digits", "--quiet", "--out", "run").err


def test_a_dry_run_tells_the_cost_and_writes_nothing(tmp_path: Path) -> None:
    ended = fedvarp("run", "digits", "--dry-run", "--set", "algorithm=cluster_fedvarp")
    assert ended.code == 0
    assert "650 parameters" in ended.out
    assert "45 rows, one for each cluster" in ended.out
    settings, _, _ = ended.out.partition("Data  ")
    assert (
        tomllib.loads(settings) == load_settings("digits", ["algorithm=cluster_fedvarp"]).as_toml()
    )
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_rounds_to_the_next_unit() -> None:
    figures = Estimate(
        objective="the mean loss over clients, each counted once",
        dim=249_999,
        rows=0,
        whose_rows="client",
        table_bytes={},
        bytes_down=999_999,
        bytes_up=999_400,
        step_seconds=0.9999,
        evaluation_seconds=59.97,
        round_seconds=0.004,
        total_seconds=3599.9,
    )
    told = "\n".join(figures.lines(build(load_settings("digits"))))
    assert "Objective the mean loss over clients, each counted once" in told
    assert "249,999 parameters, 1 MB" in told
    assert "1 MB down, 999 kB up" in told
    assert "about 1 h 00 min: 300 rounds of 4 ms and 61 evaluations of 1 min 00 s" in told
    assert "took 1 s just now" in told


@pytest.mark.parametrize(
    ("algorithm", "rows", "down", "up"),
    [("fedavg", 0, 1, 1), ("fedvarp", 100, 1, 1), ("scaffold", 100, 2, 2)],
)
def test_a_dry_run_foretells_what_the_run_then_takes(
    algorithm: str, rows: int, down: int, up: int
) -> None:
    """Rows of 650 numbers: 4 bytes each, or 1 and a scale of 4 bytes for each of 3 blocks."""
    choice = ("--set", f"algorithm={algorithm}", "--json")
    foretold = json.loads(fedvarp("run", "digits", *choice, "--dry-run").out)
    assert foretold["rows"] == rows
    if rows:
        assert foretold["table_bytes"]["float32"] == rows * 650 * 4 + 650 * 8
        assert foretold["table_bytes"]["int8"] == rows * (650 + 3 * 4) + 650 * 8
    assert (foretold["bytes_down"], foretold["bytes_up"]) == (down * 2 * 2600, up * 2 * 2600)
    assert foretold["total_seconds"] > 300 * foretold["round_seconds"] > 0
    taken = json.loads(fedvarp("run", "digits", *SHORT, *choice).out)
    assert taken["bytes_down"] == 6 * foretold["bytes_down"]
    assert taken["bytes_up"] == 6 * foretold["bytes_up"]


# Wrong things, tried


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "digits", "--set", "alogrithm=fedavg"), "did you mean algorithm?"),
        (("run", "digits", "--set", "clients_per_round=200"), "between 1 and 100"),
        (("run", "digitz"), "Did you mean digits?"),
        (("presets", "digitz"), "Did you mean digits?"),
        (("resume", "nowhere"), "There is no run in nowhere"),
    ],
)
def test_wrong_usage_ends_in_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    ended = fedvarp(*arguments)
    assert ended.code == 2
    assert sentence in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_traceback_shows_where_an_error_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVARP_TRACEBACK", "0")  # put back at the end, whatever --traceback sets
    ended = fedvarp("--traceback", "resume", "nowhere")
    assert "Traceback" in ended.err
    assert "RunError" in ended.err


def test_a_mistake_of_the_program_is_owned_up_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("fedvarp.experiments.files.load_settings", broken)
    ended = fedvarp("run", "digits")
    assert ended.code == 1
    assert "mistake in fedvarp" in ended.err


@pytest.mark.parametrize("where", [(), ("--data-dir", "nowhere"), ("--data-dir", ".")])
@pytest.mark.parametrize("command", ["run", pytest.param("sweep", marks=pytest.mark.slow)])
def test_missing_data_names_the_three_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, where: tuple[str, ...]
) -> None:
    monkeypatch.delenv("FEDVARP_DATA", raising=False)
    ended = fedvarp(command, "cifar10-lenet5", *where)
    assert ended.code == 1
    assert "--data-dir" in ended.err
    assert "FEDVARP_DATA" in ended.err
    assert "fedvarp data cifar10" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_never_overwritten(finished: Path) -> None:
    before = bytes_of(finished)
    ended = fedvarp("run", "digits", "--out", finished)
    assert ended.code == 2
    assert f"fedvarp resume {finished}" in ended.err
    assert bytes_of(finished) == before


def test_a_full_disk_costs_no_whole_round(finished: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the end of the disk."""
    run = tmp_path / "full"
    limited = subprocess.run(
        [sys.executable, "-m", "fedvarp.cli", "run", "digits", *SHORT, "--out", str(run)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert limited.returncode == 1
    assert "Is the disk full?" in limited.stderr
    assert f"fedvarp resume {run}" in limited.stderr
    assert "Traceback" not in limited.stderr
    assert fedvarp("resume", run).code == 0
    assert bytes_of(run) == bytes_of(finished)


def test_a_damaged_checkpoint_is_not_said_to_go_on(finished: Path) -> None:
    checkpoint = finished / "checkpoint" / "data.mdb"
    os.truncate(checkpoint, checkpoint.stat().st_size // 2 // 4096 * 4096)
    ended = fedvarp("resume", finished, "--set", "rounds=8")
    assert ended.code == 1
    assert "restore the folder from a backup" in ended.err
    assert "delete" not in ended.err
    assert "goes on" not in ended.err


def test_a_run_at_work_elsewhere_is_not_said_to_have_lost_nothing(finished: Path) -> None:
    with filelock.FileLock(finished / "checkpoint" / "lock"):
        ended = fedvarp("resume", finished, "--set", "rounds=8")
    assert ended.code == 1
    assert "in use by another process" in ended.err
    assert "goes on" not in ended.err


# resume


def test_resuming_a_finished_run_says_so(finished: Path) -> None:
    before = bytes_of(finished)
    ended = fedvarp("resume", finished)
    assert ended.code == 0
    assert "is finished" in ended.err
    assert "--set rounds=" in ended.err
    assert bytes_of(finished) == before


def test_a_longer_run_remembers_how_long(finished: Path) -> None:
    assert fedvarp("resume", finished, "--set", "rounds=8").code == 0
    assert RunDirectory(finished).metrics()[-1]["round"] == 8
    assert RunDirectory(finished).settings()["rounds"] == 8
    assert "is finished" in fedvarp("resume", finished).err
    shorter = fedvarp("resume", finished, "--set", "rounds=7")
    assert shorter.code == 2
    assert "8 rounds already" in shorter.err


def test_a_resumed_run_cannot_become_another(finished: Path) -> None:
    ended = fedvarp("resume", finished, "--set", "client_lr=0.2")
    assert ended.code == 2
    assert "local_sgd.lr = 0.1 (now 0.2)" in ended.err
    assert RunDirectory(finished).settings()["local_sgd"]["lr"] == 0.1


def test_settings_edited_by_hand_are_noticed(finished: Path) -> None:
    config = finished / "config.toml"
    config.write_text(config.read_text().replace("\nlr = 0.1\n", "\nlr = 0.2\n"))
    files = (config, finished / "metrics.jsonl")
    before = [file.read_bytes() for file in files]
    ended = fedvarp("resume", finished, "--set", "rounds=8")
    assert ended.code == 2
    assert "was made with local_sgd.lr = 0.1 (now 0.2): config.toml was edited since" in ended.err
    assert [file.read_bytes() for file in files] == before


def test_a_trace_edited_by_hand_is_noticed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client\n0,1\n1,2\n1,3\n")
    replayed = f'{{name = "trace", file = "{trace}", after_end = "repeat"}}'
    by_trace = ("--set", f"sampling.availability={replayed}", "--set", "clients_per_round=1")
    assert fedvarp("run", "digits", *SHORT, *by_trace, "--out", "run").code == 0
    before = trace.read_text()
    trace.write_text(before + "1,4\n")
    ended = fedvarp("resume", "run", "--set", "rounds=8")
    assert ended.code == 2
    assert "sampler.availability.clients = 2 entries" in ended.err
    assert "edited since, or a file that it names" in ended.err
    trace.write_text(before)
    assert fedvarp("resume", "run", "--set", "rounds=8").code == 0


def test_a_trainer_that_is_given_does_not_keep_the_reason_for_another(finished: Path) -> None:
    before = RunDirectory(finished).settings()
    assert before["trainer"]["auto"]  # six rounds are enough to choose
    other = "parallel" if before["trainer"]["name"] == "sequential" else "sequential"
    longer = ("--set", "rounds=8")
    assert fedvarp("resume", finished, *longer, "--set", f"trainer={other}").code == 0
    assert RunDirectory(finished).settings()["trainer"]["name"] == other
    assert "auto" not in RunDirectory(finished).settings()["trainer"]


def test_a_run_that_lost_its_model_is_not_taken_for_finished(finished: Path) -> None:
    before = bytes_of(finished)
    (finished / "model.safetensors").unlink()
    assert "is finished" not in fedvarp("resume", finished).err
    assert bytes_of(finished) == before


def test_a_model_older_than_the_metrics_is_exported_again(finished: Path) -> None:
    """So it is after a kill between the last round and the export of a run that was prolonged."""
    model = finished / "model.safetensors"
    earlier = model.read_bytes()
    assert fedvarp("resume", finished, "--set", "rounds=8").code == 0
    before = bytes_of(finished)
    for content in (earlier, b"damaged"):
        model.write_bytes(content)
        assert "is finished" not in fedvarp("resume", finished).err
        assert bytes_of(finished) == before


def test_a_copy_of_a_finished_run_is_finished_whatever_its_times(finished: Path) -> None:
    shutil.rmtree(finished / "checkpoint")  # which may be deleted to save space
    os.utime(finished / "model.safetensors", (0, 0))
    ended = fedvarp("resume", finished)
    assert ended.code == 0
    assert "is finished" in ended.err


def test_a_target_ends_a_run_and_counts_as_finished() -> None:
    early = ("--set", "evaluation.target_accuracy=0.05", "--json", "--out", "run")
    assert json.loads(fedvarp("run", "digits", *SHORT, *early).out)["stopped"] == "target"
    assert "is finished" in fedvarp("resume", "run").err
    further = fedvarp("resume", "run", "--set", "evaluation.target_accuracy=none", "--json")
    assert json.loads(further.out)["rounds"] == 6


def test_a_run_that_met_its_target_says_how_to_train_longer() -> None:
    assert (
        fedvarp(
            "run", "digits", *SHORT, "--set=evaluation.target_accuracy=0.05", "--out", "run"
        ).code
        == 0
    )
    longer = fedvarp("resume", "run", "--set", "rounds=8")
    assert longer.code == 0
    advice = "fedvarp resume run --set rounds=8 --set evaluation.target_accuracy=none"
    assert longer.err.strip().endswith(advice)
    assert fedvarp(*advice.split()[1:]).code == 0
    assert RunDirectory("run").rounds_done == 8


def test_runs_of_python_programs_are_left_to_them(tmp_path: Path) -> None:
    RunDirectory("run").create({"algorithm": "fedvarp", "rounds": 3})
    ended = fedvarp("resume", "run")
    assert ended.code == 2
    assert "Python program" in ended.err


LONG = ("--set", "rounds=200", "--set", "evaluation.every=50")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    run = tmp_path_factory.mktemp("calm") / "run"
    assert fedvarp("run", "digits", *LONG, "--out", run).code == 0
    return bytes_of(run)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_goes_on_to_the_same_bits(
    tmp_path: Path, calm: list[bytes], number: int
) -> None:
    """Rounds take 5 ms or more: the run is far from its end when the signal comes."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedvarp.cli", "run", "digits", *LONG, "--out", str(run), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: lines_of(run / "metrics.jsonl") > 20)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert f"fedvarp resume {run}" in err
    assert "resume=True" not in err  # that is for programs
    assert json.loads(out)["stopped"] == "interrupted"
    assert json.loads(out)["rounds"] < 200
    assert fedvarp("resume", run).code == 0
    assert bytes_of(run) == calm


# presets and data


def test_presets_are_listed_and_printed() -> None:
    listed = fedvarp("presets").out.splitlines()
    assert [line.split()[0] for line in listed] == preset_names()
    assert {"cifar10-lenet5", "cifar10-resnet18", "shakespeare-gru", "digits"} <= set(
        preset_names()
    )
    page = fedvarp("presets", "cifar10-lenet5").out
    assert page.startswith("# Figure 1 (a, d)")
    Path("mine.toml").write_text(page)
    assert load_settings("mine.toml").data == load_settings("cifar10-lenet5").data


def test_data_that_is_there_is_verified(real_data: Path) -> None:
    ended = fedvarp("data", "cifar10", "--data-dir", real_data)
    assert ended.code == 0
    assert "complete and verified" in ended.err
    assert "50,000 examples" in ended.err


def test_data_needs_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDVARP_DATA", raising=False)
    ended = fedvarp("data", "cifar10")
    assert ended.code == 1
    assert "--data-dir DIR" in ended.err
    assert fedvarp("data", "mnist", "--data-dir", ".").code == 2


@pytest.fixture
def gutenberg(real_data: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server on this machine with the zip archive of the real text."""
    archive = tmp_path / "served" / "1994-01-100.zip"
    archive.parent.mkdir()
    text = next(
        p for p in (real_data / "shakespeare").rglob("*") if p.name in ("pg100.txt", "100.txt")
    )
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.write(text, "100.txt")
    handler = functools.partial(QuietHandler, directory=archive.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{archive.name}", archive
        server.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_data_is_downloaded_once_and_verified(
    gutenberg: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, archive = gutenberg
    monkeypatch.setattr(download, "SHAKESPEARE_URL", url)
    first = fedvarp("data", "shakespeare", "--data-dir", "data")
    assert first.code == 0
    assert "downloading" in first.err
    assert f"({archive.stat().st_size:,} bytes)" in first.err
    assert "1,089 clients" in first.err
    second = fedvarp("data", "shakespeare", "--data-dir", "data")
    assert "complete and verified" in second.err
    assert "downloading" not in second.err


@pytest.mark.parametrize("preset", ["cifar10-lenet5", "shakespeare-gru-light"])
def test_a_round_of_a_preset_on_its_real_data(preset: str, real_data: Path) -> None:
    cheap = (
        *("rounds=1", "local_sgd.steps=2"),
        *("evaluation.num_train_clients=2", "evaluation.num_test_examples=100"),
    )
    overrides = [part for text in cheap for part in ("--set", text)]
    ended = fedvarp("run", preset, *overrides, "--data-dir", real_data, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["rounds"] == 1


# The program itself


def test_resume_helps_with_what_it_takes() -> None:
    """Its help names all that may change, and gives no example that it refuses."""
    told = " ".join(fedvarp("resume", "--help").out.split())
    assert all(name.partition(".")[0] in told for name in MAY_CHANGE)
    assert "local_sgd" not in told


def test_the_installed_program_answers() -> None:
    program = Path(sys.executable).with_name("fedvarp")
    shown = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60)
    for command in ("run", "resume", "presets", "data", "sweep", "compare", "plot", "report"):
        assert command in shown.stdout
    assert os.environ.get("FEDVARP_TRACEBACK") is None
