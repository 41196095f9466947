"""Who does not train does not wait for torch: what gets loaded by what."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import fedvarp

HEAVY = ("torch", "sklearn", "scipy", "matplotlib", "plotly", "ray", "flwr", "tensorboard")


def loaded_by(code: str, *arguments: str) -> tuple[set[str], str]:
    """The heavy modules that are loaded once the code has run, and what it said."""
    code = (
        f"import sys\n{code}\nprint('LOADED', *(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *said, last = done.stdout.splitlines()
    return set(last.split()[1:]), "\n".join([*said, done.stderr])


COMMAND = """
import fedvarp, fedvarp.cli.app
try:
    fedvarp.cli.app.app(sys.argv[1:])
except SystemExit:
    pass
"""


def test_importing_the_package_and_its_command_line_loads_nothing_heavy() -> None:
    assert loaded_by("import fedvarp, fedvarp.cli.app")[0] == set()
    # The count itself is right: a public name that needs torch loads it.
    assert loaded_by("from fedvarp import FedVARP")[0] == {"torch"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--help", "sweep"),
        ("run --help", "--dry-run"),
        ("presets", "digits"),
        ("run no-such-preset", "no-such-preset"),
        ("run digits --set rounds=none", "rounds"),
        ("run digits --out .", "holds a run already"),
        ("resume no-such-run", "There is no run"),
        ("compare no-such-run", "no-such-run"),
        ("plot no-such-run --out a.png", "no-such-run"),
        ("sweep digits --algorithms no-such", "no-such"),
    ],
)
def test_commands_that_train_nothing_and_errors_load_nothing_heavy(
    arguments: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text("rounds = 1\n")  # a run, as far as it was looked at
    heavy, said = loaded_by(COMMAND, *arguments.split())
    assert says in said
    assert heavy == set()


def test_the_digits_are_found_after_importing_the_package_alone_and_without_sklearn() -> None:
    assert importlib.util.find_spec("sklearn") is not None
    heavy, said = loaded_by("import fedvarp; print(fedvarp.data.digits().num_clients)")
    assert said.strip() == "100"
    assert heavy == {"torch"}


def test_every_public_name_is_there_and_listed() -> None:
    for name in fedvarp.__all__:
        assert name in dir(fedvarp)
        assert getattr(fedvarp, name) is not None
    assert fedvarp.FedVARP.__name__ == "FedVARP"


def test_a_name_that_does_not_exist_is_refused_like_any_other() -> None:
    with pytest.raises(AttributeError, match="FedVRAP"):
        _ = fedvarp.FedVRAP  # type: ignore[attr-defined]
    assert not hasattr(fedvarp, "__wrapped__")
