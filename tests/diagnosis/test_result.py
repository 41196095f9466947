"""What follows from the constants measured, and what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path

from fedvarp.analysis.report.diagnosed import DIAGNOSIS_FILE
from fedvarp.diagnosis import Diagnosis, write_json
from fedvarp.theory import Problem, error_terms


def test_the_bounds_are_the_theorems_at_the_measured_constants(found: Diagnosis) -> None:
    m = found.measured
    assert m.sigma_K2 is not None
    problem = Problem(
        num_clients=20, clients_per_round=4, num_steps=4, smoothness=m.smoothness.value,
        sigma2=m.sigma2.value, sigma_g2=m.sigma_g2.value, sigma_K2=m.sigma_K2.value,
        initial_gap=m.loss.value, initial_gradient_norm2=m.gradient_norm2.value, num_clusters=5,
    )  # fmt: skip
    expected = error_terms("cluster_fedvarp", problem, rounds=4, client_lr=0.001, server_lr=1.0)
    assert found.terms(found.client_lr)["cluster_fedvarp"] == expected
    assert found.algorithms == ["fedavg", "cluster_fedvarp", "fedvarp"]
    assert found.round == 0


def test_allowed_rates_meet_every_condition_and_no_larger_one_does(found: Diagnosis) -> None:
    kept = found.as_json()
    for name in found.algorithms:
        tightest = min(c["largest_client_lr"] for c in kept["conditions"][name])
        assert kept["allowed_client_lr"][name] == tightest
    assert found.smallest_allowed_lr == min(found.allowed_lr.values())


def test_json_holds_all_of_it_and_no_infinity(found: Diagnosis, tmp_path: Path) -> None:
    write_json(found, ["Do this."], tmp_path / DIAGNOSIS_FILE)
    kept = json.loads((tmp_path / DIAGNOSIS_FILE).read_text())
    assert kept["advice"] == ["Do this."]
    assert kept["measured"]["sigma_g2"]["value"] == found.measured.sigma_g2.value
    assert kept["step_errors"]["fedavg"]["total"] == found.step_errors["fedavg"].total
    assert [point["num_clusters"] for point in kept["curve"]] == [1, 2, 4, 5, 8, 16, 20]
    # 20 rows of 10 float32 numbers and a sum of 10 float64 ones; int8 has a scale of 4 bytes a row.
    assert kept["table_bytes"]["20"]["float32"] == 20 * 40 + 80
    assert kept["table_bytes"]["20"]["int8"] == 20 * 14 + 80


def test_json_holds_the_errors_with_the_rows_of_a_run(with_rows: Diagnosis) -> None:
    kept = with_rows.as_json()["step_errors_with_rows"]
    assert kept["algorithm"] == "cluster_fedvarp"
    assert kept["total"] > 0
