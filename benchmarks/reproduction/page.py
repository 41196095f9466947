"""Pages whose tables and figures come from the metrics in reproduction/: the commands they name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from typer.testing import CliRunner

from benchmarks import ROOT
from benchmarks.reproduction import rates, steadiness
from fedvarp.cli.app import app

_OTHERS: Final = {
    f"benchmarks.reproduction.{name}": text
    for name, text in (("rates", rates.text), ("steadiness", steadiness.text))
}
PAGES: Final = tuple(
    ROOT / "docs" / f"{name}.md"
    for name in ("reproduction", "reproduction-tables", "algorithms", "server-optimizers")
)
_BLOCK: Final = re.compile(r"(?<=```console\n).*?(?=```)", flags=re.DOTALL)
# A command, on several lines if they end in a backslash; then all lines up to the next one.
_TYPED: Final = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", flags=re.MULTILINE)


@dataclass(frozen=True)
class Typed:
    """A command of the page.

    Attributes:
        line: As it is printed there, its continuations included.
        output: What is printed below it.
    """

    line: str
    output: str

    @property
    def words(self) -> list[str]:
        """Of the command, without `fedvarp`; none if it is another program's."""
        return self.all_words[1:] if self.all_words[:1] == ["fedvarp"] else []

    @property
    def all_words(self) -> list[str]:
        """Of the command."""
        return shlex.split(self.line.replace("\\\n", " "), comments=True)


def commands(page: str, name: str) -> list[Typed]:
    """Every `fedvarp NAME …` on the page."""
    return [typed for typed in _all(page) if typed.words[:1] == [name]]


def scripts(page: str) -> list[Typed]:
    """Every `python -m benchmarks.reproduction.…` on the page."""
    return [typed for typed in _all(page) if _script(typed)]


def run(words: Sequence[str]) -> str:
    """What fedvarp prints, called from the project's directory."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    if result.exit_code:
        raise SystemExit(f"fedvarp {shlex.join(words)}: {result.output}")
    return result.output


def renewed(page: str) -> str:
    """The page with the tables that its commands print today."""

    def renew(block: re.Match[str]) -> str:
        return "".join(f"$ {typed.line}\n{_output_today(typed)}" for typed in _typed(block[0]))

    return _BLOCK.sub(renew, page)


def _output_today(typed: Typed) -> str:
    if script := _script(typed):
        return _OTHERS[script](typed.all_words[3:])
    return run(typed.words) if typed.words[:1] == ["compare"] else typed.output


def _script(typed: Typed) -> str | None:
    match typed.all_words:
        case ["python", "-m", name, *_] if name in _OTHERS:
            return name
    return None


def _all(page: str) -> list[Typed]:
    return [typed for block in _BLOCK.findall(page) for typed in _typed(block)]


def _typed(block: str) -> list[Typed]:
    return [Typed(line, output) for line, output in _TYPED.findall(block)]
