"""A virtual environment for each peer, since their requirements do not go together."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import ROOT

PLACE: Final = ROOT / ".bench"
_LONGEST: Final = 1800  # seconds that pip may take


class InstallationError(Exception):
    """pip could not install a peer; the text is pip's reason."""


@dataclass(frozen=True)
class Peer:
    """Another simulator.

    Attributes:
        name: In the table.
        requirement: For pip.
        packages: Whose versions the table states.
        entries: Name in the table → arguments of its contestant, before the workload's folder.
        environment: Variables it runs with.
    """

    name: str
    requirement: str
    packages: tuple[str, ...]
    entries: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, str]

    @property
    def python(self) -> Path:
        """Of its environment."""
        return PLACE / self.name / "bin" / "python"

    def install(self) -> None:
        """Makes the environment unless it is there already."""
        ready = PLACE / self.name / ".ready"
        if ready.exists() and ready.read_text() == self.requirement:
            return
        _run(sys.executable, "-m", "venv", str(PLACE / self.name))
        # torch first and by its exact version: a looser request would bring another build of it.
        # fedvarp's models, which everybody trains, check their arguments by pydantic.
        for requirement in (torch_requirement(), "pydantic>=2", self.requirement):
            _run(str(self.python), "-m", "pip", "install", "--quiet", requirement)
        ready.write_text(self.requirement)

    def versions(self) -> str:
        """What is installed, such as "flwr 1.41.0, ray 2.55.1"."""
        script = (
            "import sys; from importlib.metadata import version\n"
            "print(', '.join(f'{name} {version(name)}' for name in sys.argv[1:]))"
        )
        return _run(str(self.python), "-c", script, *self.packages, "torch").strip()


def torch_requirement() -> str:
    """The version everything else here is measured with."""
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in pinned if line.startswith("torch=="))


def _run(*command: str) -> str:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired as error:
        raise InstallationError(f"pip had not ended after {_LONGEST / 60:g} minutes.") from error
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.strip().splitlines() if "ERROR" in line]
        raise InstallationError(said[-1] if said else error.stderr.strip()) from error
    return ended.stdout
