"""How unequally clients fare, against sums done by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedvarp.clients.fairness import fairness

EVERYONE = torch.arange(20)
EQUAL = torch.ones(20, dtype=torch.float64)


def test_the_worst_tenth_are_the_lowest_accuracies_and_the_highest_losses() -> None:
    each = [float(i) for i in range(20)]
    found = fairness({"train_accuracy": each, "train_loss": each}, EVERYONE, None, EQUAL, "summary")
    assert found["train_accuracy_worst_decile"] == (0 + 1) / 2
    assert found["train_loss_worst_decile"] == (18 + 19) / 2
    assert found["train_accuracy_spread"] == pytest.approx(math.sqrt((20**2 - 1) / 12))
    assert found["train_accuracy"] == 9.5
    assert "by_client" not in found
    assert "by_cluster" not in found


def test_clusters_are_means_over_their_clients() -> None:
    cluster_of = torch.tensor([0, 0, 2, 2])  # nobody is in cluster 1
    values = {"train_accuracy": [0.0, 1.0, 0.75, 0.25], "train_loss": [4.0, 0.0, 5.0, 1.0]}
    weights = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    found = fairness(values, torch.arange(4), cluster_of, weights, "all")
    assert found["by_cluster"] == {"train_accuracy": [0.5, None, 0.5], "train_loss": [2, None, 3]}
    assert found["train_loss_worst_cluster"] == 3
    assert found["train_accuracy"] == 0.125, "by the weights of the objective"
    assert found["by_client"]["client"] == [0, 1, 2, 3]
    assert found["by_client"]["train_loss"] == [4, 0, 5, 1]


def test_clients_without_a_value_are_left_out_but_a_loss_that_is_not_finite_is_the_worst() -> None:
    nan, weights = math.nan, torch.ones(3, dtype=torch.float64)
    values = {"train_auc": [nan, 0.2, 0.8], "train_loss": [nan, 1.0, 2.0], "train_f1": [nan] * 3}
    found = fairness(values, torch.arange(3), None, weights, "all")
    assert found["train_auc"] == 0.5
    assert found["train_auc_worst_decile"] == 0.2
    assert found["train_loss_worst_decile"] == math.inf
    assert "train_f1" not in found, "nobody has one"
    assert found["by_client"]["train_auc"] == [None, 0.2, 0.8], "as JSON can hold it"
