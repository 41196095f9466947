"""A table, and the five ways to write it: text, Markdown, CSV, JSON and HTML.

Text, Markdown and HTML are for people: cells as they are, "–" for what is not known. CSV and JSON
are for programs: an empty cell or null for what is not known or not finite.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import rich.table
from rich import box
from rich.console import Console, RenderableType
from rich.text import Text

from fedvarp.analysis.templating import render
from fedvarp.errors import plain

_UNKNOWN: Final = "–"
_WIDEST: Final = 1000  # letters of a line: cut or folded figures are worse than a long line
_FORMULA: Final = ("=", "+", "-", "@")  # what a spreadsheet takes for the beginning of one
_INVISIBLE: Final = ("Z", "C", "M")  # kinds of Unicode: spaces, controls, marks on nothing
_PARAGRAPH: Final = 88  # letters of a line of prose
_MARKDOWN: Final = re.compile(r"([\\`*_~|<>\[\]&])")  # what would be more than a letter


@dataclass(frozen=True)
class Table:
    """Cells in rows and columns.

    Attributes:
        title: What the table shows.
        columns: The columns' names. The first column says what each row is about.
        rows: The cells: words as they are to be shown, or plain values where the table is for
            programs; None for what is not known.
        notes: What a reader has to know about the figures; paragraphs below the table.
        words: Which columns beside the first hold words, and are aligned to the left.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    words: Sequence[str] = ()

    def text(self) -> str:
        """Writes the table for a terminal, as wide as it needs to be.

        >>> rows = [("FedAvg", 40), ("MIFA", None)]
        >>> print(Table("Rounds", ("algorithm", "first"), rows).text(), end="")
        Rounds
        <BLANKLINE>
         algorithm  first
         ────────────────
         FedAvg        40
         MIFA           –
        <BLANKLINE>
        """
        table = rich.table.Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for name in self.columns:
            # Text, not str: a name in square brackets is no markup.
            table.add_column(
                Text(plain(name).replace(", ", ",\n")),
                justify="left" if self._in_words(name) else "right",
            )
        for row in self.rows:
            table.add_row(*(Text(_shown(cell)) for cell in row))
        return _printed(_WIDEST, Text(plain(self.title)), table) + paragraphs(self.notes)

    def markdown(self) -> str:
        """Writes the table for a Markdown page; every letter of a cell stays a letter.

        >>> print(Table("Rounds", ("algorithm", "first"), [("FedAvg", 40)]).markdown(), end="")
        **Rounds**
        <BLANKLINE>
        | algorithm | first |
        | :-- | --: |
        | FedAvg | 40 |
        """
        marks = [":--" if self._in_words(name) else "--:" for name in self.columns]
        cells = [[markdown_text(_shown(cell)) for cell in row] for row in self.rows]
        header = [markdown_text(name) for name in self.columns]
        lines = [f"| {' | '.join(line)} |" for line in (header, marks, *cells)]
        notes = [f"\n{markdown_text(note)}" for note in self.notes]
        return "\n".join([f"**{markdown_text(self.title)}**", "", *lines, *notes]) + "\n"

    def csv(self) -> str:
        """Writes columns and rows for a spreadsheet; the title and the notes are left out.

        >>> print(Table("Rounds", ("algorithm", "first"), [("FedAvg", None)]).csv(), end="")
        algorithm,first
        FedAvg,
        """
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_no_formula, self.columns))
        writer.writerows([_no_formula(_finite(cell)) for cell in row] for row in self.rows)
        return file.getvalue()

    def json(self, rows: str = "rows", **beside: Any) -> str:
        """Writes the rows as objects, with the columns' names as their keys, and the notes.

        Args:
            rows: The key of the list of rows.
            beside: What else the document says, before the rows.

        >>> print(Table("Rounds", ("algorithm", "first"), [("FedAvg", 40)]).json(metric="loss"))
        {
          "metric": "loss",
          "rows": [
            {
              "algorithm": "FedAvg",
              "first": 40
            }
          ],
          "notes": []
        }
        <BLANKLINE>
        """
        objects = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        content = _finite({**beside, rows: objects, "notes": list(self.notes)})
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=str)
        return text + "\n"

    def html(self) -> str:
        """Writes the table as an element of a page, in a box that can be scrolled."""
        return render(
            "table.html",
            title=self.title,
            kind="words" if all(map(self._in_words, self.columns)) else "numbers",
            columns=self.columns,
            rows=[[_shown(cell) for cell in row] for row in self.rows],
            notes=self.notes,
        )

    def __html__(self) -> str:
        """What a template puts in the place of a table."""
        return self.html()

    def _in_words(self, column: str) -> bool:
        return column == self.columns[0] or column in self.words


def paragraphs(lines: Iterable[str]) -> str:
    """Folds each of the lines into a paragraph for a terminal."""
    return "".join(_printed(_PARAGRAPH, Text(plain(line))) for line in lines)


def markdown_text(text: str) -> str:
    r"""Writes a text so that Markdown shows it as it is, in one line.

    >>> print(markdown_text("<b> a_b | c"))
    \<b\> a\_b \| c
    """
    return _MARKDOWN.sub(r"\\\1", " ".join(text.splitlines()))


def _printed(width: int, *parts: RenderableType) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system=None, highlight=False, force_jupyter=False
    )  # in a notebook, it would show the text there and leave the file empty
    console.print(*parts)
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


def _shown(cell: object) -> str:
    return _UNKNOWN if cell is None else plain(str(cell))


def _no_formula(cell: Any) -> Any:
    """A text that a spreadsheet would compute begins with an apostrophe, which it does not show.

    >>> _no_formula("=1+1"), _no_formula(" @x"), _no_formula(-1.5), _no_formula("FedAvg")
    ("'=1+1", "' @x", -1.5, 'FedAvg')
    """
    if not isinstance(cell, str):
        return cell
    # Programs pass over what is not seen, and some read full-width signs as plain ones.
    seen = next((c for c in cell if unicodedata.category(c)[0] not in _INVISIBLE), "")
    is_formula = unicodedata.normalize("NFKC", seen).startswith(_FORMULA)
    return f"'{plain(cell)}" if is_formula or cell.startswith(("\t", "\r")) else plain(cell)


def _finite(value: Any) -> Any:
    """The value with None for every number in it that is not finite."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
