"""Settings that cannot be meant are refused with the way out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedvarp import ServerMomentum
from fedvarp.flower import ClusterFedVARP, FedVARP, FedVARPMixed


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_clients": 0}, "num_clients = 0 should be at least 1"),
        ({"clients_per_round": 0}, "clients_per_round = 0"),
        ({"fraction_train": -0.1}, "fraction_train = -0.1"),
        ({"min_train_nodes": 0}, "min_train_nodes = 0"),
        ({"max_failed_rounds": 0}, "max_failed_rounds = 0"),
        ({"max_row_age": 0}, "max_row_age = 0"),
        ({"weighted_by_key": ""}, "weighted_by_key = ''"),
        ({"fraction_evaluate": 1.5}, "fraction_evaluate = 1.5"),
        ({"client_lr": math.nan}, "client_lr = nan"),
        ({"server_lr": 0.0}, "server_lr = 0.0"),
        ({"server_lr": math.inf}, "server_lr = inf"),
        ({"client_lr": math.inf}, "client_lr = inf"),
        ({"min_available_nodes": 0}, "min_available_nodes = 0"),
        ({"where": "tape"}, "'memory' or 'disk'"),
        ({"where": "disk"}, "give checkpoint="),
        ({"codec": "int4"}, "No codec"),
        ({"identity": ""}, "identity = ''"),
        ({"when_offline": "wait"}, "'replace' or 'fewer'"),
        ({"min_replies": 0}, "min_replies = 0"),
        ({"min_replies": 3, "clients_per_round": 2}, "can never be reached"),
        ({"late_replies": -1}, "late_replies = -1"),
        ({"max_update_norm": 0.0}, "max_update_norm = 0.0"),
        ({"sampling": "weighted"}, "'uniform', 'stratified', 'round_robin' or 'importance'"),
        ({"uniform_share": 0.5}, 'goes with "importance"'),
        ({"sampling": "importance", "uniform_share": 0.0}, "uniform_share = 0.0"),
        ({"sampling": "stratified"}, "give strata="),
        ({"strata": {"a": 1}}, 'strata go with sampling="stratified"'),
        ({"sampling": "stratified", "strata": 3}, "strata = 3"),
        ({"server_lr": 0.5, "server_optimizer": ServerMomentum()}, "not both"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedVARP(**settings)


@pytest.mark.parametrize(("clusters", "message"), [("auto:3", "simulations"), ({}, "no client")])
def test_clusters_that_nobody_is_in_are_refused(clusters: Any, message: str) -> None:
    for strategy in (ClusterFedVARP, FedVARPMixed):
        with pytest.raises(ValueError, match=message):
            strategy(clusters=clusters)
