"""A diagnosis as tables for a terminal."""

from __future__ import annotations

from pathlib import Path

from fedvarp.diagnosis import Diagnosis, as_text, diagnose
from fedvarp.diagnosis.text import tables


def test_tables_show_every_number(found: Diagnosis) -> None:
    text = as_text(found, ["Advice."])
    for what in ("σ_g²", "FedVARP", "ClusterFedVARP", "- Advice.", "all 20 clients", "95%"):
        assert what in text
    assert max(map(len, text.splitlines())) <= 100
    titles = [table.title for table in tables(found)]
    assert sum("Bounds" in title for title in titles) == (
        2 if found.client_lr > found.smallest_allowed_lr else 1
    )


def test_the_rows_of_a_run_have_a_line_and_a_table(with_rows: Diagnosis) -> None:
    text = as_text(with_rows, [])
    assert "ClusterFedVARP, its rows" in text
    assert "Spread of the updates, by parameter" in text


def test_a_sample_states_its_errors(config: Path) -> None:
    text = as_text(diagnose(config, sample=8, updates=False, progress=False), [])
    assert "8 of 20 clients" in text
    assert " to " in next(line for line in text.splitlines() if line.strip().startswith("σ_g²"))
