"""The report of runs that were diagnosed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedvarp.analysis import read_runs
from fedvarp.analysis.report.diagnosed import DIAGNOSIS_FILE
from fedvarp.analysis.styles import CAUSES
from fedvarp.diagnosis import diagnose, write_json
from fedvarp.runs.errors import RunError


def test_the_report_has_a_section_for_runs_that_were_diagnosed(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")
    from fedvarp.analysis.report import write_report

    file = run / DIAGNOSIS_FILE
    file.unlink(missing_ok=True)
    before = write_report([run], tmp_path / "before.html").read_text()
    assert "What holds training back" not in before
    after = diagnose(run, progress=False)
    write_json(after, ["<b>Bold</b> advice."], file)
    page = write_report([run], tmp_path / "after.html").read_text()
    assert "What holds training back" in page
    assert "&lt;b&gt;Bold&lt;/b&gt; advice." in page
    section = page[page.index("diagnosis-title") : page.index("settings-title")]
    # Three algorithms twice, the rows of the run once; and the keys of both figures.
    assert section.count("<rect") == (2 * 3 + 1) * len(CAUSES) + 2 * len(CAUSES)
    assert "FedVARP, its rows" in section
    assert "How far rows are to be trusted" in section
    assert after.trust is not None
    assert f"{after.trust['measured']['whole']['own']:.2f}" in section
    assert f"{after.step_errors['fedavg'].client_drift:.3g}" in section
    assert "(approx.)" not in section
    kept = json.loads(file.read_text())
    kept["terms_at_allowed_lr"]["cluster_fedvarp"]["exact"] = False  # clusters of unequal sizes
    file.write_text(json.dumps(kept))
    unequal = write_report([run], tmp_path / "unequal.html").read_text()
    assert unequal.count("ClusterFedVARP (approx.)") == 1
    file.write_text("{")
    with pytest.raises(RunError, match="writes it anew"):
        write_report([run], tmp_path / "again.html")
    file.unlink()
    assert len(read_runs([run])[0]) == 1


def test_nothing_in_a_diagnosis_becomes_part_of_the_page(run: Path, tmp_path: Path) -> None:
    """Whoever sends a run could have written into its diagnosis.json what they like."""
    pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")
    from fedvarp.analysis.report import write_report

    file, evil = run / DIAGNOSIS_FILE, "<marquee onload=x>"
    write_json(diagnose(run, progress=False), ["Advice."], file)
    honest = json.loads(file.read_text())

    def with_evil_words(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: with_evil_words(part) for name, part in value.items()}
        if isinstance(value, list):
            return [with_evil_words(part) for part in value]
        return evil if isinstance(value, str) else value

    file.write_text(json.dumps({**with_evil_words(honest), "round": evil}))
    page = write_report([run], tmp_path / "evil.html").read_text()
    assert "<marquee" not in page
    assert "&lt;marquee" in page
    cases: list[Any] = [{}, [], {**honest, "client_lr": evil}, {**honest, "remedies": [3]}]
    for broken in cases:
        file.write_text(json.dumps(broken))
        with pytest.raises(RunError, match=r"damaged.*writes it anew"):
            write_report([run], tmp_path / "broken.html")
    file.unlink()
