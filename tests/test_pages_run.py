"""Every block of code in the README, the tutorial and the how-to pages runs as it is printed.

A page is followed from top to bottom in an empty folder: files are written, Python is executed and
commands are given to bash, as `website.blocks` says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from website.blocks import Block, blocks

ROOT = Path(__file__).parents[1]
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
QUICK = {"own-algorithm.md", "loggers.md"}
NEEDS_MORE = {"several-machines.md": "other machines", "loggers.md": "somebody who watches"}

PAGES = [
    pytest.param(page, marks=() if page.name in QUICK else pytest.mark.slow, id=page.name)
    for page in (ROOT / "README.md", ROOT / "docs" / "tutorial.md", *HOW_TO)
]


def follow(page: Path) -> None:
    """Does what the page says, in the present folder."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text()):
        if block.title is not None:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, page.name, "exec"), names)
        elif block.language == "bash":
            give_to_bash(block)


def give_to_bash(block: Block) -> None:
    here = str(Path(sys.executable).parent)  # where `fedvarp` is installed
    done = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", block.text],
        env={**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_it_is_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    try:
        follow(page)
    finally:
        for name in set(sys.modules) - before:  # the page's own files, which others may name so too
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


def test_the_first_example_shows_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [b for b in blocks((ROOT / "README.md").read_text()) if b.language == "python"]
    exec(compile(example.text, "README.md", "exec"), {})
    printed = dict(re.findall(r"(\w+): ([\d.]+)%", capsys.readouterr().out))
    assert float(printed["fedvarp"]) > float(printed["fedavg"]) + 3  # points; 4 or more in 8 seeds


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.name)
def test_how_to_pages_hold_nothing_that_is_not_run(page: Path) -> None:
    found = [b for b in blocks(page.read_text()) if b.language != "markdown" and b.title is None]
    assert any(block.language in ("python", "bash") for block in found)
    others = {block.language for block in found} - {"python", "bash", "text"}
    assert others <= ({"sh"} if page.name in NEEDS_MORE else set())


def test_blocks_are_told_apart() -> None:
    page = 'Do:\n```python title="a.py"\nx = 1\n```\n```bash\nls\n```\n\nDone.\n'
    assert list(blocks(page)) == [
        Block("markdown", None, "Do:"),
        Block("python", "a.py", "x = 1\n"),
        Block("bash", None, "ls\n"),
        Block("markdown", None, "Done."),
    ]
