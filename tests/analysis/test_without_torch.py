"""Who only looks at runs does not wait for torch."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from some_runs import write_run

COMMAND = """
from fedvarp.cli.app import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    assert not end.code
"""
ROOMS = ("fedvarp.analysis", "fedvarp.runs")
MODULES = [
    module.name
    for room in ROOMS
    for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}.")
]


def torch_is_loaded_by(code: str, *arguments: str) -> bool:
    """In a Python of its own, as this one has loaded torch for other tests."""
    code = f"import sys\n{code}\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] == "True"


def test_every_module_of_analysis_and_runs() -> None:
    assert "fedvarp.analysis.report.page" in MODULES
    assert "fedvarp.runs.directory" in MODULES
    imports = "\n".join(f"import {module}" for module in MODULES)
    # Lazily imported names are there once they are asked for.
    asks = "\n".join(f"{room}.{name}" for room in ROOMS for name in dir(sys.modules[room]))
    assert not torch_is_loaded_by(f"{imports}\n{asks}")
    assert torch_is_loaded_by("import fedvarp\nfedvarp.FedVARP")  # the count itself is right


@pytest.mark.parametrize(
    "words", [["compare"], ["report", "--out", "page.html"], ["plot", "--out", "figure.svg"]]
)
def test_commands_that_look_at_runs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run", [0.1, 0.2])
    assert not torch_is_loaded_by(COMMAND, *words, str(run))
