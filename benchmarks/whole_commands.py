"""Whole commands: how soon a run begins, and what a sweep gets done in an hour."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.timing import table, with_spread

LOOK_EVERY = 0.005  # seconds
FEDVARP = (sys.executable, "-m", "fedvarp.cli")


def first_round(arguments: Sequence[str]) -> float:
    """Seconds from `fedvarp run` to the end of its first round, in fresh processes."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        start = time.perf_counter()
        command = [*FEDVARP, "run", *arguments, "--out", str(out), "--quiet"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                while rounds_kept(out) < 2:  # the first record is the initial model's
                    if process.poll() is not None:
                        said = process.stderr.read() if process.stderr else ""
                        raise RuntimeError(f"fedvarp run ended before a round: {said.strip()}")
                    time.sleep(LOOK_EVERY)
                return time.perf_counter() - start
            finally:
                process.kill()


def rounds_kept(run: Path) -> int:
    """How many records a run has written."""
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def import_torch() -> float:
    """Seconds of a process that does nothing but import torch: no run can begin sooner."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def start_up(repeats: int = 7) -> str:
    pairs = [(import_torch(), first_round(["digits"])) for _ in range(repeats)]
    torch_alone, whole = zip(*pairs, strict=True)
    ratios = [ours / least for least, ours in pairs]
    rows = [
        ["`import torch`, and nothing else", with_spread(torch_alone, 2), "1.00", ""],
        ["`fedvarp run digits`", with_spread(whole, 2), with_spread(ratios, 2), "< 1.5 s"],
    ]
    header = ["", "to the end of the first round, s", "ratio to the first", "target"]
    return table("Start-up", header, rows)


SWEEPS: Mapping[str, Sequence[str]] = {
    "one after the other, two workers each": [
        *("--jobs", "1"),
        *("--set", 'trainer.name="parallel"'),
        *("--set", "trainer.workers=2"),
    ],
    "packed, a core each": ["--jobs", "2"],
}


def seconds_of_sweep(how: Sequence[str], preset: str, rounds: int, seeds: int) -> float:
    """A sweep from its first process to its last."""
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        ended = subprocess.run(
            [
                *(*FEDVARP, "sweep", preset, "--quiet", "--out", place),
                *("--algorithms", "fedavg", "--client-lrs", "0.03"),
                *("--seeds", ",".join(map(str, range(seeds)))),
                *("--set", f"rounds={rounds}", "--set", f"evaluation.every={rounds}"),
                *("--set", "evaluation.num_train_clients=0", *how),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(ended.stderr.strip().splitlines()[-1])
        return time.perf_counter() - start


def sweeps(
    preset: str = "cifar10-lenet5", rounds: int = 40, seeds: int = 4, repeats: int = 3
) -> str:
    """Four runs of W1, packed against one after the other; start-up and evaluation count too."""
    seconds: dict[str, list[float]] = {name: [] for name in SWEEPS}
    missing: dict[str, str] = {}
    for _ in range(repeats):
        for name, how in SWEEPS.items():
            if name not in missing:
                try:
                    seconds[name].append(seconds_of_sweep(how, preset, rounds, seeds))
                except RuntimeError as error:
                    missing[name] = str(error)
    serial = seconds["one after the other, two workers each"]
    rows = []
    for name, taken in seconds.items():
        if name in missing:
            rows.append([name, f"missing: {missing[name]}", "", ""])
            continue
        gain = (
            with_spread([a / b for a, b in zip(serial, taken, strict=False)], 2) if serial else ""
        )
        per_hour = with_spread([3600 * rounds * seeds / s for s in taken], 0)
        rows.append([name, per_hour, gain, "≥ 1.12" if name.startswith("packed") else ""])
    title = f"A sweep of {seeds} runs of `{preset}`, {rounds} rounds each, {_cores()} cores"
    return table(title, ["", "rounds an hour", "ratio to the first", "target"], rows)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
