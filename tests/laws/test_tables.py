"""Laws of every table: in memory, on disk, one row per client or per cluster, in every codec."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import registry
from fedvarp import ClientTable, ClusteredTable, MemoryTable, RoundUpdates, stream
from fedvarp.tables import CODECS, blocks

N, D = 7, 300  # 300 numbers: one whole block of the int8 codec and a part of one

every_table = pytest.mark.parametrize("table", registry.TABLES)
every_codec = pytest.mark.parametrize("codec", registry.CODEC_NAMES)


def rows_like(states: ClientTable, count: int, seed: int, size: float = 1.0) -> Tensor:
    generator = stream(seed, "rows")
    return size * torch.randn(count, states.dim, generator=generator, dtype=states.dtype)


def updates_for(clients: list[int], deltas: Tensor, weights: Tensor | None = None) -> RoundUpdates:
    ones = torch.ones(len(clients), dtype=torch.int64)
    return RoundUpdates(torch.tensor(clients), deltas, ones, ones, scale=1.0, weights=weights)


def everyone(states: ClientTable) -> Tensor:
    return states.get(torch.arange(states.num_clients))


def assert_law(states: ClientTable) -> None:
    """mean() is the mean of what get() gives, to float32's last digits of the largest row."""
    rows = everyone(states).double()
    tolerance = 3e-7 * float(rows.abs().max()) + 1e-44
    torch.testing.assert_close(states.mean().double(), rows.mean(0), rtol=0, atol=tolerance)


sizes = st.sampled_from([0.0, 1e-42, 1e-20, 1e-3, 1.0, 1e4, 1e8, 1e12, 1e17, 1e30])
puts = st.lists(
    st.tuples(st.lists(st.integers(0, N - 1), unique=True, max_size=N), sizes, st.integers(0, 99)),
    max_size=8,
)


@every_codec
@every_table
@settings(max_examples=25, deadline=None)
@given(puts=puts)
def test_the_mean_is_the_mean_of_the_rows_after_any_puts(
    table: str, codec: str, puts: list[tuple[list[int], float, int]]
) -> None:
    with registry.table_of(table, N, D, codec) as states:
        assert_law(states)
        for clients, size, seed in puts:
            states.put(
                torch.tensor(clients, dtype=torch.int64),
                rows_like(states, len(clients), seed, size),
            )
            assert_law(states)


@every_table
def test_an_enormous_row_that_comes_and_goes_takes_nothing_with_it(table: str) -> None:
    """1e30 + 1 − 1e30 is 0 in float64: without healing the small rows would be lost."""
    with registry.table_of(table, N, D, "float32") as states:
        states.put(torch.arange(N), rows_like(states, N, seed=0))
        states.put(torch.tensor([2, 3]), rows_like(states, 2, seed=1, size=1e30))
        states.put(torch.tensor([2]), rows_like(states, 1, seed=2))
        states.put(torch.tensor([3]), rows_like(states, 1, seed=3))
        assert_law(states)
        assert everyone(states).abs().max() < 10


def test_an_outlier_that_retreats_step_by_step_takes_nothing_with_it() -> None:
    states = MemoryTable(N, D)
    states.put(torch.arange(N), rows_like(states, N, seed=0))
    for size in (1e17, 1e12, 1e8, 1e4, 1.0):
        states.put(torch.tensor([2]), rows_like(states, 1, seed=int(size), size=size))
    assert_law(states)


def test_an_outlier_that_stays_is_not_summed_up_again_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    afresh: list[int] = []
    make = MemoryTable._sum_afresh

    def counting(self: MemoryTable) -> None:
        afresh.append(1)
        make(self)

    monkeypatch.setattr(MemoryTable, "_sum_afresh", counting)
    states = MemoryTable(N, D)
    states.put(torch.tensor([0, 1]), rows_like(states, 2, seed=0, size=1e20))
    for t in range(40):
        states.put(torch.tensor([2 + t % 5]), rows_like(states, 1, seed=t))
    assert not afresh
    states.put(torch.tensor([0, 1]), rows_like(states, 2, seed=1))
    assert len(afresh) == 1
    assert_law(states)


def test_a_sum_made_afresh_does_not_depend_on_the_order_rows_came_in() -> None:
    """Rows of very unlike sizes, where the order of a float64 sum shows."""
    sizes = torch.logspace(-12, 3, 13, dtype=torch.float64)[:, None]
    rows = sizes * torch.randn(13, D, generator=stream(0, "r"), dtype=torch.float64)
    means = []
    for order in (range(13), [10, 3, 12, 0, 7, 1, 11, 2, 9, 4, 8, 6, 5]):
        states = MemoryTable(13, D, "float64")
        for i in order:
            states.put(torch.tensor([i]), rows[i : i + 1])
        states._sum_afresh()
        means.append(states.mean())
    assert torch.equal(means[0], means[1])


@every_codec
@every_table
def test_rows_longer_than_a_stretch_are_the_same_row(
    table: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four blocks of 256 and a bit, against one: the seams must not show."""

    def run(stretch: int) -> tuple[Tensor, ...]:
        monkeypatch.setattr(blocks, "BLOCK", stretch)
        with registry.table_of(table, N, 1100, codec) as states:
            w = torch.zeros(1100, dtype=states.dtype)
            for t in range(3):
                slope = torch.logspace(-3, 3, 1100).to(states.dtype)
                deltas = slope * rows_like(states, 3, seed=t)
                states.exchange(updates_for([0, 2, 4], deltas), w, rate=0.3)
            assert_law(states)
            return w, states.mean(), everyone(states)

    for a, b in zip(run(256), run(2**17), strict=True):
        assert torch.equal(a, b)


def test_a_stretch_is_whole_blocks_of_every_codec() -> None:
    assert all(blocks.BLOCK % codec.block == 0 for codec in CODECS.values())


def test_each_cluster_gets_its_own_rows() -> None:
    """Clients in order, clusters out of order: a cycle of three, which is not its own inverse."""
    rows = torch.tensor([[10.0], [20.0], [30.0]])
    states = ClusteredTable(torch.tensor([1, 2, 0]), MemoryTable(3, 1))
    states.put(torch.arange(3), rows)
    assert torch.equal(everyone(states), rows)
    w = torch.zeros(1)
    weights = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    states.exchange(updates_for([0, 1, 2], 10 * rows, weights), w, rate=-1.0)
    assert w.item() == 20 + 0.5 * 90 + 0.25 * 180 + 0.125 * 270  # 20 is the mean row
    assert torch.equal(everyone(states), 10 * rows)


@every_table
@pytest.mark.parametrize("clients", [[-1], [N], [0, N]])
def test_get_refuses_unknown_clients(table: str, clients: list[int]) -> None:
    unknown = pytest.raises(IndexError, match="not among the 7 clients")
    with registry.table_of(table, N, 3, "float32") as states, unknown:
        states.get(torch.tensor(clients))


@every_table
def test_the_sum_does_not_drift_over_many_puts(table: str) -> None:
    with registry.table_of(table, N, 40, "float32") as states:
        for t in range(400):
            clients = torch.tensor(sorted({t % N, (3 * t + 1) % N}))
            states.put(clients, rows_like(states, len(clients), seed=t))
        exact = everyone(states).double().mean(0)
        torch.testing.assert_close(states.mean(), exact.float(), rtol=2e-7, atol=1e-9)


@every_codec
@every_table
def test_exchange_is_the_papers_lines(table: str, codec: str) -> None:
    """One pass against `ClientTable.exchange`: rows bit for bit, the model to rounding."""
    weights = torch.tensor([0.1, 0.5, 0.3, 0.2], dtype=torch.float64)
    for use_weights, clients in itertools.product([False, True], [[0, 2, 3, 6], [0, 1, 2, 5]]):
        with (
            registry.table_of(table, N, D, codec) as fast,
            registry.table_of(table, N, D, codec) as plain,
        ):
            for states in (fast, plain):
                states.put(torch.arange(5), rows_like(states, 5, seed=0))
            deltas = rows_like(fast, 4, seed=1)
            updates = updates_for(clients, deltas, weights if use_weights else None)
            found, expected = rows_like(fast, 2, seed=2)[[0, 0]]
            fast.exchange(updates, found, rate=0.7)
            ClientTable.exchange(plain, updates, expected, rate=0.7)
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
            assert torch.equal(everyone(fast), everyone(plain))
            assert torch.equal(fast.mean(), plain.mean())


@every_codec
@pytest.mark.parametrize("place", registry.PLACES)
@settings(max_examples=20, deadline=None)
@given(size=st.sampled_from([1e-42, 1e-30, 1e-5, 1.0, 300.0]), dim=st.integers(1, 700))
def test_what_comes_out_is_what_went_in_to_the_precision_of_the_codec(
    place: str, codec: str, size: float, dim: int
) -> None:
    """float: half a unit in the last place. int8: half a step, 1/254 of the block's largest."""
    with registry.table_of(place, 3, dim, codec) as states:
        rows = rows_like(states, 2, seed=dim, size=size)
        states.put(torch.tensor([0, 2]), rows)
        error = (states.get(torch.tensor([0, 2])) - rows).abs()
        bound = {
            "float64": torch.zeros_like(rows),
            "float32": torch.zeros_like(rows),
            "bfloat16": rows.abs() * 2**-8 + 2**-134,
            "float16": rows.abs() * 2**-11 + 2**-25,
            "int8": block_maximum(rows) / 254 * 1.0001 + torch.finfo(torch.float32).tiny / 2,
        }[codec]
        assert (error <= bound).all()
        assert torch.equal(states.get(torch.tensor([1])), torch.zeros(1, dim, dtype=rows.dtype))


def block_maximum(rows: Tensor) -> Tensor:
    blocks = [
        part.abs().amax(1, keepdim=True).expand_as(part) for part in torch.split(rows, 256, 1)
    ]
    return torch.cat(blocks, dim=1)


@pytest.mark.parametrize("codec", ["bfloat16", "float16", "int8"])
def test_numbers_too_large_for_the_codec_are_clipped_not_infinite(codec: str) -> None:
    states = MemoryTable(2, 3, codec)
    states.put(torch.tensor([0]), torch.tensor([[3.4e38, -3.4e38, 1.0]]))
    assert states.get(torch.tensor([0])).isfinite().all()
    assert_law(states)


def bad_puts(states: ClientTable) -> dict[str, tuple[Tensor, Tensor]]:
    good = rows_like(states, 2, seed=9)
    clients = torch.tensor([1, 4])
    nan, inf = good.clone(), good.clone()
    nan[1, -1], inf[0, 0] = float("nan"), -float("inf")
    return {
        "client 4 holds NaN or infinity": (clients, nan),
        "client 1 holds NaN or infinity": (clients, inf),
        "Each client may appear once": (torch.tensor([4, 4]), good),
        "not among the 7 clients": (torch.tensor([1, N]), good),
        "Client -1 is not among": (torch.tensor([-1, 2]), good),
        "int64": (torch.tensor([1.0, 4.0]), good),
        "shape": (clients, good[:1]),
        "dim=300": (clients, good[:, :-1]),
        "Convert them": (clients, good.half()),
    }


@every_table
@pytest.mark.parametrize("which", range(9))
def test_bad_rows_are_refused_before_anything_changes(table: str, which: int) -> None:
    with registry.table_of(table, N, D, "float32") as states:
        states.put(torch.arange(N), rows_like(states, N, seed=0))
        rows, mean, w = everyone(states), states.mean(), torch.zeros(D)
        message, (clients, bad) = list(bad_puts(states).items())[which]
        with pytest.raises((ValueError, IndexError), match=message):
            states.put(clients, bad)
        if clients.dtype == torch.int64 and bad.dtype == states.dtype:
            with pytest.raises((ValueError, IndexError)):
                states.exchange(updates_for(clients.tolist(), bad), w, rate=1.0)
        assert torch.equal(everyone(states), rows)
        assert torch.equal(states.mean(), mean)
        assert torch.equal(w, torch.zeros(D))


@every_table
def test_what_get_and_mean_return_is_a_copy(table: str) -> None:
    with registry.table_of(table, N, D, "float32") as states:
        states.put(torch.arange(N), rows_like(states, N, seed=0))
        rows, mean = everyone(states), states.mean()
        everyone(states).zero_()
        states.mean().zero_()
        states.get(torch.tensor([3])).zero_()
        assert torch.equal(everyone(states), rows)
        assert torch.equal(states.mean(), mean)


@every_codec
def test_rows_take_memory_only_once_written(codec: str) -> None:
    states = MemoryTable(num_clients=1_000_000, dim=D, codec=codec)
    empty = states.num_bytes
    states.put(torch.tensor([5, 999_999]), rows_like(states, 2, seed=0))
    states.put(torch.tensor([5]), rows_like(states, 1, seed=1))
    per_row = {"float64": 2400, "float32": 1200, "bfloat16": 600, "float16": 600, "int8": 308}
    assert states.num_bytes - empty == 2 * per_row[codec]


@pytest.mark.parametrize("place", registry.PLACES)
def test_clients_that_join_later_start_at_zero(place: str) -> None:
    with registry.table_of(place, N, D, "float32") as states:
        (rows,) = states.tables()
        states.put(torch.arange(N), rows_like(states, N, seed=0))
        assert rows.add_clients(3) == range(N, N + 3)
        assert torch.equal(everyone(states)[N:], torch.zeros(3, D))
        assert_law(states)
        states.put(torch.tensor([N + 2]), rows_like(states, 1, seed=1))
        assert_law(states)


@pytest.mark.parametrize("place", ["clusters in memory", "clusters on disk"])
def test_clients_that_join_a_cluster_share_its_row(place: str) -> None:
    with registry.table_of(place, N, D, "float32") as states:
        assert isinstance(states, ClusteredTable)
        states.put(torch.arange(N), rows_like(states, N, seed=0))
        assert states.add_clients(torch.tensor([1, 1])) == range(N, N + 2)
        assert torch.equal(everyone(states)[-1], everyone(states)[1])
        assert_law(states)


def test_a_heavy_client_heals_too() -> None:
    """An outlier counts with its weight: 2e11 · 1e6 among rows of size 1."""
    weights = torch.ones(N)
    weights[2] = 1e6
    states = MemoryTable(N, D, client_weights=weights)
    for size in (1.0, 2e11, 1e-6):
        states.put(torch.arange(N), rows_like(states, N, seed=0))
        states.put(torch.tensor([2]), rows_like(states, 1, seed=1, size=size))
    expected = weights.double() @ everyone(states).double() / weights.double().sum()
    torch.testing.assert_close(states.mean().double(), expected, rtol=1e-6, atol=1e-12)


@every_codec
def test_unequal_client_weights_weigh_the_mean(codec: str) -> None:
    weights = torch.tensor([1.0, 2.0, 0.0, 4.0])
    states = MemoryTable(4, D, codec, client_weights=weights)
    for seed in range(3):
        states.put(torch.tensor([0, seed + 1]), rows_like(states, 2, seed=seed))
    expected = weights.double() @ everyone(states).double() / 7
    torch.testing.assert_close(states.mean().double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.0, 0.0], [1.0], [1.0, float("nan")]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="Row weights"):
        MemoryTable(2, D, client_weights=torch.tensor(weights))


def test_weights_of_another_number_of_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="one weight a client"):
        ClusteredTable(torch.tensor([0, 1]), MemoryTable(2, D), torch.ones(3))


def test_nobody_is_let_in_backwards() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        MemoryTable(5, D).add_clients(-2)


def test_tables_keep_their_own_copy_of_clusters_and_weights() -> None:
    clusters, weights = torch.tensor([0, 0, 1]), torch.ones(3, dtype=torch.float64)
    shared = ClusteredTable(clusters, MemoryTable(2, D))
    plain = MemoryTable(3, D, client_weights=weights)
    clusters.fill_(1)
    weights.fill_(0.5)
    for states in (shared, plain):
        states.put(torch.arange(3), rows_like(states, 3, seed=0))
        assert_law(states)
    assert not torch.equal(everyone(shared)[0], everyone(shared)[2])


def test_a_codec_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"'int4'.*float64, float32, bfloat16, float16, int8"):
        MemoryTable(2, D, "int4")
    assert set(registry.CODEC_NAMES) == set(CODECS)


@pytest.mark.parametrize("clusters", [[0, 3], [-1, 0], []])
def test_clusters_outside_the_table_are_refused(clusters: list[int]) -> None:
    with pytest.raises(ValueError, match="cluster_of"):
        ClusteredTable(torch.tensor(clusters, dtype=torch.int64), MemoryTable(3, D))
