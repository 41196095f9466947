"""What is released: a wheel that is made of the sdist, installed where there is nothing, and tried.

Its dependencies are those of the environment that runs the tests, laid beside it: torch alone would
take longer than all the rest. The package itself is the installed one, not the one of this folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedvarp.version import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedvarp"
OF_THE_SOURCES = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    plain = {name: value for name, value in os.environ.items() if name not in OF_THE_SOURCES}
    done = subprocess.run(command, cwd=cwd, env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist and of the wheel made of it."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    (wheel,) = built.glob("*.whl")
    commands = folder / "bin"
    run(commands / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return commands


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob(f"fedvarp-{__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    of_the_package = {
        str(path.relative_to(ROOT / "src"))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == of_the_package
    assert {"fedvarp/py.typed", "fedvarp/experiments/presets/digits.toml"} <= inside


def test_the_sdist_can_be_tested_and_built_again(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {Path(*Path(name).parts[1:]) for name in archive.getnames()}
    for needed in ("pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/test_docs.py"):
        assert Path(needed) in inside
    assert not [path for path in inside if path.parts and path.parts[0] in (".venv", "build")]


def test_the_installed_command_runs_resumes_and_reports(installed: Path, tmp_path: Path) -> None:
    fedvarp = installed / "fedvarp"
    where = run(installed / "python", "-c", "import fedvarp; print(fedvarp.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.parent))
    assert __version__ in run(fedvarp, "--version", cwd=tmp_path)
    assert "cifar10-lenet5" in run(fedvarp, "presets", cwd=tmp_path)
    run(fedvarp, "run", "digits", "--set", "rounds=4", "--out", "runs/varp", cwd=tmp_path)
    run(fedvarp, "resume", "runs/varp", "--set", "rounds=6", cwd=tmp_path)
    run(fedvarp, "report", "runs/varp", "--out", "report.html", cwd=tmp_path)
    assert "<html" in (tmp_path / "report.html").read_text()
