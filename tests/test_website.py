"""The documentation's site: what is generated is complete, and what is built is whole."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from website import api_pages, checks, settings_page
from website.api_pages import ROOT

from fedvarp.experiments.settings import Settings
from fedvarp.settings.names import options_of
from fedvarp.settings.problems import fields_of

pytestmark = pytest.mark.skipif(find_spec("mkdocs") is None, reason="fedvarp[docs] is not there")


@pytest.mark.parametrize("room", api_pages.rooms())
def test_every_public_name_is_described_once_or_linked(room: str) -> None:
    text = api_pages.pages()[f"api/{room}.md"]
    described = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    linked = re.findall(r"\(([\w.]+)\.md#([\w.]+)\)", text)
    names = [n.name for n in api_pages.public_names(room)]
    names += [module.rpartition(".")[2] for module in api_pages.modules(room)]
    shown = [target.rpartition(".")[2] for target in [*described[1:], *(t for _, t in linked)]]
    assert sorted(shown) == sorted(names)
    for home, target in linked:
        assert f"::: {target}\n" in api_pages.pages()[f"api/{home}.md"]


@pytest.mark.parametrize("room", api_pages.rooms())
def test_what_is_described_is_what_python_gives(room: str) -> None:
    if room == "fedvarp.flower" and find_spec("flwr") is None:
        pytest.skip("the extra fedvarp[flower] is not installed")
    offered = set(importlib.import_module(room).__all__)
    within = [r for r in (*api_pages.rooms(), *api_pages.modules(room)) if r.startswith(f"{room}.")]
    below = {name.removeprefix(f"{room}.") for name in within}
    assert {n.name for n in api_pages.public_names(room)} == offered - below
    for name in api_pages.public_names(room):
        module, _, attribute = name.target.rpartition(".")
        there = getattr(importlib.import_module(module), attribute)
        assert getattr(importlib.import_module(room), name.name) is there


def test_the_settings_page_has_every_setting_and_every_option() -> None:
    page = settings_page.page()
    sections = dict(settings_page.sections(Settings))
    missing = [
        name
        for name, meaning in fields_of(Settings)
        if name not in sections
        and not name.endswith((".availability.name", ".optimizer.name"))
        and name not in ("data.name", "model.name")  # what these can be has tables of their own
        and not re.search(rf"^\| `{re.escape(name)}` \|.*{_start(meaning)}", page, re.MULTILINE)
    ]
    assert missing == []
    for path, (registry, _) in settings_page.CHOICES.items():
        table = page.partition(f"## What {path} can be\n")[2].partition("\n## ")[0]
        for name in registry:
            entry = table.partition(f"\n| `{name}` | | | | ")[2]
            assert entry
            entry = re.split(r"^\| `", entry, maxsplit=1, flags=re.MULTILINE)[0]
            options = options_of(registry.find(name), but_required=path == "algorithm")
            assert re.findall(r"^\| \| `(\w+)`", entry, re.MULTILINE) == list(options.model_fields)


def _start(meaning: str | None) -> str:
    assert meaning
    return re.escape(" ".join(meaning.split())[:20].replace("|", "\\|"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rounds", "| `rounds` | whole number, at least 1 | required |"),
        ("dropout", "| `sampling.dropout` | number, at least 0, below 1 | `0.0` |"),
        (
            "codec",
            '| `table.codec` | `"float32"`, `"bfloat16"`, `"float16"`, `"int8"` | `"float32"`',
        ),
        ("fsync", "| `recording.fsync` | `true`, `false` | `true` |"),
        ("clusters", "| `table.clusters` | text or list of whole numbers |  |"),
    ],
)
def test_kinds_bounds_and_defaults_are_in_words(name: str, words: str) -> None:
    assert words in settings_page.page(), name


def test_examples_of_docstrings_become_blocks_of_code() -> None:
    pytest.importorskip("griffe")
    from website.docstrings import with_fenced_examples

    text = "Adds.\n\n>>> 1 + 1\n2\n\nThat is all.\n\n    >>> 3\n    3"
    assert with_fenced_examples(text) == (
        "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThat is all.\n\n"
        "    ```pycon\n    >>> 3\n    3\n    ```"
    )


@pytest.mark.parametrize(
    ("page", "target", "on_site"),
    [
        ("index.md", "docs/decisions/layout.md#why", "[it](decisions/layout.md#why)"),
        ("index.md", "CONTRIBUTING.md", "[it](contributing.md)"),
        ("decisions/layout.md", "../theory.md", "[it](../theory.md)"),
        ("flower.md", "../examples/flower_app", "it"),
        ("flower.md", "https://flower.ai", "[it](https://flower.ai)"),
        ("flower.md", "#one-machine", "[it](#one-machine)"),
    ],
)
def test_links_of_the_repository_are_links_of_the_site(
    page: str, target: str, on_site: str
) -> None:
    from website.hooks import link_on_site

    assert link_on_site("", "it", target, page) == on_site


def test_checks_find_what_is_wrong_with_a_site(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text('<h1 id="top"></h1><a href="good.html#top">up</a>')
    assert list(checks.problems(tmp_path)) == []
    (tmp_path / "bad.html").write_text(
        '<a href="gone.html"></a><a href="good.html#gone"></a><a href="https://example.org"></a>'
        '<script src="https://example.org/x.js"></script><link href="gone.css">'
    )
    (tmp_path / "bad.css").write_text("@font-face { src: url(https://example.org/font.woff2) }")
    found = "\n".join(checks.problems(tmp_path))
    for word in ("to gone.html", "good.html#gone", "org/x.js", "gone.css", "font.woff2"):
        assert found.count(word) == 1
    assert found.count("\n") == 4


@pytest.mark.slow
def test_the_site_is_built_strict_and_whole(tmp_path: Path) -> None:
    pytest.importorskip("material")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
        capture_output=True,
    )
    assert list(checks.problems(tmp_path)) == []
    assert (tmp_path / "api" / "fedvarp.tables.html").exists()
