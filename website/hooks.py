"""Where mkdocs meets what is generated: pages that no file holds, and the places of the menu."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import api_pages, settings_page, tutorial

ROOT: Final = Path(__file__).parents[1]

FROM_THE_ROOT: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files of the repository's root that are pages of the site."""


def generated() -> dict[str, str | bytes]:
    """What is shown and no file of docs/ holds, by its path there."""
    pictures: dict[str, bytes] = {}
    tutorial.with_outputs(tutorial.PAGE.read_text(), pictures)
    return {
        **pictures,
        **{page: (ROOT / file).read_text() for file, page in FROM_THE_ROOT.items()},
        settings_page.PAGE: settings_page.page(),
        **api_pages.pages(),
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills the menu's lists of rooms and decisions."""
    decisions = sorted(page.name for page in (ROOT / "docs" / "decisions").glob("*.md"))
    _fill(config.nav, "API", [f"{api_pages.FOLDER}/{room}.md" for room in api_pages.rooms()])
    _fill(config.nav, "Decisions", [f"decisions/{name}" for name in decisions])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is generated."""
    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links as the site needs them (see `link_on_site`), and the tutorial with its outputs."""
    here = page.file.src_uri
    if here == tutorial.PAGE.name:
        markdown = tutorial.with_outputs(markdown, {})
    return re.sub(
        r"(!?)\[([^\]]*)\]\(([^)\s]+)\)",
        lambda found: link_on_site(found[1], found[2], found[3], here),
        markdown,
    )


def link_on_site(mark: str, text: str, target: str, page: str) -> str:
    """A link of the repository as a link of the site.

    >>> link_on_site("", "why", "docs/decisions/layout.md", "index.md")
    '[why](decisions/layout.md)'
    >>> link_on_site("", "the app", "../examples/flower_app", "flower.md")
    'the app'

    Args:
        mark: "!" for a picture, else nothing.
        text: What is shown.
        target: Where it leads in the repository, from the folder of the page's file.
        page: The page on which it stands, as a path below docs/.

    Returns:
        The link in Markdown; what the site does not have is named and not linked.
    """
    if "://" in target or target.startswith("#"):
        return f"{mark}[{text}]({target})"
    path, hash_mark, anchor = target.partition("#")
    folder = "." if page in FROM_THE_ROOT.values() else join("docs", dirname(page))
    in_repository = normpath(join(folder, path))
    if in_repository in FROM_THE_ROOT:
        in_repository = join("docs", FROM_THE_ROOT[in_repository])
    if not in_repository.startswith("docs/") or not in_repository.rpartition("/")[2].count("."):
        return text
    from_here = relpath(in_repository, join("docs", dirname(page)))
    return f"{mark}[{text}]({from_here}{hash_mark}{anchor})"


def _fill(menu: Any, title: str, pages: list[str]) -> None:
    for entry in menu:
        if isinstance(entry, dict):
            for name, below in entry.items():
                if name == title:
                    entry[name] = pages
                elif isinstance(below, list):
                    _fill(below, title, pages)
