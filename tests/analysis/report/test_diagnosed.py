"""The section about diagnosed runs, from a diagnosis.json written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedvarp.analysis.groups import group_runs
from fedvarp.analysis.report.diagnosed import DIAGNOSIS_FILE, ReadDiagnosis, read_diagnoses
from fedvarp.analysis.runs import read_runs
from fedvarp.analysis.styles import CAUSES
from fedvarp.analysis.templating import render
from fedvarp.runs.errors import RunError
from hostile_json import any_json
from some_runs import write_run


def error(noise: float, absence: float, drift: float) -> dict[str, Any]:
    return dict(zip(CAUSES, (noise, absence, drift), strict=True))


FOUND: dict[str, Any] = {
    "round": 7,
    "client_lr": 0.25,
    "measured": {"measured_clients": 50, "num_clients": 1000},
    "step_errors": {"fedavg": error(1, 2, 1), "fedvarp": error(1, -0.5, 1)},
    "step_errors_with_rows": error(1, 1, 1) | {"algorithm": "fedvarp"},
    "allowed_client_lr": {"fedavg": 0.02, "fedvarp": 0.01},
    "terms_at_allowed_lr": {"fedavg": error(0, 0, 0) | {"exact": False}},
    "curve": [{"num_clusters": 2, "sigma_K2": 0.5, "share_removed": 0.75}],
    "table_bytes": {"2": {"float32": 8000, "int8": 2000}},
    "advice": ["Do this."],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [0.1, 0.2])


def diagnoses(run: Path) -> list[ReadDiagnosis]:
    return read_diagnoses(group_runs(read_runs([run])[0]))


def test_a_run_that_was_not_diagnosed_has_none(run: Path) -> None:
    assert diagnoses(run) == []


def test_bars_and_tables(run: Path) -> None:
    (run / DIAGNOSIS_FILE).write_text(json.dumps(FOUND))
    (found,) = diagnoses(run)
    assert "after round 7 over 50 of 1,000 clients" in found.about
    measured, bounds = found.charts
    assert [label for label, _ in measured.bars] == ["FedAvg", "FedVARP", "FedVARP, its rows"]
    # FedAvg's error of 4 is the longest: 460 pixels beside 180 for the names, 115 for each unit.
    (_, fedavg), (_, fedvarp), _ = measured.bars
    assert [(one.left, one.width) for one in fedavg] == [(180, 115), (295, 230), (525, 115)]
    assert [one.width for one in fedvarp] == [115, 0, 115]  # what is below zero is not drawn
    assert measured.table.rows[1] == ("FedVARP", "1", "-0.5", "1", "2")
    assert "0.01" in bounds.table.title  # the smallest of the rates that are allowed
    assert bounds.table.rows == [("FedAvg (approx.)", "0", "0", "0", "0")]
    assert [one.width for one in bounds.bars[0][1]] == [0, 0, 0]
    assert found.clusters is not None
    assert found.clusters.rows == [("2", "0.5", "75%", "8 kB", "2 kB")]
    assert found.advice == ["Do this."]


def test_bounds_alone(run: Path) -> None:
    told = FOUND | {"step_errors": {}, "step_errors_with_rows": None, "curve": []}
    (run / DIAGNOSIS_FILE).write_text(json.dumps(told))
    (found,) = diagnoses(run)
    assert len(found.charts) == 1
    assert found.clusters is None


@pytest.mark.parametrize("content", [b"{", b"\xff"])
def test_a_damaged_file_is_named_with_the_way_out(run: Path, content: bytes) -> None:
    (run / DIAGNOSIS_FILE).write_bytes(content)
    with pytest.raises(RunError, match=r"diagnosis\.json is damaged.*diagnose .*anew"):
        diagnoses(run)


HUGE = 10**400  # which JSON can hold and no float


@pytest.mark.parametrize(
    "wrong",
    [
        {"advice": 5},
        {"advice": None},
        {"advice": "Do this."},
        {"advice": [["Do this."]]},
        {"client_lr": HUGE},
        {"allowed_client_lr": {"fedavg": HUGE}},
        {"step_errors": {"fedavg": error(HUGE, 0, 0)}},
        {"terms_at_allowed_lr": {"fedavg": error(HUGE, 0, 0)}},
        {"curve": [{"num_clusters": 2, "sigma_K2": HUGE, "share_removed": 0.75}]},
        {"table_bytes": {"2": {"float32": HUGE, "int8": 2000}}},
    ],
)
def test_what_no_diagnosis_writes_is_damage(run: Path, wrong: dict[str, Any]) -> None:
    (run / DIAGNOSIS_FILE).write_text(json.dumps(FOUND | wrong))
    with pytest.raises(RunError, match=r"diagnosis\.json is damaged.*diagnose .*anew"):
        diagnoses(run)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(name=st.sampled_from(sorted({*FOUND, "remedies", "trust"})), value=any_json)
def test_whatever_it_holds_it_is_shown_or_named_as_damaged(
    run: Path, name: str, value: object
) -> None:
    (run / DIAGNOSIS_FILE).write_text(json.dumps(FOUND | {name: value}))
    said = DIAGNOSIS_FILE
    try:
        for found in diagnoses(run):
            render("diagnosis.html", diagnosis=found, causes=CAUSES)
    except RunError as damage:
        said = str(damage)
    assert DIAGNOSIS_FILE in said
