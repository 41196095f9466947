"""The page without a browser: what is in it, what is counted, and that nothing slips through."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedvarp.analysis import compact
from fedvarp.analysis.report import write_report
from fedvarp.runs.errors import RunError
from some_runs import write_run

pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")


class Page(HTMLParser):
    """The words of a page outside its scripts, and the names of its elements and attributes."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.words = ""
        self.tags: set[str] = set()
        self.links: list[str] = []
        self._within = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._within = tag
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self._within not in ("script", "style"):
            self.words += data

    def handle_endtag(self, tag: str) -> None:
        self._within = ""


def data_of(file: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', file.read_text(), re.DOTALL
    )
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_page_of_copies_claims_nothing_they_leave_out(real_runs: Path, tmp_path: Path) -> None:
    compact([real_runs], tmp_path / "copies")
    page = Page(write_report([tmp_path / "copies"], tmp_path / "page.html"))
    assert "6 runs of 20 rounds: FedAvg, MIFA, FedVARP." in page.words
    assert "these copies of runs leave it out" in page.words
    assert "every reply was finite" not in page.words


def test_the_page_is_complete_repeats_to_the_byte_and_leaves_no_draft(
    real_runs: Path, tmp_path: Path
) -> None:
    file = write_report([real_runs], tmp_path / "new" / "page.html", title="Digits, 2 of 100")
    assert [path.name for path in file.parent.iterdir()] == ["page.html"]
    page = Page(file)
    assert page.links == ["data:,"]  # no element loads anything
    assert "Digits, 2 of 100" in page.words
    assert "6 runs of 20 rounds: FedAvg, MIFA, FedVARP." in page.words
    assert "None: every reply was finite" in page.words
    again = write_report([real_runs], tmp_path / "again.html", title="Digits, 2 of 100")
    assert again.read_bytes() == file.read_bytes()
    assert len(file.read_bytes()) < 6_000_000


def test_time_is_offered_only_where_it_is_known(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", [0.1, 0.2], seconds=None)
    text = write_report([run], tmp_path / "page.html").read_text()
    assert 'value="bytes"' in text
    assert 'value="time"' not in text


def test_refused_replies_are_listed_with_their_reason(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", [0.1, 0.2], refused={"3": "not finite: inf"})
    words = Page(write_report([run], tmp_path / "page.html")).words
    assert "10 in all" in words
    assert "not finite: inf" in words
    many = write_run(tmp_path / "1", [0.1] * 12, refused={"3": "not finite"})
    assert "The first 100 of 110" in Page(write_report([many], tmp_path / "page.html")).words


def test_settings_and_their_differences(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "0", [0.1, 0.2], lr=0.1)
    write_run(tmp_path / "runs" / "1", [0.1, 0.2], lr=0.3, algorithm="fedavg")
    words = Page(write_report([tmp_path / "runs"], tmp_path / "page.html")).words
    differs, shared = words.split("What differs")[1].split("What all runs share")
    assert "local_sgd.lr" in differs
    assert "local_sgd.batch_size" not in differs
    assert "local_sgd.batch_size" in shared


def test_all_user_text_is_escaped(tmp_path: Path) -> None:
    evil = '</script><marquee onload="x">&amp;<b>'
    run = write_run(
        tmp_path / "<marquee>",
        [0.1, 0.2],
        algorithm=evil,
        settings={"data": {evil: evil}, "rounds": 99},
        refused={evil: evil},
    )
    file = write_report([run], tmp_path / "page.html", title=evil)
    page = Page(file)
    assert "marquee" not in page.tags
    assert "b" not in page.tags
    assert page.words.count(evil) >= 6  # title, headline, legend, tables, settings, refusals
    # plotly reads names as HTML: there it must come escaped once more.
    assert data_of(file)["groups"][0]["name"] == evil.replace("&", "&amp;").replace(
        "<", "&lt;"
    ).replace(">", "&gt;")


@pytest.mark.parametrize(("tag", "more"), [("script", []), ("style", [""])])
def test_browsers_take_only_the_scripts_and_styles_of_the_page(
    tmp_path: Path, tag: str, more: list[str]
) -> None:
    """Whatever slips through into the page has no digest among those that may run.

    Plotly makes an empty style, which it adds rules to.
    """
    run = write_run(tmp_path / "run", [0.1, 0.2])
    text = write_report([run], tmp_path / "page.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    allowed = re.search(rf"{tag}-src ([^;]*);", policy[1].replace("&#39;", "'"))
    assert allowed is not None
    ours = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert ours
    assert allowed[1].split() == [
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
        for one in (*ours, *more)
    ]
    assert "unsafe" not in policy[1]


def test_a_report_of_nothing_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        write_report([tmp_path / "nowhere"], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_without_plotly_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "0", [0.1, 0.2])
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    with pytest.raises(ImportError, match=r'pip install "fedvarp\[plots\]"'):
        write_report([run], tmp_path / "page.html")
