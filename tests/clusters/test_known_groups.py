"""Clusters by labels and by metadata."""

from __future__ import annotations

import pytest
import torch

from fedvarp.clusters import by_labels, by_metadata
from fedvarp.data import from_tensors, quadratics
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from small_problems import same_partition


def test_clients_with_the_same_value_share_a_cluster_numbered_as_they_appear() -> None:
    regions = ["north", "south", "north", None, ("a", 1), "south"]
    found = by_metadata(regions)
    assert found.tolist() == [0, 1, 0, 2, 3, 1]
    assert found.dtype == torch.int64


def test_values_in_a_tensor_are_compared_as_numbers() -> None:
    assert by_metadata(torch.tensor([7, 2, 7, 0])).tolist() == [0, 1, 0, 2]


def test_metadata_are_natural_clusters_of_a_data_set() -> None:
    part = (torch.zeros(1, 2), torch.zeros(1, 2))
    data = from_tensors([part] * 3, cluster_of=by_metadata(["phone", "laptop", "phone"]))
    assert data.num_clusters == 2


def test_label_sets_are_the_papers_clusters() -> None:
    dataset = build(load_settings("digits")).dataset
    assert dataset.cluster_of is not None
    assert same_partition(by_labels(dataset), dataset.cluster_of)


def test_label_sets_are_numbered_in_their_order_and_ignore_how_often_a_label_comes() -> None:
    x = torch.zeros(3, 1)
    labels = [[2, 2, 2], [0, 1, 0], [1, 1, 0], [0, 0, 0]]
    data = from_tensors([(x, torch.tensor(y)) for y in labels], num_classes=3)
    assert by_labels(data).tolist() == [2, 1, 1, 0]  # (0,) < (0, 1) < (2,)


def test_data_without_classes_has_no_label_sets() -> None:
    with pytest.raises(ValueError, match=r"no classes.*auto:K"):
        by_labels(quadratics())
