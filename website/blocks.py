"""The blocks of code in a page, and what each is for.

A block with a title is a file: ```` ```python title="sites.py" ````. One in python or bash without
a title is run, in the order of the page. One in text is what was printed, and one in sh needs other
machines than this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """One block of code, or the prose between two.

    Attributes:
        language: As the fence says; "markdown" for prose.
        title: The file that the block is, if any.
        text: What stands in it.
    """

    language: str
    title: str | None
    text: str


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page and the prose between them, in order.

    Args:
        page: Its Markdown.

    Yields:
        Each of them; prose of nothing but empty lines is left out.
    """
    end = 0
    for found in re.finditer(
        r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', page, flags=re.MULTILINE | re.DOTALL
    ):
        if page[end : found.start()].strip():
            yield Block("markdown", None, page[end : found.start()].strip("\n"))
        yield Block(found[1], found[2], found[3])
        end = found.end()
    if page[end:].strip():
        yield Block("markdown", None, page[end:].strip("\n"))
