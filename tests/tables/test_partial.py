"""Rows of part of the model."""

from __future__ import annotations

import pytest
import torch

from fedvarp import FedAvg, FedVARP, MemoryTable, PartialTable, RoundUpdates, SettingsError, stream
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.models import LeNet5
from fedvarp.server.flat_model import slots_of
from fedvarp.tables.partial import numbers_kept

PARAMETERS = {
    "conv.weight": slice(0, 4),
    "fc.weight": slice(4, 7),
    "head.weight": slice(7, 9),
    "head.bias": slice(9, 10),
}


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        (["last_layer"], [7, 8, 9]),
        (["head.bias"], [9]),
        (["*.weight"], [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (["head.bias", "fc.*"], [4, 5, 6, 9]),
        (["all", "head.bias"], list(range(10))),
    ],
)
def test_what_is_kept_goes_by_the_names_of_parameters(rows: list[str], kept: list[int]) -> None:
    assert numbers_kept(rows, PARAMETERS).tolist() == kept


def test_the_last_layer_of_a_model_without_modules_is_its_last_parameter() -> None:
    assert numbers_kept(["last_layer"], {"a": slice(0, 2), "b": slice(2, 5)}).tolist() == [2, 3, 4]


def test_a_pattern_that_matches_nothing_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"'fc9.*'.*no parameter.*conv\.weight"):
        numbers_kept(["head.*", "fc9.*"], PARAMETERS)


def test_elsewhere_it_is_fedavg_and_there_it_is_fedvarp() -> None:
    N, D, kept = 5, 10, torch.tensor([1, 7, 8])
    part = FedVARP(PartialTable(MemoryTable(N, len(kept)), kept, D))
    whole, none = FedVARP(MemoryTable(N, D)), FedAvg()
    elsewhere = torch.ones(D, dtype=torch.bool)
    elsewhere[kept] = False
    for t in range(6):
        draws = stream(t, "partial")
        S = torch.randperm(N, generator=draws)[:2].sort().values
        ones = torch.ones(2, dtype=torch.int64)
        updates = RoundUpdates(S, torch.randn(2, D, generator=draws), ones, ones, scale=1.0)
        v = part.aggregate(updates)
        assert torch.equal(v[kept], whole.aggregate(updates)[kept])
        assert torch.equal(v[elsewhere], none.aggregate(updates)[elsewhere])


def test_the_last_layer_of_lenet_5_takes_a_seventieth_of_the_memory() -> None:
    """850 of 62,006 numbers: 84 × 10 weights and 10 biases."""
    slots = slots_of(LeNet5())
    settings = TableSettings(
        num_clients=250,
        dim=slots[-1].stop,
        parameters={slot.name: slice(slot.start, slot.stop) for slot in slots},
        kept=["last_layer"],
    )
    table = make_algorithm("fedvarp", settings).table
    assert table is not None
    assert (table.dim, table.tables()[0].dim) == (62_006, 850)
    table.put(torch.arange(250), torch.ones(250, 62_006))
    assert table.num_bytes == 250 * 850 * 4 + 850 * 8


def test_mifa_needs_whole_rows() -> None:
    settings = TableSettings(4, 10, parameters=PARAMETERS, kept=["last_layer"])
    with pytest.raises(SettingsError, match=r"mifa.*hardly trained.*leave out rows"):
        make_algorithm("mifa", settings)
