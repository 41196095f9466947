"""Sweeps as tasks of a real Ray cluster on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import resume
from fedvarp.experiments.sweep_on_ray import RayEngine, _train


@pytest.fixture(scope="module")
def ray_settings() -> Iterator[dict[str, str]]:
    """The environment of a Ray that stays on this machine and leaves nothing behind on it."""
    pytest.importorskip("ray")
    # Not below tmp_path: the names of Ray's sockets would become too long for the system.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        yield {
            **os.environ,
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's way to say: 127.0.0.1 only
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": uuid.uuid4().hex,  # or Ray would write one into the home directory
        }


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def sweep(config: Path, tmp_path: Path, ray_settings: dict[str, str]) -> Iterator[Start]:
    """Starts sweeps, each in a process of its own: Ray leaves threads behind where it was."""
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> subprocess.Popen[str]:
        grid = ["--client-lrs", "0.1", "--engine", "ray", "--jobs", "2", *more]
        place = ["--out", str(tmp_path / "out")]
        process = subprocess.Popen(
            [sys.executable, "-m", "fedvarp.cli", "sweep", str(config), *grid, *place],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ray_settings,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_without_ray_the_way_to_install_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "fedvarp\[ray\]"'):
        next(RayEngine(None, 1).run([tmp_path], lambda: False))


def test_a_machine_that_does_not_see_the_directory_says_so(tmp_path: Path) -> None:
    assert "that all machines of the cluster share" in str(_train(str(tmp_path / "far"), None))


@pytest.mark.slow
def test_ray_gives_the_same_bits_and_a_failure_stops_no_other(
    config: Path, tmp_path: Path, sweep: Start
) -> None:
    out = tmp_path / "out"
    process = sweep("--algorithms", "fedavg,cluster_fedvarp,fedvarp", "--json")
    text, err = process.communicate(timeout=180)
    assert process.returncode == 1, err
    assert "cluster_fedvarp-lr0.1-seed0 failed: The clusters of clients" in err
    assert [run["status"] for run in json.loads(text)["runs"]] == ["finished", "failed", "finished"]
    for algorithm in ("fedavg", "fedvarp"):
        settings = load_settings(config, [f"algorithm={algorithm}"])
        build(settings).run(tmp_path / algorithm)
        for name in ("metrics.jsonl", "model.safetensors"):
            alone, swept = tmp_path / algorithm / name, out / settings.run_name / name
            assert alone.read_bytes() == swept.read_bytes()


@pytest.fixture
def cluster(ray_settings: dict[str, str]) -> Iterator[str]:
    """A cluster that is up before the sweep and stays after it."""
    port = free_port()
    options = ["--head", "--block", "--num-cpus=2", f"--port={port}", "--include-dashboard=false"]
    head = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ray_settings,
    )
    try:
        assert head.stdout is not None
        assert any("Ray runtime started" in line for line in head.stdout), "Ray did not start"
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.communicate(timeout=60)


@pytest.mark.slow
def test_a_cluster_that_is_up_is_used(sweep: Start, cluster: str) -> None:
    process = sweep("--address", cluster, "--algorithms", "fedavg,mifa", "--json")
    text, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert [run["status"] for run in json.loads(text)["runs"]] == ["finished", "finished"]


@pytest.mark.slow
def test_ctrl_c_finishes_the_rounds_of_tasks(tmp_path: Path, sweep: Start) -> None:
    endless = ("--set", "rounds=1000000", "--set", "evaluation.every=1000000")
    process = sweep("--algorithms", "fedavg,mifa", *endless)
    runs = [tmp_path / "out" / f"small-{name}-lr0.1-seed0" for name in ("fedavg", "mifa")]
    deadline = time.monotonic() + 120
    while any(rounds(run) < 5 for run in runs):
        assert time.monotonic() < deadline, "waited in vain"
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    text, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "failed" not in err
    assert "2 of 2 runs are not finished" in text
    for run in runs:
        assert (run / "model.safetensors").exists()  # exported after the last round: not killed
        resumed = resume(run, [f"rounds={rounds(run) + 1}"], progress=False)
        assert resumed.stopped == "rounds"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rounds(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") - 1 if file.exists() else -1
