"""The repository's Markdown: its lines, its links, and the files and names it speaks of."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from website import api_pages

from fedvarp.experiments.files import load_settings, preset_names

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedvarp"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
LONGEST = 100

PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for page in sorted(ROOT.glob(pattern))
]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines that are neither code nor tables."""
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("|"):
            yield number, line


@EACH_PAGE
def test_prose_is_wrapped(page: Path) -> None:
    too_long = [
        f"{number}: {line}"
        for number, line in prose(page)
        if len(line) > LONGEST and not re.fullmatch(r"!?\[.*\]\(.*\)", line)  # a link alone
    ]
    assert not too_long


@EACH_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    text = "\n".join(line for _, line in prose(page)) + page.read_text()
    targets = {target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target}
    missing = [
        target
        for target in targets
        if not target.startswith("#") and not _is_there(page.parent / target.partition("#")[0])
    ]
    assert not missing


def _is_there(target: Path) -> bool:
    """Whether it is a file, or a page that the site generates."""
    of_site = {ROOT / "docs" / "settings.md", *(ROOT / "docs" / p for p in api_pages.pages())}
    return target.exists() or target.resolve() in of_site


@EACH_PAGE
def test_files_that_are_named_exist(page: Path) -> None:
    """In backticks, with a folder: `tests/laws/` or `benchmarks/rounds/workloads.py`."""
    if page.name == "CHANGELOG.md":  # which speaks of what was
        return
    here = "src|tests|docs|benchmarks|examples|reproduction|fedvarp"
    rooms = "|".join(folder.name for folder in PACKAGE.iterdir() if folder.is_dir())
    named = re.findall(rf"`((?:{here}|{rooms})/[\w./*-]*)`", page.read_text())
    places = (ROOT, ROOT / "src", PACKAGE)
    missing = [name for name in named if not any(any(p.glob(name)) for p in places)]
    assert not missing


@EACH_PAGE
def test_algorithms_are_spelt_as_in_the_paper(page: Path) -> None:
    text = "\n".join(line for _, line in prose(page))
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)  # names in code, links
    found = re.findall(r"(?i)\b(?:cluster[- ]?)?fed[- ]?varp\b", text)
    # The package is called fedvarp, in small letters.
    assert set(found) <= {"FedVARP", "ClusterFedVARP", "fedvarp"}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `fedvarp run`, `sweep` and `diagnose` of a preset."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    lines = re.findall(r"^(?:\$ )?(fedvarp (?:run|sweep|diagnose) .*)$", text, re.MULTILINE)
    inline = re.findall(r"`(fedvarp (?:run|sweep|diagnose) [^`]*)`", text)
    for command in [*lines, *(part for code in inline for part in code.split(";"))]:
        words = shlex.split(command, comments=True)
        if len(words) > 2 and words[2] in preset_names():
            yield words


@EACH_PAGE
def test_commands_change_settings_that_there_are(page: Path) -> None:
    for words in commands(page):
        changes = [given for flag, given in pairwise(words) if flag == "--set" and "…" not in given]
        load_settings(words[2], changes)


def steps() -> Iterator[tuple[str, str]]:
    """(file, name) of each step of the walks, and of the table before them."""
    text = ARCHITECTURE.read_text()
    yield from re.findall(r"\| `([\w/]+\.py)` \| `([\w.]+)` \|", text)
    for name, file in re.findall(r"`([\w.]+)` in `src/fedvarp/([\w/]+\.py)`", text):
        yield file, name


@pytest.mark.parametrize(("file", "name"), sorted(set(steps())))
def test_the_steps_of_the_walks_are_where_the_page_says(file: str, name: str) -> None:
    inside: list[ast.stmt] = ast.parse((PACKAGE / file).read_text()).body
    for part in name.split("."):
        (found,) = [
            node
            for node in inside
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
        ]
        inside = found.body


def test_walks_have_at_most_a_dozen_steps() -> None:
    walks = re.split(r"^## ", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    lengths = {
        walk.splitlines()[0]: walk.count(".py` | `") for walk in walks if walk.startswith("One ")
    }
    assert len(lengths) == 4
    assert all(3 <= length <= 12 for length in lengths.values())


def test_the_tree_names_every_room() -> None:
    text = ARCHITECTURE.read_text()
    rooms = [f"{folder.name}/" for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()]
    modules = [file.name for file in PACKAGE.glob("*.py") if file.name != "__init__.py"]
    assert [name for name in rooms + modules if f"  {name}" not in text] == []
