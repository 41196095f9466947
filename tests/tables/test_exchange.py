"""The fused kernel for large models, and all rows at once for small ones: the blocks' bits."""

from __future__ import annotations

import logging

import pytest
import torch

from fedvarp import MemoryTable, stream
from fedvarp.tables import exchange as one_pass
from fedvarp.tables import memory

D, M = 2**20 + 3, 3


def three_exchanges() -> list[torch.Tensor]:
    table = MemoryTable(5, D, client_weights=torch.tensor([1.0, 2.0, 3.0, 1.0, 7.0]))
    clients, a = torch.tensor([0, 2, 4]), torch.tensor([0.2, 0.5, 0.4], dtype=torch.float64)
    vs = []
    for seed, beta in enumerate((1.0, 0.3, 1.0)):
        deltas = torch.randn(M, D, generator=stream(seed, "deltas"))
        vs.append(table.exchange(clients, deltas, a, beta).clone())
    return [*vs, table.mean(), table.get(torch.arange(5))]


def in_blocks(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(one_pass, "_COMPILE_FROM", 2**60)
        return three_exchanges()


@pytest.mark.skipif(torch.__version__ < "2.13", reason="this torch's kernels give other bits")
def test_the_fused_kernel_gives_the_bits_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pass, "_kernels", {})
    fused = three_exchanges()
    assert one_pass._kernels, "the kernel was not used"
    for a, b in zip(fused, in_blocks(monkeypatch), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("per_number", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 611])
@pytest.mark.parametrize("small", [True, False], ids=["rows together", "rows apart"])
def test_all_rows_at_once_give_the_bits_of_the_plain_blocks(
    dtype: str, per_number: bool, dim: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty clients and more, so that sums are long enough to depend on their order."""
    monkeypatch.setattr(memory, "_SMALL_TABLE", memory._SMALL_TABLE if small else 0)

    def some_rounds() -> list[torch.Tensor]:
        table = MemoryTable(40, dim, codec=dtype, client_weights=torch.arange(1.0, 41.0))
        found = []
        for seed, beta in enumerate((1.0, 0.3, 0.0, 1.0)):
            draw = stream(seed, "rounds")
            clients = torch.randperm(40, generator=draw)[: 20 + seed].sort().values
            deltas = torch.randn(len(clients), dim, generator=draw).to(table.dtype)
            a = torch.rand(len(clients), generator=draw, dtype=torch.float64)
            each = torch.rand(dim, generator=draw, dtype=torch.float64)
            found.append(table.exchange(clients, deltas, a, each if per_number else beta).clone())
            table.put(clients[:3], deltas[3:6])
        return [*found, table.mean(), table.get(torch.arange(40))]

    at_once = some_rounds()
    monkeypatch.setattr(one_pass, "_AT_ONCE_UP_TO", 0)
    assert all(map(torch.equal, at_once, some_rounds()))


def test_rows_laid_out_by_columns_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy adds up in another order along the axis that lies together."""
    rows = torch.randn(20, 30, dtype=torch.float64, generator=stream(0, "rows"))
    a = torch.full((20,), 1 / 20, dtype=torch.float64)

    def of(rows: torch.Tensor) -> list[torch.Tensor]:
        table = MemoryTable(20, 30, codec="float64")
        return [table.exchange(torch.arange(20), rows, a, 1.0).clone(), table.mean()]

    by_columns = rows.T.contiguous().T
    assert all(map(torch.equal, of(by_columns), of(rows)))
    monkeypatch.setattr(one_pass, "_AT_ONCE_UP_TO", 0)
    assert all(map(torch.equal, of(by_columns), of(rows)))


def test_rows_and_weights_may_require_gradients() -> None:
    a = torch.full((2,), 0.5, dtype=torch.float64, requires_grad=True)
    rows = torch.ones(2, 3, requires_grad=True)
    v = MemoryTable(2, 3).exchange(torch.arange(2), rows, a, 1.0)
    assert torch.equal(v, torch.ones(3))


def test_rows_of_a_small_table_are_read_and_written_together() -> None:
    table = MemoryTable(6, 3)
    clients = torch.tensor([5, 0, 3])
    table.put(clients, torch.arange(9.0).reshape(3, 3))
    encoded = [table._encoded(client) for client in (3, 5)]
    stored = one_pass._Stored.of(encoded, torch.float32, 3)
    assert stored.memory is not None
    assert torch.equal(stored.read(), torch.tensor([[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]]))
    stored.write(torch.ones(2, 3))
    assert torch.equal(table.get(clients)[:, 0], torch.tensor([1.0, 3.0, 1.0]))


def test_without_a_compiler_large_models_go_the_plain_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("No working C++ compiler found\nand a long traceback")

    monkeypatch.setattr(one_pass, "_kernels", {M: broken})
    monkeypatch.setattr(one_pass, "_compiling", one_pass._Compiling())
    with caplog.at_level(logging.WARNING):
        slower = three_exchanges()
    assert len(caplog.records) == 1, "said once, not every round"
    assert "No working C++ compiler found and a long" in caplog.text
    for a, b in zip(slower, in_blocks(monkeypatch), strict=True):
        assert torch.equal(a, b)


def test_changing_cohort_sizes_do_not_compile_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pass, "_kernels", dict.fromkeys((10, 11, 12, 13), torch.add))
    assert not one_pass._fits_a_kernel(14)
    assert one_pass._fits_a_kernel(12)
