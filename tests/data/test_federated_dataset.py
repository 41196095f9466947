"""What a federated data set promises, and what it refuses."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvarp.data import DataError, FederatedDataset


def load_two(client: int) -> tuple[Tensor, Tensor]:
    return torch.full((2, 3), float(client)), torch.tensor([0, 1])


def test_client_returns_what_load_returns_for_any_integer_type() -> None:
    data = FederatedDataset(load=load_two, num_clients=3)
    for index in (1, torch.tensor(1), np.int64(1)):
        x, y = data.client(index)  # type: ignore[arg-type]
        assert x.tolist() == [[1.0] * 3] * 2
        assert y.tolist() == [0, 1]


@pytest.mark.parametrize("index", [-1, 3, 10**9])
def test_a_client_out_of_range_is_refused_with_the_range(index: int) -> None:
    data = FederatedDataset(load=load_two, num_clients=3)
    with pytest.raises(IndexError, match=rf"no client {index}.*3 clients, numbered 0 to 2"):
        data.client(index)


def test_a_fractional_client_is_refused() -> None:
    with pytest.raises(TypeError, match=r"whole number, not 1\.5.*0 to 2"):
        FederatedDataset(load=load_two, num_clients=3).client(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ((torch.zeros(0, 2), torch.zeros(0)), r"Client 1 \(Grace\) has no examples"),
        ((torch.zeros(3, 2), torch.zeros(2)), r"Client 1 \(Grace\) has 3 inputs x but 2 targets"),
        (torch.zeros(2, 2), r"Client 1 \(Grace\) must be a pair of tensors"),
        ((torch.tensor(1.0), torch.tensor(1.0)), r"one row an example"),
    ],
)
def test_what_load_returns_is_checked(examples: object, message: str) -> None:
    data = FederatedDataset(
        load=lambda client: examples,  # type: ignore[arg-type, return-value]
        num_clients=2,
        client_names=["Ada", "Grace"],
    )
    with pytest.raises(DataError, match=message):
        data.client(1)


def test_empty_clients_are_named_at_construction() -> None:
    counts = torch.ones(30, dtype=torch.int64)
    counts[[3, 17]] = 0
    with pytest.raises(ValueError, match=r"2 of 30 clients have no examples: 3, 17\. .*Leave"):
        FederatedDataset(load=load_two, num_clients=30, num_examples=counts)


@pytest.mark.parametrize(
    ("cluster_of", "message"),
    [
        (torch.tensor([0, 2, 2]), r"2 numbers from 0 to 2.*return_inverse"),
        (torch.tensor([1, 2, 2]), r"2 numbers from 1 to 2"),
        (torch.tensor([-1, 0, 1]), r"3 numbers from -1 to 1"),
        (torch.tensor([0, 1]), r"shape \(3,\)"),
        (torch.tensor([0.0, 1.5, 1.0]), r"1.5 for client 1.*whole"),
    ],
)
def test_clusters_are_numbered_without_gaps(cluster_of: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FederatedDataset(load=load_two, num_clients=3, cluster_of=cluster_of)


def test_the_remedy_in_the_message_works() -> None:
    renumbered = torch.unique(torch.tensor([7, 2, 7]), return_inverse=True)[1]
    data = FederatedDataset(load=load_two, num_clients=3, cluster_of=renumbered)
    assert data.num_clusters == 2


def test_names_must_match_their_number() -> None:
    with pytest.raises(ValueError, match="2 client_names for 3 clients"):
        FederatedDataset(load=load_two, num_clients=3, client_names=["a", "b"])
    with pytest.raises(ValueError, match="1 cluster_names for 2 clusters"):
        FederatedDataset(
            load=load_two, num_clients=2, cluster_of=torch.tensor([0, 1]), cluster_names=["a"]
        )
    with pytest.raises(ValueError, match="1 cluster_names for no clusters"):
        FederatedDataset(load=load_two, num_clients=2, cluster_names=["a"])


def test_default_names_are_a_sequence_that_holds_no_strings() -> None:
    names = FederatedDataset(load=load_two, num_clients=10**7).client_names
    assert len(names) == 10**7
    assert names[-1] == "client 9999999"
    assert names[1:4] == ["client 1", "client 2", "client 3"]
    with pytest.raises(IndexError):
        names[10**7]


def test_no_clients_and_a_broken_test_set_are_refused() -> None:
    with pytest.raises(ValueError, match="num_clients = 0"):
        FederatedDataset(load=load_two, num_clients=0)
    with pytest.raises(DataError, match="test set has 1 inputs x but 2 targets"):
        FederatedDataset(load=load_two, num_clients=1, test=(torch.zeros(1, 2), torch.zeros(2)))


def test_repr_says_what_is_known() -> None:
    data = FederatedDataset(
        load=load_two,
        num_clients=2,
        num_examples=torch.tensor([1200, 34]),
        test=load_two(0),
        cluster_of=torch.tensor([0, 1]),
        num_classes=10,
    )
    assert repr(data) == (
        "FederatedDataset(2 clients, 1,234 examples, 10 classes, 2 clusters, 2 test examples)"
    )


def test_it_can_be_sent_to_another_process() -> None:
    data = FederatedDataset(load=load_two, num_clients=2, cluster_of=torch.tensor([0, 1]))
    copy = pickle.loads(pickle.dumps(data))  # noqa: S301 - our own bytes
    assert copy.client(1)[0].equal(data.client(1)[0])
    assert copy.client_names[1] == "client 1"


def test_the_fingerprint_follows_the_data() -> None:
    def data(value: float = 0.0, clusters: list[int] | None = None) -> FederatedDataset:
        x, y = torch.full((2, 3), value), torch.tensor([0, 1])
        return FederatedDataset(
            load=lambda i: (x + i, y),
            num_clients=3,
            cluster_of=None if clusters is None else torch.tensor(clusters),
        )

    assert data().fingerprint() == data().fingerprint()
    different = [data(), data(1.0), data(clusters=[0, 0, 1]), data(clusters=[0, 1, 1])]
    assert len({one.fingerprint() for one in different}) == 4


def test_the_largest_clients_come_first_and_equal_ones_stay_in_order() -> None:
    sizes = torch.tensor([4, 12, 7, 12])
    data = FederatedDataset(load=load_two, num_clients=4, num_examples=sizes)
    assert data.largest_first([0, 3, 1, 2]) == [3, 1, 2, 0]
    unknown = FederatedDataset(load=load_two, num_clients=4)
    assert unknown.largest_first([0, 3, 1, 2]) == [0, 3, 1, 2]
