"""What is printed arrives, whatever the encoding of the terminal or the pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedvarp.cli.encoding import in_ascii
from some_runs import write_run


def test_letters_have_stand_ins() -> None:
    assert "".join(map(in_ascii, "0.5 ± σ² × ‖∇f‖ … ─│┼ é 語")) == (
        "0.5 +- sigma^2 x |grad f| ... -|+ e ?"
    )


@pytest.mark.parametrize("encoding", ["cp1252", pytest.param("ascii", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "command",
    [
        ("compare", "runs"),
        ("--help",),
        ("run", "digits", "--set", "rounds=0"),
        ("run", "digits", "--stranger"),
        ("diagnose", "digits", "--sample", "4", "--bounds-only"),
    ],
    ids=lambda command: command[0],
)
def test_commands_say_the_same_in_other_encodings(
    command: tuple[str, ...], encoding: str, tmp_path: Path
) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "runs" / str(seed), [0.1, 0.2 + seed / 10], seed=seed)

    def said(encoding: str) -> tuple[int, str, str]:
        ended = subprocess.run(
            [sys.executable, "-m", "fedvarp.cli", *command],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        return ended.returncode, ended.stdout.decode(encoding), ended.stderr.decode(encoding)

    code, out, err = said(encoding)
    whole = said("utf-8")
    assert code == whole[0]
    assert "Traceback" not in err

    def readable(text: str) -> list[str]:
        """Words without rules and frames, in whose place rich may put other signs."""
        words = "".join(letter if letter.isascii() else in_ascii(letter) for letter in text)
        return [word for word in words.split() if any(map(str.isalnum, word))]

    assert readable(out) == readable(whole[1])
    assert readable(err) == readable(whole[2])
