"""Updates are shortened to a multiple of the running median norm, whatever the algorithm."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from torch import Tensor

import registry
from fedvarp import (
    Aggregator,
    Checkpoint,
    CheckpointError,
    Clipped,
    FedAvg,
    FedProx,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Scaffold,
    Server,
    ServerSGD,
    SettingsError,
    Table,
    stream,
)
from fedvarp.algorithms import TableSettings
from fedvarp.algorithms.clipped import WINDOW
from fedvarp.algorithms.registry import make_algorithm
from small_federation import run


def updates_of(lengths: list[float], first: int = 0, dim: int = 1) -> RoundUpdates:
    """Of clients `first` and on, each of that length and all in one direction."""
    deltas = torch.tensor(lengths).unsqueeze(1).expand(-1, dim) / math.sqrt(dim)
    ones = torch.ones(len(lengths), dtype=torch.int64)
    return RoundUpdates(torch.arange(first, first + len(lengths)), deltas, ones, ones, scale=1.0)


def test_v_and_the_row_are_both_bounded() -> None:
    table = MemoryTable(10, 1)
    clipped = Clipped(FedVARP(table), multiple=3.0)
    clipped.aggregate(updates_of([1.0, 2.0, 3.0]))  # ȳ = 6/10 afterwards
    long = updates_of([1000.0], first=3)
    assert clipped.admit(long).shortened == {3}
    v = clipped.aggregate(long)
    assert v.tolist() == [pytest.approx(6 / 10 + 6)]  # 3 · median(1, 2, 3)
    assert table.get(torch.tensor([3])).tolist() == [[6.0]]


def test_the_limit_is_that_of_a_plain_loop() -> None:
    """The median of the last hundred norms that were let through, before the round's own."""
    clipped, generator = Clipped(FedAvg(), multiple=2.0), stream(0, "norms")
    let_through: list[float] = []
    for t in range(90):
        lengths = torch.randn(3, generator=generator).exp().mul(1.03**t).tolist()
        limit = 2.0 * statistics.median_low(let_through[-100:] or lengths)
        expected = [min(length, limit) for length in lengths]
        admitted = clipped.admit(updates_of(lengths, dim=4))
        assert admitted.shortened == {i for i in range(3) if lengths[i] > limit}
        again = clipped.admit(admitted)
        assert torch.equal(again.deltas, admitted.deltas)
        v = clipped.aggregate(admitted)
        assert float(v.norm()) == pytest.approx(sum(expected) / 3, rel=1e-5)
        let_through += expected
    assert len(clipped.state_dict()["norms"]) == WINDOW == 100


@pytest.mark.parametrize(
    ("first_round", "clipped_then"),
    [
        ([1.0, 100.0], {1}),  # the smaller of the two is taken for their median
        ([100.0], set()),  # alone it is the median
        ([0.0, 0.0, 5.0], set()),  # zeros do not say how long an update is
        ([0.0, 0.0], set()),
    ],
)
def test_the_first_round_is_held_against_itself(
    first_round: list[float], clipped_then: set[int]
) -> None:
    clipped = Clipped(FedAvg())
    assert clipped.admit(updates_of(first_round)).shortened == clipped_then


def test_zeros_never_shut_the_door() -> None:
    clipped = Clipped(FedAvg())
    for _ in range(50):
        clipped.aggregate(updates_of([0.0, 0.0, 0.0]))
    assert clipped.aggregate(updates_of([1.0])).tolist() == [1.0]


@pytest.mark.parametrize("length", [1e-25, 1e17])
def test_norms_neither_vanish_nor_overflow(length: float) -> None:
    """Squares of such numbers are 0 or infinite in float32."""
    clipped = Clipped(FedAvg())
    clipped.aggregate(updates_of([length] * 3, dim=9))
    v = clipped.aggregate(updates_of([length * 10], dim=9))
    assert float(v.double().norm()) == pytest.approx(3 * length, rel=1e-5)


def test_late_replies_are_clipped_and_counted_where_they_are_used() -> None:
    table = MemoryTable(4, 1)
    varp, avg = Clipped(FedVARP(table)), Clipped(FedAvg())
    for clipped in (varp, avg):
        clipped.aggregate(updates_of([1.0]))
    assert varp.receive_late(updates_of([50.0], first=2))
    assert not avg.receive_late(updates_of([50.0], first=2))
    assert table.get(torch.tensor([2])).tolist() == [[3.0]]
    assert varp.state_dict()["norms"].tolist() == [1.0, 3.0]
    assert avg.state_dict()["norms"].tolist() == [1.0]


def test_what_is_refused_by_the_algorithm_leaves_no_trace() -> None:
    clipped = Clipped(FedVARP(MemoryTable(2, 1)))
    with pytest.raises(IndexError):
        clipped.aggregate(updates_of([1.0], first=7))
    assert clipped.state_dict()["norms"].tolist() == []


@registry.every_algorithm
def test_all_else_is_the_algorithms_own(algorithm: str) -> None:
    plain = registry.fresh(algorithm)
    clipped = Clipped(plain)
    everyone = torch.arange(3)
    corrections = plain.corrections(everyone)
    for name in get_type_hints(Aggregator):
        if name not in ("unbiased", "full_is_fedavg", "bounds_lengths"):
            assert getattr(clipped, name) == getattr(plain, name), name
    assert not clipped.unbiased
    assert not clipped.full_is_fedavg
    assert clipped.unwrapped is plain
    assert clipped.table is plain.table
    assert clipped.proximal == plain.proximal
    assert clipped.describe() == {**plain.describe(), "clip_updates": 3.0}
    assert same(clipped.corrections(everyone), corrections)
    assert same(clipped.without_replies(), plain.without_replies())


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


# In a run


def test_a_clean_run_keeps_its_figures_to_the_bit() -> None:
    """Nothing is as long as a thousand medians; the record says that nothing was clipped."""
    plain, clipped = run(rounds=6), run(rounds=6, clip_updates=1000.0)
    assert torch.equal(plain.server.w, clipped.server.w)
    assert all("clipped" not in record for record in plain.metrics)
    own = {"clipped", "server_bytes"}  # the norms take memory too
    for one, other in zip(plain.metrics[1:], clipped.metrics[1:], strict=True):
        assert other["clipped"] == 0
        assert {n: v for n, v in other.items() if n not in own} == {
            n: v for n, v in one.items() if n not in own
        }


def test_a_record_counts_what_was_clipped() -> None:
    result = run(rounds=6, clip_updates=1.0001)
    assert sum(record.get("clipped", 0) for record in result.metrics) > 0
    assert result.algorithm == "FedVARP"


def test_it_is_the_same_run_by_settings_and_by_hand(tmp_path: Path) -> None:
    by_setting = run(rounds=4, clip_updates=1.5)
    by_hand = run(
        rounds=4,
        algorithm=lambda table: Clipped(FedVARP(table.row_per_client()), 1.5),
        out=tmp_path,
    )
    assert torch.equal(by_setting.server.w, by_hand.server.w)
    assert "clip_updates = 1.5" in (tmp_path / "config.toml").read_text()


def test_whether_it_clips_is_part_of_what_a_checkpoint_is(tmp_path: Path) -> None:
    def server(aggregator: Aggregator) -> Server:
        return Server(torch.zeros(1), aggregator, ServerSGD())

    with Checkpoint(tmp_path) as checkpoint:
        clipped = server(Clipped(FedAvg()))
        clipped.receive(updates_of([1.0, 2.0]))
        checkpoint.commit(clipped)
    with Checkpoint(tmp_path) as checkpoint:
        for other in (FedAvg(), Clipped(FedAvg(), 4.0)):
            with pytest.raises(CheckpointError, match=r"clip_updates=3\.0"):
                checkpoint.restore(server(other))
        again = server(Clipped(FedAvg()))
        checkpoint.restore(again)
        assert again.aggregator.state_dict()["norms"].tolist() == [1.0, 2.0]


class Forgetful(FedAvg):
    def state_dict(self) -> dict[str, Tensor]:
        return {"memory": torch.zeros(1)}


def test_an_algorithm_that_cannot_take_back_what_it_gives_is_refused(tmp_path: Path) -> None:
    server = Server(torch.zeros(1), Clipped(Forgetful()), ServerSGD())
    with (
        Checkpoint(tmp_path) as checkpoint,
        pytest.raises(CheckpointError, match=r"Forgetful gives memory.*load_state_dict"),
    ):
        checkpoint.commit(server)


def test_a_round_without_replies_clips_nobody() -> None:
    server = Server(torch.zeros(1), Clipped(FedAvg()), ServerSGD())
    assert server.receive(updates_of([1.0, 100.0])).clipped == (1,)
    assert server.receive(updates_of([math.nan])).clipped == ()


def test_settings_clip_any_algorithm_but_only_once() -> None:
    settings = TableSettings(num_clients=3, dim=2, clip_updates=5.0)
    made = make_algorithm("fedprox(mu=0.5)", settings)
    assert isinstance(made, Clipped)
    assert isinstance(made.unwrapped, FedProx)
    assert made.multiple == 5.0
    with pytest.raises(SettingsError, match="one of the two"):
        make_algorithm(Clipped(Scaffold(MemoryTable(3, 2))), settings)


def test_updates_are_clipped_once() -> None:
    with pytest.raises(ValueError, match="clipped already"):
        Clipped(Clipped(FedAvg()))


@pytest.mark.parametrize("off", [None, False])
def test_false_and_none_switch_it_off(off: bool | None) -> None:
    assert Table(clip_updates=off).clip_updates is None


def test_rows_that_are_means_of_gradients_are_bounded_by_what_they_are() -> None:
    """A client that took ten steps, as all did, says that it took one: c_i would be ten times 1."""
    clipped = Clipped(Scaffold(MemoryTable(4, 1)), multiple=3.0)
    ten = torch.full((2,), 10)
    honest = RoundUpdates(torch.tensor([0, 1]), torch.full((2, 1), 10.0), ten, ten, scale=0.1)
    clipped.aggregate(honest)
    liar = RoundUpdates(torch.tensor([2]), torch.full((1, 1), 10.0), ten[:1] // 10, ten[:1], 0.1)
    table = clipped.table
    assert table is not None
    sent = clipped.corrections(torch.tensor([2]))
    assert sent is not None
    admitted = clipped.admit(liar)
    assert admitted.shortened == {2}
    assert clipped.aggregate(admitted).tolist() == [10.0], "its model is what it is"
    assert table.get(torch.tensor([2])).tolist() == [[3.0 - float(sent)]]
    again = Clipped(Scaffold(MemoryTable(4, 1)), multiple=3.0)
    again.load_state_dict(clipped.state_dict())
    assert again.state_dict()["gradient_norms"].tolist() == [1.0, 1.0, 3.0]
