"""Files about the project that nothing else reads agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedvarp.version import __version__

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(file: str) -> Any:
    return yaml.safe_load((ROOT / file).read_text())


def test_the_version_is_the_same_everywhere() -> None:
    newest = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[0] == read("CITATION.cff")["version"] == __version__


def test_the_citation_names_the_paper_and_its_authors() -> None:
    paper = read("CITATION.cff")["preferred-citation"]
    assert paper["title"].startswith("FedVARP: Tackling the Variance Due to Partial Client")
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Jhunjhunwala", "Sharma", "Nagarkatti", "Joshi"]
    assert paper["year"] == 2022


def test_every_page_has_its_place_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not page.startswith("decisions/") and page not in menu] == []


def test_the_extra_all_has_every_extra_for_users() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(re.findall(r"[\w-]+", everything.partition("[")[2]))
    assert named == set(extras) - {"all", "dev", "docs"}


def test_every_python_that_is_named_is_tried_and_every_target_is_there() -> None:
    workflow = read(".github/workflows/ci.yml")
    tried = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert tried == named
    makefile = (ROOT / "Makefile").read_text()
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    targets = re.findall(r"make ([\w-]+)", "\n".join(step.get("run", "") for step in steps))
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize(
    "file", sorted(p.name for p in (ROOT / ".github/ISSUE_TEMPLATE").iterdir())
)
def test_forms_have_fields_with_names(file: str) -> None:
    form = read(f".github/ISSUE_TEMPLATE/{file}")
    fields = [field["id"] for field in form["body"]]
    assert len(set(fields)) == len(fields) >= 1
    assert form["name"]
    assert form["description"]


def test_hooks_before_a_commit_are_what_lint_runs() -> None:
    (local,) = read(".pre-commit-config.yaml")["repos"]
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    for hook in local["hooks"]:
        assert " ".join(hook["entry"].split()[:2]).removesuffix(" --fix") in lint
