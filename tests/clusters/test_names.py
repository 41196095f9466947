"""What settings call clusters, and what the names stand for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from fedvarp import ClusteredTable
from fedvarp.clusters.names import clusters_by_name
from fedvarp.data import quadratics
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.settings.problems import SettingsError
from fedvarp.tables.settings import CLUSTERS_PATTERN
from small_problems import planted_clusters, same_partition


def test_own_clusters_are_the_data_sets() -> None:
    data = planted_clusters()
    for name in (None, "own"):
        plan = clusters_by_name(name, None, data)
        assert plan.at_first is data.cluster_of
        assert plan.changing is None


def test_labels_are_label_sets() -> None:
    dataset = build(load_settings("digits")).dataset
    found = clusters_by_name("labels", None, dataset).at_first
    assert found is not None
    assert dataset.cluster_of is not None
    assert same_partition(found, dataset.cluster_of)


def test_clusters_may_be_given_themselves() -> None:
    given = [client % 4 for client in range(30)]
    found = clusters_by_name(given, None, planted_clusters()).at_first
    assert found is not None
    assert found.tolist() == given


@pytest.mark.parametrize("given", [[-1] * 30, [10**12, *[0] * 29], [0, 1]])
def test_clusters_that_are_given_are_numbered_from_zero(given: list[int]) -> None:
    with pytest.raises(ValueError, match="clusters"):
        clusters_by_name(given, None, planted_clusters())


@pytest.mark.parametrize(
    ("name", "every", "of_updates", "changing"),
    [
        ("auto:7", None, False, "auto:7 of gradients, every None rounds"),
        ("auto:7:updates", 5, True, "auto:7 of updates, every 5 rounds"),
    ],
)
def test_auto_begins_with_any_k_clusters(
    name: str, every: int | None, of_updates: bool, changing: str
) -> None:
    plan = clusters_by_name(name, every, planted_clusters())
    assert plan.at_first is not None
    assert sorted(set(plan.at_first.tolist())) == list(range(7))
    assert (plan.num_auto, plan.of_updates, plan.every) == (7, of_updates, every)
    assert plan.changing == changing


def test_names_and_clusters_that_do_not_fit_are_refused() -> None:
    data = planted_clusters()
    with pytest.raises(ValueError, match=r"30 clients cannot form 31 .* from 1 to 30"):
        clusters_by_name("auto:31", None, data)
    with pytest.raises(ValueError, match=r"'kmeans'.*auto:K"):
        clusters_by_name("kmeans", None, data)
    for name, every in (([0] * 30, 3), ("labels", 3), ("auto:3", 0)):
        with pytest.raises(ValueError, match=f"recluster_every={every}.*auto:K"):
            clusters_by_name(name, every, quadratics())


def test_settings_reach_the_table() -> None:
    told = [
        "algorithm=cluster_fedvarp",
        "table.clusters=auto:7",
        "table.recluster_every=10",
        "rounds=2",
    ]
    table = build(load_settings("digits", told)).run().server.aggregator.table
    assert isinstance(table, ClusteredTable)
    assert table.rows.num_clients == 7
    assert len(set(table.cluster_of.tolist())) == 7


def test_settings_that_name_no_clusters_leave_the_name_out() -> None:
    assert "clusters" not in load_settings("digits").as_toml()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["table.clusters=auto"], "clusters"),
        (["table.clusters=auto:0"], "clusters"),
        (["table.recluster_every=5"], r"recluster_every.*auto:K"),
        (["table.clusters=labels", "table.recluster_every=5"], r"recluster_every.*auto:K"),
    ],
)
def test_wrong_settings_are_refused(wrong: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings("digits", wrong)


@pytest.mark.parametrize("name", ["own", "labels", "auto:1", "auto:20:updates"])
def test_the_pattern_knows_every_name(name: str) -> None:
    assert re.match(CLUSTERS_PATTERN, name)


def test_names_are_known_without_torch() -> None:
    """Settings are checked before anything heavy is loaded."""
    code = "import sys, fedvarp.clusters.names; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
