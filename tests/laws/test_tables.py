"""Laws of every table: in memory, on disk, one row per client or per cluster, in every codec."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import registry
from fedvarp import ClientTable, ClusteredTable, FedAvg, FedVARP, RoundUpdates
from fedvarp.tables import blocks
from fedvarp.tables.store import Store
from registry import every_codec, every_place, every_table, rows_in
from rows import assert_law, everyone, rows_like

N, D = 7, 300  # 300 numbers: one whole block of the int8 codec and a part of one


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
    kind: str, codec: str, puts: list[tuple[list[int], float, int]]
) -> None:
    with registry.table_of(kind, N, D, codec) as table:
        assert_law(table)
        for clients, size, seed in puts:
            table.put(
                torch.tensor(clients, dtype=torch.int64),
                rows_like(table, len(clients), seed, size),
            )
            assert_law(table)


numbers = st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 1000.0])
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.integers(0, N - 1), unique=True, max_size=N), sizes),
        st.tuples(st.just("weigh"), st.lists(numbers, min_size=N, max_size=N), st.just(13.0)),
        st.tuples(st.just("forget"), st.lists(st.integers(0, N - 1), max_size=3), st.just(0.0)),
    ),
    max_size=9,
)


@pytest.mark.parametrize("codec", ["float32", "int8"])
@every_table
@settings(max_examples=12, deadline=None)
@given(changes=changes)
def test_the_mean_is_that_of_the_rows_by_what_each_counts_for(
    kind: str, codec: str, changes: list[tuple[str, list[float], float]]
) -> None:
    """Σ share·row / total after any puts, weighings and forgettings; and exchange goes by it."""
    with registry.table_of(kind, N, D, codec) as table:
        shares, total = torch.ones(N, dtype=torch.float64), float(N)
        for step, (what, chosen, size) in enumerate(changes):
            if what == "weigh":
                shares, total = torch.tensor(chosen, dtype=torch.float64), size
                table.weigh(shares, total)
            elif what == "forget":
                clients = torch.tensor(chosen, dtype=torch.int64)
                table.forget(clients)
                assert not table.get(clients).any()
            else:
                clients = torch.tensor(chosen, dtype=torch.int64)
                table.put(clients, rows_like(table, len(clients), step, size))
            expected = (shares[:, None] * everyone(table).double()).sum(0) / total
            largest = float((shares[:, None] * everyone(table).double()).abs().max())
            tolerance = 1e-6 * largest + 1e-44
            torch.testing.assert_close(table.mean().double(), expected, rtol=0, atol=tolerance)
        v = table.exchange(torch.tensor([2]), rows_like(table, 1, 99, 0.0), torch.zeros(1), 1.0)
        torch.testing.assert_close(
            v.double(),
            expected if changes else 0 * v.double(),
            rtol=0,
            atol=tolerance if changes else 0.0,
        )


@every_place
def test_a_table_that_is_weighed_is_the_same_after_it_was_saved(place: str, tmp_path: Path) -> None:
    shares = torch.tensor([0.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0, 4.0], dtype=torch.float64)
    with contextlib.closing(Store.open(tmp_path / "store")) as store:
        saved = rows_in(place, tmp_path / "store", N, D, "float32")
        saved.put(torch.arange(5), rows_like(saved, 5, seed=0))
        saved.resize(N + 1)
        saved.weigh(shares, 11.0)
        batch: dict[tuple[str, str], Tensor | None] = {}
        saved.save(batch, store)
        store.write(batch)
        saved.saved(store)
        mean = saved.mean()
        saved.close()
        again = rows_in(place, tmp_path / "store", N + 1, D, "float32")
        again.load(store)
        assert torch.equal(again.mean(), mean)
        assert again.describe() == saved.describe()
        again.weigh(torch.ones(N + 1, dtype=torch.float64), float(N + 1))
        assert_law(again)
        again.close()


@every_table
def test_shares_that_cannot_be_are_refused(kind: str) -> None:
    with registry.table_of(kind, N, D, "float32") as table:
        for shares, total in (
            (torch.ones(N - 1).double(), 1.0),
            (-torch.ones(N).double(), 1.0),
            (torch.ones(N).double(), 0.0),
            (torch.full((N,), float("nan")).double(), 1.0),
        ):
            with pytest.raises(ValueError, match="Shares"):
                table.weigh(shares, total)
        with pytest.raises(IndexError, match="not among the 7"):
            table.forget(torch.tensor([N]))


@every_table
def test_an_enormous_row_that_comes_and_goes_takes_nothing_with_it(kind: str) -> None:
    """1e30 + 1 − 1e30 is 0 in float64: without healing the small rows would be lost."""
    with registry.table_of(kind, N, D, "float32") as table:
        table.put(torch.arange(N), rows_like(table, N, seed=0))
        table.put(torch.tensor([2, 3]), rows_like(table, 2, seed=1, size=1e30))
        table.put(torch.tensor([2]), rows_like(table, 1, seed=2))
        table.put(torch.tensor([3]), rows_like(table, 1, seed=3))
        assert_law(table)
        assert everyone(table).abs().max() < 10


@every_codec
@every_table
def test_rows_longer_than_a_block_are_the_same_row(
    kind: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four blocks of 256 and a bit, against one: the seams must not show.

    Of what is measured, b, the sum runs over blocks, and is rounded otherwise.
    """

    def run(length: int) -> tuple[Tensor, ...]:
        monkeypatch.setattr(blocks, "BLOCK", length)
        with registry.table_of(kind, N, 1100, codec) as table:
            a, vs = torch.full((3,), 1 / 3), []
            for t in range(3):
                slope = torch.logspace(-3, 3, 1100).to(table.dtype)
                deltas = slope * rows_like(table, 3, seed=t)
                vs.append(table.exchange(torch.tensor([0, 2, 4]), deltas, a, beta=0.7).clone())
            assert_law(table)
            return *vs, table.mean(), everyone(table)

    rounding = 1e-6 if codec != "float64" else 1e-14
    for a, b in zip(run(256), run(2**17), strict=True):
        torch.testing.assert_close(a, b, rtol=rounding if kind == "measured" else 0, atol=0)


@every_table
@pytest.mark.parametrize("clients", [[-1], [N], [0, N]])
def test_get_refuses_unknown_clients(kind: str, clients: list[int]) -> None:
    unknown = pytest.raises(IndexError, match="not among the 7 clients")
    with registry.table_of(kind, N, 3, "float32") as table, unknown:
        table.get(torch.tensor(clients))


@every_table
def test_the_sum_does_not_drift_over_many_puts(kind: str) -> None:
    with registry.table_of(kind, N, 40, "float32") as table:
        for t in range(400):
            clients = torch.tensor(sorted({t % N, (3 * t + 1) % N}))
            table.put(clients, rows_like(table, len(clients), seed=t))
        exact = everyone(table).double().mean(0)
        torch.testing.assert_close(table.mean(), exact.float(), rtol=2e-7, atol=1e-9)


# exchange: v = β·ȳ + Σ a_i (Δ_i − β·y_i), then y_i ← Δ_i

EQUAL, UNEQUAL = torch.full((4,), 0.25).double(), torch.tensor([0.1, 0.5, 0.3, 0.2]).double()
APART, TOGETHER = torch.tensor([0, 2, 3, 6]), torch.tensor([0, 1, 2, 5])  # 2 and 5 share a cluster


@every_codec
@every_table
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_exchange_is_its_plain_version(kind: str, codec: str, beta: float) -> None:
    """Bit for bit with a row per client; a shared row changes the order of the sum in v."""
    for a, clients in itertools.product([EQUAL, UNEQUAL], [APART, TOGETHER]):
        with (
            registry.table_of(kind, N, D, codec) as fast,
            registry.table_of(kind, N, D, codec) as plain,
        ):
            for table in (fast, plain):
                table.put(torch.arange(5), rows_like(table, 5, seed=0))
            deltas = rows_like(fast, 4, seed=1)
            found = fast.exchange(clients, deltas, a, beta)
            expected = ClientTable.exchange(plain, clients, deltas, a, beta)
            exact = kind in registry.PLACES
            torch.testing.assert_close(found, expected, rtol=0, atol=0 if exact else 2e-6)
            assert torch.equal(everyone(fast), everyone(plain))
            assert torch.equal(fast.mean(), plain.mean())


@every_codec
@every_table
def test_beta_leads_from_fedavg_to_fedvarp_in_a_straight_line(kind: str, codec: str) -> None:
    """β = 0 is FedAvg, β = 1 is FedVARP, and β between them is the mixture of the two."""

    def v(beta: float | None) -> Tensor:
        with registry.table_of(kind, N, D, codec) as table:
            table.put(torch.arange(5), rows_like(table, 5, seed=0))
            deltas, ones = rows_like(table, 4, seed=1), torch.ones(4, dtype=torch.int64)
            updates = RoundUpdates(TOGETHER, deltas, ones, ones, 1.0, UNEQUAL)
            fedavg = FedAvg().aggregate(updates)
            if beta is None:
                return FedVARP(table).aggregate(updates)
            found = table.exchange(TOGETHER, deltas, UNEQUAL, beta)
            if beta == 0:
                torch.testing.assert_close(found, fedavg, rtol=0, atol=2e-6)
            return found

    assert torch.equal(v(1.0), v(None))
    torch.testing.assert_close(v(0.3), 0.7 * v(0.0) + 0.3 * v(1.0), rtol=0, atol=2e-6)


@every_codec
@every_table
def test_the_order_of_clients_changes_no_row(kind: str, codec: str) -> None:
    order = torch.tensor([2, 0, 3, 1])
    with (
        registry.table_of(kind, N, D, codec) as one,
        registry.table_of(kind, N, D, codec) as other,
    ):
        deltas = rows_like(one, 4, seed=1)
        v = one.exchange(APART, deltas, UNEQUAL, 1.0)
        permuted = other.exchange(APART[order], deltas[order], UNEQUAL[order], 1.0)
        torch.testing.assert_close(v, permuted, rtol=0, atol=2e-6)
        assert torch.equal(everyone(one), everyone(other))
        torch.testing.assert_close(one.mean(), other.mean(), rtol=0, atol=1e-7)


@every_table
def test_an_exchange_with_nobody_is_the_mean(kind: str) -> None:
    with registry.table_of(kind, N, D, "float32") as table:
        table.put(torch.arange(5), rows_like(table, 5, seed=0))
        nobody = torch.empty(0, dtype=torch.int64)
        v = table.exchange(nobody, torch.empty(0, D), torch.empty(0), 1.0)
        assert torch.equal(v, table.mean())


@pytest.mark.parametrize("a", [torch.ones(3), torch.tensor([1.0, float("nan"), 1.0, 1.0])])
@every_table
def test_weights_that_do_not_fit_are_refused_before_anything_changes(kind: str, a: Tensor) -> None:
    with registry.table_of(kind, N, D, "float32") as table:
        with pytest.raises(ValueError, match=r"weights.*each client"):
            table.exchange(APART, rows_like(table, 4, seed=1), a, 1.0)
        assert not everyone(table).any()


@every_codec
@every_place
@settings(max_examples=20, deadline=None)
@given(size=st.sampled_from([1e-42, 1e-30, 1e-5, 1.0, 300.0]), dim=st.integers(1, 700))
def test_what_comes_out_is_what_went_in_to_the_precision_of_the_codec(
    place: str, codec: str, size: float, dim: int
) -> None:
    """float: half a unit in the last place. int8: half a step, 1/254 of the block's largest."""
    with registry.table_of(place, 3, dim, codec) as table:
        rows = rows_like(table, 2, seed=dim, size=size)
        table.put(torch.tensor([0, 2]), rows)
        error = (table.get(torch.tensor([0, 2])) - rows).abs()
        bound = {
            "float64": torch.zeros_like(rows),
            "float32": torch.zeros_like(rows),
            "bfloat16": rows.abs() * 2**-8 + 2**-134,
            "float16": rows.abs() * 2**-11 + 2**-25,
            "int8": block_maximum(rows) / 254 * 1.0001 + torch.finfo(torch.float32).tiny / 2,
        }[codec]
        assert (error <= bound).all()
        assert torch.equal(table.get(torch.tensor([1])), torch.zeros(1, dim, dtype=rows.dtype))


def block_maximum(rows: Tensor) -> Tensor:
    blocks = [
        part.abs().amax(1, keepdim=True).expand_as(part) for part in torch.split(rows, 256, 1)
    ]
    return torch.cat(blocks, dim=1)


def bad_puts(table: ClientTable) -> dict[str, tuple[Tensor, Tensor]]:
    good = rows_like(table, 2, seed=9)
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
def test_bad_rows_are_refused_before_anything_changes(kind: str, which: int) -> None:
    with registry.table_of(kind, N, D, "float32") as table:
        table.put(torch.arange(N), rows_like(table, N, seed=0))
        rows, mean = everyone(table), table.mean()
        message, (clients, bad) = list(bad_puts(table).items())[which]
        with pytest.raises((ValueError, IndexError), match=message):
            table.put(clients, bad)
        with pytest.raises((ValueError, IndexError), match=message):
            table.exchange(clients, bad, torch.ones(len(clients)), beta=1.0)
        assert torch.equal(everyone(table), rows)
        assert torch.equal(table.mean(), mean)


@every_table
def test_what_get_and_mean_return_is_a_copy(kind: str) -> None:
    with registry.table_of(kind, N, D, "float32") as table:
        table.put(torch.arange(N), rows_like(table, N, seed=0))
        rows, mean = everyone(table), table.mean()
        everyone(table).zero_()
        table.mean().zero_()
        table.get(torch.tensor([3])).zero_()
        assert torch.equal(everyone(table), rows)
        assert torch.equal(table.mean(), mean)


@every_place
def test_clients_that_join_later_start_at_zero(place: str) -> None:
    with registry.table_of(place, N, D, "float32") as table:
        (rows,) = table.tables()
        table.put(torch.arange(N), rows_like(table, N, seed=0))
        assert rows.add_clients(3) == range(N, N + 3)
        assert torch.equal(everyone(table)[N:], torch.zeros(3, D))
        assert_law(table)
        table.put(torch.tensor([N + 2]), rows_like(table, 1, seed=1))
        assert_law(table)


@every_place
def test_clients_that_join_a_cluster_share_its_row(place: str) -> None:
    with registry.table_of(f"clusters in {place}", N, D, "float32") as table:
        assert isinstance(table, ClusteredTable)
        table.put(torch.arange(N), rows_like(table, N, seed=0))
        assert table.add_clients(torch.tensor([1, 1])) == range(N, N + 2)
        assert torch.equal(everyone(table)[-1], everyone(table)[1])
        assert_law(table)
