"""One table in five formats: what each shows, and that no word of the user's becomes markup."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedvarp.analysis.tables import Table, markdown_text, paragraphs
from fedvarp.errors import plain

EVIL = "</script><marquee onload=\"x\">&amp;<b> a|b **c** [d](e) _f_ `g` \\ 'h'"


class Cells(HTMLParser):
    """The words of each cell of a table, and the tags of the document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and data.strip():
            self.cells[-1] += data


def evil() -> Table:
    return Table(EVIL, ("", EVIL), [(EVIL, EVIL)], notes=[EVIL], words=(EVIL,))


def test_text_aligns_figures_right_and_words_left() -> None:
    table = Table(
        "T", ("run", "rounds", "why"), [("a", 7, "x"), ("bb", 1234, None)], words=("why",)
    )
    assert table.text().splitlines() == [
        "T",
        "",
        " run  rounds  why",
        " ────────────────",
        " a         7  x",
        " bb     1234  –",
        "",
    ]


def test_text_shows_markup_of_rich_as_it_is_and_folds_notes_alone() -> None:
    long = "word " * 40
    text = Table("[b]T[/b]", ("a", "b"), [("[red]x", long.strip())], notes=[long]).text()
    assert "[b]T[/b]" in text
    assert "[red]x" in text
    assert long.strip() in text  # the cell in one line
    assert text.endswith(paragraphs([long]))
    assert max(map(len, paragraphs([long]).splitlines())) <= 88


def test_markdown_leaves_no_mark_of_the_users() -> None:
    title, _, header, _, row, _, note = evil().markdown().splitlines()
    assert title == f"**{markdown_text(EVIL)}**"
    assert header == f"|  | {markdown_text(EVIL)} |"
    assert row == f"| {markdown_text(EVIL)} | {markdown_text(EVIL)} |"
    assert note == markdown_text(EVIL)
    # Every sign that Markdown could take for a mark has a backslash, and nothing is lost.
    assert re.sub(r"\\([\\`*_~|<>\[\]&])", "", markdown_text(EVIL)) == re.sub(
        r"[\\`*_~|<>\[\]&]", "", EVIL
    )
    assert re.sub(r"\\(.)", r"\1", markdown_text(EVIL)) == EVIL
    assert markdown_text("two\nlines") == "two lines"


def test_csv_and_json_keep_values_and_give_up_what_is_not_finite() -> None:
    rows = [(0.1 + 0.2, None, EVIL), (float("nan"), float("inf"), True)]
    table = Table("T", ("a", "b", "c"), rows, notes=["n"])
    header, first, second = csv.reader(io.StringIO(table.csv()))
    assert header == ["a", "b", "c"]
    assert (float(first[0]), first[1], first[2]) == (0.1 + 0.2, "", EVIL)
    assert second == ["", "", "True"]
    told = json.loads(table.json(rows="groups", target=None))
    assert list(told) == ["target", "groups", "notes"]
    assert told["groups"] == [
        {"a": 0.1 + 0.2, "b": None, "c": EVIL},
        {"a": None, "b": None, "c": True},
    ]
    nested = Table("T", ("a",), [({"per_seed": (1.0, float("nan"))},)])
    assert json.loads(nested.json())["rows"] == [{"a": {"per_seed": [1.0, None]}}]


def test_a_row_with_too_few_cells_is_no_object() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Table("T", ("a", "b"), [("x",)]).json()


def test_html_escapes_every_word() -> None:
    read = Cells(evil().html())
    assert read.tags == {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert read.cells[1] == read.cells[2] == EVIL
    assert 'class="words"' in evil().html()
    assert 'class="numbers"' in Table("T", ("a", "b"), [("x", 1)]).html()
    assert Cells(Table("T", ("a", "b"), [("x", None)]).html()).cells == ["a", "b", "x", "–"]


def test_in_a_notebook_too_a_table_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "fig leaves" in paragraphs(["fig leaves"])


def test_no_cell_commands_a_spreadsheet_or_a_terminal() -> None:
    table = Table("T\x1b[2J", ("=a", "b"), [("=1+1", "x\x1b[2J"), ("-x", -2)], notes=["\x07"])
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert rows == [["'=a", "b"], ["'=1+1", "x\\x1b[2J"], ["'-x", "-2"]]
    for text in (table.text(), table.csv()):
        assert re.search("[\x1b\x07]", text) is None


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "＝", "＋", "－", "＠"])
@given(before=st.text(st.characters(categories=["Zs", "Zl", "Zp", "Cc", "Cf", "Mn"]), max_size=4))
@example(before=" ")
@example(before="\n\t")
@example(before="\u200b\ufeff")
def test_nothing_that_is_not_seen_hides_a_formula(sign: str, before: str) -> None:
    ((cell,),) = csv.reader(io.StringIO(Table("T", (f"{before}{sign}1+1",), []).csv(), newline=""))
    assert cell == f"'{plain(before)}{sign}1+1"


@pytest.mark.parametrize("harmless", [" FedAvg", "a=1", "−1", "\u200b", ""])
def test_what_is_no_formula_stays_as_it_is(harmless: str) -> None:
    assert Table("T", ("a", "b"), [(harmless, "x")]).csv() == f"a,b\n{harmless},x\n"
