"""Checks a built site: its links lead somewhere, and it loads nothing from elsewhere.

python -m website.checks build/site
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag refers to."""
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values:
            self.loads.append(values["href"])
        elif "src" in values:
            self.loads.append(values["src"])


def problems(site: Path) -> Iterator[str]:
    """What is wrong with a site, one sentence for each.

    Args:
        site: The folder that it was built into.

    Yields:
        The sentences; none for a site that is whole and stands by itself.
    """
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for target in page.loads:
            parts = urlsplit(target)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                yield f"{path.relative_to(site)} loads {target}, which is not of the site."
            elif parts.path and not _file(site, path, parts.path).exists():
                yield f"{path.relative_to(site)} loads {target}, which there is not."
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = _file(site, path, parts.path) if parts.path else path
            if not there.exists():
                yield f"{path.relative_to(site)} links to {target}, which there is not."
            elif parts.fragment and there in pages:
                wanted = {parts.fragment, unquote(parts.fragment)}
                if not wanted & pages[there].places:
                    yield f"{path.relative_to(site)} links to {target}: no such place in the page."
    for style in site.rglob("*.css"):
        for target in re.findall(r"url\(['\"]?(\w+://[^)'\"]+)", style.read_text()):
            yield f"{style.relative_to(site)} loads {target}, which is not of the site."


def _file(site: Path, page: Path, target: str) -> Path:
    from_root = target.startswith("/")  # as in 404.html, which may be shown anywhere
    there = ((site if from_root else page.parent) / unquote(target.lstrip("/"))).resolve()
    return there / "index.html" if there.is_dir() else there


def main() -> None:
    """Prints what is wrong, and ends with code 1 if anything is."""
    found = list(problems(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "All links lead somewhere; nothing is loaded from elsewhere.")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
