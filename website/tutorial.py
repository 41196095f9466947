"""The tutorial's notebook, made of its page; and its outputs, in the page of the site.

The page docs/tutorial.md is what is written. The notebook beside it has the same cells, and what
they gave when it was run; the site shows the page with those outputs.

    python -m website.tutorial        # runs the notebook, and writes it: `make notebook`
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from website.blocks import Block, blocks

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = DOCS / "tutorial.md"
NOTEBOOK: Final = DOCS / "tutorial.ipynb"

_MAGICS: Final = {"bash": "%%bash\n"}


def cells() -> list[dict[str, Any]]:
    """The cells of the notebook, without outputs."""
    return [_cell(number, block) for number, block in enumerate(blocks(PAGE.read_text()))]


def notebook(of: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole notebook of these cells."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": of,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def executed(folder: Path) -> dict[str, Any]:
    """The notebook with what its cells give now.

    Args:
        folder: An empty one to run in.

    Returns:
        The notebook; progress is left out.

    Raises:
        CellExecutionError: A cell fails.
    """
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.from_dict(notebook(cells()))
    resources = {"metadata": {"path": str(folder)}}
    commands = Path(sys.executable).parent  # where `fedvarp` is, whether or not it is on the path
    client = NotebookClient(made, timeout=600, resources=resources, coalesce_streams=True)
    client.execute(env={**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"})
    for cell in made.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
    found: dict[str, Any] = json.loads(nbformat.writes(made))
    return found


def with_outputs(page: str, pictures: dict[str, bytes]) -> str:
    """The page with the outputs of the notebook below its blocks.

    Args:
        page: The Markdown of the tutorial.
        pictures: Where the notebook's pictures are put, by their file names.

    Returns:
        The Markdown for the site.
    """
    stored = json.loads(NOTEBOOK.read_text())["cells"]
    parts = []
    for block, cell in zip(blocks(page), stored, strict=True):
        if block.language == "markdown":
            parts.append(block.text)
            continue
        title = f' title="{block.title}"' if block.title else ""
        parts.append(f"```{block.language}{title}\n{block.text}```")
        if block.title is None:
            parts += _shown(cell.get("outputs", []), pictures)
    return "\n\n".join(parts) + "\n"


def _cell(number: int, block: Block) -> dict[str, Any]:
    name = f"cell-{number}"
    if block.language == "markdown":
        return {"cell_type": "markdown", "id": name, "metadata": {}, "source": block.text}
    magic = f"%%writefile {block.title}\n" if block.title else _MAGICS.get(block.language, "")
    return {
        "cell_type": "code",
        "id": name,
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": magic + block.text.rstrip("\n"),
    }


def _is_progress(output: Mapping[str, Any]) -> bool:
    """Whether it is a line on standard error, or a bar."""
    return output.get("name") == "stderr" or "━━" in str(output.get("data", ""))


def _shown(outputs: list[Mapping[str, Any]], pictures: dict[str, bytes]) -> Iterator[str]:
    """What Markdown shows of the outputs of a cell."""
    for output in outputs:
        data: Mapping[str, Any] = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            name = f"tutorial-{len(pictures)}.png"
            pictures[name] = base64.b64decode(data["image/png"])
            yield f"![What the cell shows]({name})"
        elif "text/markdown" in data:
            yield "".join(data["text/markdown"])
        elif "text/html" in data:
            whole = re.sub(r"\s*\n\s*", " ", "".join(data["text/html"]))
            yield f'<div class="output">{whole}</div>'
        else:
            plain = re.sub(r"\x1b\[[0-9;]*m", "", "".join(data["text/plain"]))
            yield f"```text\n{plain.rstrip()}\n```"


def main() -> None:
    """Runs the notebook and writes it."""
    with tempfile.TemporaryDirectory() as folder:
        made = executed(Path(folder))
    NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    print(f"Wrote {NOTEBOOK.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
