"""The tutorial's notebook: the cells of its page, which run; and its outputs in the site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from website import tutorial


def test_the_notebook_has_the_cells_of_the_page_and_was_run() -> None:
    stored = json.loads(tutorial.NOTEBOOK.read_text())
    for cell, written in zip(stored["cells"], tutorial.cells(), strict=True):
        assert "".join(cell["source"]) == written["source"], "run `make notebook`"
        assert cell["cell_type"] == written["cell_type"]
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert all(output["output_type"] != "error" for cell in code for output in cell["outputs"])


def test_the_page_of_the_site_has_its_outputs() -> None:
    pictures: dict[str, bytes] = {}
    page = tutorial.with_outputs(tutorial.PAGE.read_text(), pictures)
    assert [data[:4] for data in pictures.values()] == [b"\x89PNG"]
    assert all(f"({name})" in page for name in pictures)
    assert "FederatedDataset(60 clients" in page
    assert "% of held-out cases" in page
    assert "Writing sites.py" not in page  # of a file nothing is shown but the file


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    made = tutorial.executed(tmp_path)
    assert any("held-out cases" in str(cell.get("outputs")) for cell in made["cells"])
