"""What follows from the constants measured, and what is kept of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fedvarp.analysis.report.diagnosed import DIAGNOSIS_FILE
from fedvarp.diagnosis import Diagnosis, as_json, diagnose, rank_remedies, write_json
from fedvarp.experiments.files import load_settings
from fedvarp.theory import Problem, error_terms
from fedvarp.theory.step_errors import CAUSES


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
    kept = as_json(found, [])
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
    interval = kept["step_errors"]["fedavg"]["intervals"]["total"]
    assert interval["low"] <= kept["step_errors"]["fedavg"]["total"] <= interval["high"]
    left = [remedy["total"]["value"] for remedy in kept["remedies"]]
    assert left == sorted(left)
    assert [point["num_clusters"] for point in kept["curve"]] == [1, 2, 4, 5, 8, 16, 20]
    # 20 rows of 10 float32 numbers and a sum of 10 float64 ones; int8 has a scale of 4 bytes a row.
    assert kept["table_bytes"]["20"]["float32"] == 20 * 40 + 80
    assert kept["table_bytes"]["20"]["int8"] == 20 * 14 + 80


def test_a_total_is_known_no_worse_than_its_parts(found: Diagnosis, config: Path) -> None:
    """Also from three clients, where the logarithm would stretch the interval of the sum."""
    few = diagnose(config, ["client_lr=0.3"], sample=3, progress=False)
    for one in (found, few):
        for algorithm in one.algorithms:
            parts = [one.interval(cause, algorithm) for cause in CAUSES]
            total = one.interval("total", algorithm)
            assert sum(part.low for part in parts) <= total.low <= total.value
            assert total.value <= total.high <= sum(part.high for part in parts)


def test_json_holds_the_errors_with_the_rows_of_a_run(with_rows: Diagnosis) -> None:
    kept = as_json(with_rows, [])["step_errors_with_rows"]
    assert kept["algorithm"] == "cluster_fedvarp"
    assert kept["total"] > 0


def test_remedies_are_ranked_with_their_costs(found: Diagnosis, with_rows: Diagnosis) -> None:
    by_name = {remedy.name: remedy for remedy in rank_remedies(found)}
    assert by_name["FedVARP (now)"].is_baseline
    assert by_name["FedAvg"].table_bytes == 0
    assert by_name["FedVARP, 8 clients a round"].round_bytes == 2 * 8 * 40  # 10 float32 both ways
    assert by_name["FedAvg"].round_bytes == 2 * 4 * 40
    assert by_name["ClusterFedVARP, the 5 measured"].table_bytes == 5 * 40 + 80
    planted, found_again = (
        by_name[f"ClusterFedVARP, {which}"] for which in ("the 5 measured", "5 by k-means")
    )
    assert found_again.total.value == pytest.approx(planted.total.value, rel=1e-3)
    assert found_again.setting == "algorithm=cluster_fedvarp --set table.clusters=auto:5"
    with_own = {remedy.name: remedy for remedy in rank_remedies(with_rows)}
    now = with_own["ClusterFedVARP, its rows (now)"]
    assert with_rows.step_errors_with_rows is not None
    assert now.total.value == with_rows.step_errors_with_rows.total
    # No setting has a part of shared rows.
    assert not any("its rows, β" in name for name in with_own)


def test_settings_of_remedies_can_be_pasted_after_set(
    found: Diagnosis, config: Path, run: Path
) -> None:
    """Each is what is read by --set; local training then is what was measured."""
    changed = {
        remedy.name: load_settings(config, remedy.setting.split(" --set "))
        for remedy in rank_remedies(found)
        if remedy.setting
    }
    larger = changed["FedVARP, twice the batch"].local_sgd
    assert larger.batch_size == 10
    assert larger.steps == found.measured.num_steps == 4
    assert changed["FedVARP, half the rate"].local_sgd.lr == 0.0005
    by_kmeans = changed["ClusterFedVARP, 5 by k-means"]
    assert (by_kmeans.algorithm, by_kmeans.table.clusters) == ("cluster_fedvarp", "auto:5")
    # Late in a run with a schedule the base rate is halved: half of what is left of it would
    # decay once more.
    told = ["local_sgd.schedule.name=exponential", "local_sgd.schedule.decay=0.5"]
    late = diagnose(run, told, progress=False)
    assert late.client_lr == pytest.approx(0.05 * 0.5**4)
    half = next(one for one in rank_remedies(late) if one.name.endswith("half the rate"))
    assert half.setting == "client_lr=0.025"


def test_twice_the_batch_takes_about_as_many_steps_where_clients_take_unequally_many(
    found: Diagnosis,
) -> None:
    measured = dataclasses.replace(found.measured, equal_steps=False)
    by_name = {
        one.name: one for one in rank_remedies(dataclasses.replace(found, measured=measured))
    }
    larger = by_name["FedVARP, twice the batch"]
    assert larger.setting == "local_sgd.batch_size=10 --set local_sgd.epochs=4"
