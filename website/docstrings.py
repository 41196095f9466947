"""Docstrings as the site shows them: examples at a prompt become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe


def with_fenced_examples(text: str) -> str:
    """The same text with every example at a prompt in a block of code.

    Args:
        text: A docstring, without its indentation.

    Returns:
        What Markdown shows as the docstring means it.
    """
    return re.sub(
        r"^( *)(>>> .*(?:\n(?! *$).*)*)",
        lambda found: f"{found[1]}```pycon\n{found[1]}{found[2]}\n{found[1]}```",
        text,
        flags=re.MULTILINE,
    )


class FencedExamples(griffe.Extension):
    """Has mkdocstrings show examples as `with_fenced_examples` writes them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of whatever was read."""
        if obj.docstring is not None:
            obj.docstring.value = with_fenced_examples(obj.docstring.value)
