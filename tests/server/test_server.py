"""The server: its step, its refusals, its report."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvarp import (
    MIFA,
    Aggregator,
    Clipped,
    FedAvg,
    FedVARP,
    MemoryTable,
    Reply,
    RoundUpdates,
    Scaffold,
    Server,
    ServerExP,
    ServerMomentum,
    ServerSGD,
    TrimmedMean,
)
from small_federation import run

N, D = 6, 3


def updates_of(deltas: torch.Tensor, steps: list[int] | None = None) -> RoundUpdates:
    size = len(deltas)
    num_steps = torch.tensor(steps or [1] * size)
    return RoundUpdates(
        clients=torch.arange(size),
        deltas=deltas,
        num_steps=num_steps,
        num_examples=torch.full((size,), 10),
        scale=1.0,
    )


def test_sgd_steps_by_server_rate_times_scale_times_direction() -> None:
    """w = 1 − 0.5 · 1 · mean(2, 4) = −0.5."""
    server = Server(torch.ones(D), FedAvg(), ServerSGD(0.5))
    server.receive(updates_of(torch.stack([torch.full((D,), 2.0), torch.full((D,), 4.0)])))
    assert torch.equal(server.w, torch.full((D,), -0.5))
    assert server.round == 1


def test_momentum_is_the_heavy_ball() -> None:
    """v = 1 each round, β = ½: u = 1, 1½, 1¾, so w = −(1 + 1½ + 1¾) at rate and scale 1."""
    server = Server(torch.zeros(D), FedAvg(), ServerMomentum(1.0, 0.5))
    for _ in range(3):
        server.receive(updates_of(torch.ones(2, D)))
    assert torch.equal(server.w, torch.full((D,), -4.25))


def test_momentum_remembers_directions_not_steps() -> None:
    """v = 1 twice, scale 1 then ½, β = ½: w = −1·1 − ½·(½ + 1) = −1.75."""
    server = Server(torch.zeros(D), FedAvg(), ServerMomentum(1.0, 0.5))
    for scale in (1.0, 0.5):
        server.receive(replace(updates_of(torch.ones(2, D)), scale=scale))
    assert torch.equal(server.w, torch.full((D,), -1.75))


def test_an_optimizer_starts_afresh_with_each_server() -> None:
    optimizer = ServerMomentum(1.0, 0.5)
    for scale in (1.0, 3.0):
        optimizer.step(torch.zeros(D), torch.ones(D), scale)
    for _ in range(2):
        server = Server(torch.zeros(D), FedAvg(), optimizer)
        server.receive(updates_of(torch.ones(2, D)))
        assert torch.equal(server.w, -torch.ones(D))


def test_weights_follow_their_rows() -> None:
    """Client 0 diverged; 4 and 2 arrive in the wrong order. v = 2·w_2 + 4·w_4."""
    server = Server(torch.zeros(1), FedAvg(), ServerSGD())
    ones = torch.ones(3, dtype=torch.int64)
    deltas = torch.tensor([[4.0], [math.nan], [2.0]])
    weights = torch.tensor([0.5, 100.0, 0.25], dtype=torch.float64)
    server.receive(RoundUpdates(torch.tensor([4, 0, 2]), deltas, ones, ones, 1.0, weights))
    assert server.w.item() == -(2 * 0.25 + 4 * 0.5)


def test_a_negative_number_of_examples_is_refused() -> None:
    server = Server(torch.zeros(1), FedAvg(), ServerSGD())
    one = torch.tensor([1])
    report = server.receive(RoundUpdates(one, torch.ones(1, 1), one, -one, 1.0))
    assert report.refused == {1: "it reports -1 examples"}


def test_the_broadcast_stays_the_model_of_its_round() -> None:
    server = Server(torch.ones(D), FedAvg(), ServerSGD())
    broadcast = server.broadcast(torch.tensor([0, 1]))
    server.receive(updates_of(torch.ones(2, D)))
    assert torch.equal(broadcast.w, torch.ones(D))
    assert broadcast.corrections is None


def test_the_servers_model_is_its_own() -> None:
    w = torch.ones(D)
    server = Server(w, FedAvg(), ServerSGD())
    w.zero_()
    assert torch.equal(server.w, torch.ones(D))


def test_scaffold_sends_one_correction_per_client() -> None:
    server = Server(torch.zeros(D), Scaffold(MemoryTable(N, D)), ServerSGD())
    server.receive(updates_of(torch.tensor([[6.0] * D, [0.0] * D])))
    corrections = server.broadcast(torch.tensor([0, 5])).corrections
    assert corrections is not None
    # c_0 = 6 and c = 6/N = 1, so the corrections are 1 − 6 and 1 − 0.
    assert torch.equal(corrections, torch.tensor([[-5.0] * D, [1.0] * D]))


def test_scaffolds_variates_are_means_of_gradients() -> None:
    """Sums of 12 and 3 over 4 and 3 steps: c_0 = 3, c_1 = 1, c = 4/N = 2/3."""
    server = Server(torch.zeros(D), Scaffold(MemoryTable(N, D)), ServerSGD())
    server.receive(updates_of(torch.tensor([[12.0] * D, [3.0] * D]), steps=[4, 3]))
    corrections = server.broadcast(torch.arange(3)).corrections
    assert corrections is not None
    torch.testing.assert_close(corrections[:, 0], 2 / 3 - torch.tensor([3.0, 1.0, 0.0]))


def test_residuals_are_lengths_of_what_the_rows_did_not_foretell() -> None:
    """Rows of 1 and nothing: 4 − 1 and 2 − 0 in each of D numbers; SCAFFOLD's rows are variates."""
    first, second = torch.ones(1, D), torch.tensor([[4.0] * D, [2.0] * D])
    for algorithm, expected in ((FedVARP, [3.0, 2.0]), (MIFA, [3.0, 2.0]), (Scaffold, [4.0, 2.0])):
        server = Server(torch.zeros(D), algorithm(MemoryTable(N, D)), ServerSGD())
        server.receive(updates_of(first))
        report = server.receive(updates_of(second), with_residuals=True)
        assert report.residuals == pytest.approx([length * D**0.5 for length in expected])
    plain = Server(torch.zeros(D), FedAvg(), ServerSGD())
    report = plain.receive(updates_of(second), with_residuals=True)
    assert report.residuals == pytest.approx([4.0 * D**0.5, 2.0 * D**0.5])
    assert plain.receive(updates_of(second)).residuals == ()


@pytest.mark.parametrize("algorithm", [FedAvg, lambda: TrimmedMean(MemoryTable(N, D))])
def test_who_lies_about_lengths_moves_neither_a_step_of_fedexp_nor_a_sampler(
    algorithm: Callable[[], Aggregator],
) -> None:
    """Clipped to three medians; unclipped the step would be 10⁶ · 10⁶ / (2 · 9) times as long."""
    server = Server(torch.zeros(D), Clipped(algorithm(), 3.0), ServerExP())
    server.receive(updates_of(torch.eye(3, D)))
    before = server.w.clone()
    liar = torch.eye(3, D)
    liar[0] *= 1e6
    report = server.receive(updates_of(liar), with_residuals=True)
    assert report.clipped == (0,)
    assert max(report.residuals) <= 3 + 1  # and as much as the row was long
    assert float((server.w - before).norm()) < 10


def test_lengths_of_liars_are_not_believed_where_their_numbers_are_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ServerExP.*TrimmedMean.*clip_updates"):
        Server(torch.zeros(D), TrimmedMean(MemoryTable(N, D)), ServerExP())
    with pytest.raises(ValueError, match=r"ServerExP.*TrimmedMean.*clip_updates"):
        run(algorithm="median", server_optimizer="exp", where="disk", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_refusals_of_the_trainer_appear_in_the_report() -> None:
    server = Server(torch.zeros(D), FedAvg(), ServerSGD())
    updates = replace(updates_of(torch.ones(2, D)), refused={9: "its loss was NaN"})
    report = server.receive(updates)
    assert report.accepted == (0, 1)
    assert report.refused == {9: "its loss was NaN"}
    both = server.receive(replace(updates, num_steps=torch.tensor([4, 0])))
    assert set(both.refused) == {1, 9}


def test_a_matrix_of_the_wrong_width_or_type_is_refused_reply_by_reply() -> None:
    server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
    wide = server.receive(updates_of(torch.ones(2, D + 1)))
    assert wide.refused[0] == "its update has 4 numbers, the model has 3"
    double = server.receive(updates_of(torch.ones(2, D, dtype=torch.float64)))
    assert double.refused[1] == "its update is torch.float64, the model is torch.float32"
    assert server.round == 0


@pytest.mark.parametrize("refused", [0, 1])
def test_the_step_is_as_long_whoever_counts(refused: int) -> None:
    """2 and 6 steps, and one reply is NaN: how many steps others took is no matter."""
    deltas = torch.ones(2, D)
    deltas[refused] = math.nan
    server = Server(torch.zeros(D), FedAvg(), ServerSGD())
    server.receive(updates_of(deltas, steps=[2, 6]))
    assert torch.equal(server.w, torch.full((D,), -1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": torch.tensor([2, 2])}, "Each client may appear once per round"),
        ({"clients": torch.tensor([0.0, 1.0])}, "RoundUpdates.clients is torch.float32"),
        ({"num_steps": torch.tensor([1])}, r"RoundUpdates.num_steps .* shape \(1,\)"),
        ({"deltas": torch.ones(3, D)}, r"RoundUpdates.deltas has shape \(3, 3\) for 2 clients"),
        ({"deltas": torch.ones(D)}, "RoundUpdates.deltas"),
        ({"scale": 0.0}, "RoundUpdates.scale is 0.0"),
        ({"scale": math.nan}, "RoundUpdates.scale is nan"),
        ({"weights": torch.tensor([1.0, math.inf])}, "RoundUpdates.weights"),
        ({"weights": torch.tensor([1.0])}, "RoundUpdates.weights"),
        ({"num_gradients": torch.tensor([1.0])}, "RoundUpdates.num_gradients"),
    ],
)
def test_parts_that_do_not_fit_together_raise(change: dict[str, object], message: str) -> None:
    server = Server(torch.zeros(D), FedAvg(), ServerSGD())
    with pytest.raises(ValueError, match=message):
        server.receive(replace(updates_of(torch.ones(2, D)), **change))  # type: ignore[arg-type]
    assert server.round == 0
    assert torch.equal(server.w, torch.zeros(D))


@pytest.mark.parametrize("algorithm", [FedVARP, MIFA, Scaffold])
def test_an_unknown_client_raises_before_anything_changes(
    algorithm: type[FedVARP] | type[MIFA] | type[Scaffold],
) -> None:
    table = MemoryTable(N, D)
    server = Server(torch.zeros(D), algorithm(table), ServerSGD())
    with pytest.raises(IndexError, match="Client 6 is not among the 6 clients"):
        server.receive(replace(updates_of(torch.ones(2, D)), clients=torch.tensor([0, N])))
    assert server.round == 0
    assert table.num_rows == 0


def test_updates_that_changed_since_they_were_looked_at_are_looked_at_again() -> None:
    server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
    updates = updates_of(torch.ones(2, D))
    assert updates.largest_entries.values == (1.0, 1.0)
    updates.deltas[0, 0] = math.nan
    assert list(server.receive(updates).refused) == [0]


@pytest.mark.parametrize(
    "change", [{"scale": 1e300}, {"weights": torch.tensor([1e300, 1.0], dtype=torch.float64)}]
)
def test_a_step_beyond_all_reason_is_refused_before_the_table_changes(
    change: dict[str, object],
) -> None:
    table = MemoryTable(N, D)
    server = Server(torch.zeros(D), FedVARP(table), ServerSGD())
    with pytest.raises(ValueError, match="look at its weights and scale"):
        server.receive(replace(updates_of(torch.ones(2, D)), **change))  # type: ignore[arg-type]
    assert table.num_rows == 0
    assert torch.equal(server.w, torch.zeros(D))


@pytest.mark.parametrize("algorithm", [FedVARP, MIFA, Scaffold])
def test_updates_may_hang_on_a_graph(
    algorithm: type[FedVARP] | type[MIFA] | type[Scaffold],
) -> None:
    server = Server(torch.zeros(D), algorithm(MemoryTable(N, D)), ServerSGD())
    server.receive(updates_of(torch.ones(2, D, requires_grad=True)))
    assert not server.w.requires_grad


def test_a_skipped_round_only_counts() -> None:
    server = Server(torch.zeros(D), FedAvg(), ServerSGD())
    server.skip()
    assert server.round == 1
    assert torch.equal(server.w, torch.zeros(D))


@pytest.mark.parametrize(
    "w", [torch.zeros(2, 2), torch.zeros(3, dtype=torch.int64), torch.tensor([math.nan])]
)
def test_a_model_that_is_no_finite_vector_is_refused(w: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="one vector of finite numbers"):
        Server(w, FedAvg(), ServerSGD())


def test_a_table_of_another_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="Make the table with dim=3"):
        Server(torch.zeros(D), FedVARP(MemoryTable(N, D + 1)), ServerSGD())


@pytest.mark.parametrize(
    "make",
    [
        lambda: ServerSGD(0),
        lambda: ServerSGD(-1),
        lambda: ServerSGD(math.nan),
        lambda: ServerMomentum(1.0, 1.0),
    ],
)
def test_rates_out_of_range_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="should be"):
        make()


def test_single_replies_are_stacked_and_bad_ones_named() -> None:
    def reply(client: int, delta: torch.Tensor) -> Reply:
        return Reply(client, delta, num_steps=client + 1, num_examples=7)

    updates = RoundUpdates.from_replies(
        [
            reply(5, torch.full((D,), 5.0)),
            reply(2, torch.ones(D + 1)),
            reply(1, torch.ones(D)),
            reply(5, torch.zeros(D)),
            reply(3, torch.ones(D).double()),
            Reply(4, torch.ones(D), num_steps=-4, num_examples=7),
        ],
        dim=D,
        client_lr=0.5,
        dtype=torch.float32,
    )
    assert updates.clients.tolist() == [1, 5]
    assert updates.deltas[1].tolist() == [5.0] * D
    assert updates.scale == 0.5
    assert updates.mean_gradients[:, 0].tolist() == pytest.approx([1 / 2, 5 / 6])
    assert updates.refused == {
        2: "its update has shape (4,), the model has 3 numbers",
        3: "its update is torch.float64, the model is torch.float32",
        4: "it reports -4 local steps",
    }


@pytest.mark.parametrize("lie", [2.5, 1e9, 10**9, 2**63, -1, math.nan, "5", None, True, [5], 0])
def test_a_number_that_is_none_is_a_refusal_whatever_it_is(lie: Any) -> None:
    """The others' step is the same as if the liar had never answered."""
    honest, delta = Reply(0, torch.ones(D), 5, 5), torch.ones(D)
    lies = [Reply(1, delta, num_steps=lie, num_examples=5)]
    if lie != 0:
        lies += [Reply(2, delta, 5, num_examples=lie)] * (lie != 10**9)
        lies += [Reply(lie, delta, 5, 5)] * (lie != 10**9)
    lies.append(Reply(3, lie, 5, 5))
    updates = RoundUpdates.from_replies([*lies, honest], dim=D, client_lr=0.5, dtype=torch.float32)
    assert updates.clients.tolist() == [0]
    assert len(updates.refused) == len(lies)
    server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
    assert server.receive(updates).accepted == (0,)
    assert server.w.tolist() == [-0.5] * D


with warnings.catch_warnings(action="ignore"):  # nested tensors are new
    NESTED = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
ODD: dict[str, Any] = {
    "nothing": None,
    "dictionary": {"client": 1, "delta": torch.ones(D), "num_steps": 5, "num_examples": 5},
    "sparse": Reply(1, torch.ones(D).to_sparse(), 5, 5),
    "meta": Reply(2, torch.ones(D, device="meta"), 5, 5),
    "nested": Reply(3, NESTED, 5, 5),
}


@settings(max_examples=30, deadline=None)
@given(odd=st.lists(st.sampled_from(sorted(ODD)), min_size=1, max_size=6), place=st.integers(0, 6))
def test_a_reply_of_another_kind_costs_nothing_but_itself(odd: list[str], place: int) -> None:
    honest = Reply(0, torch.linspace(0.1, 0.7, D), 5, 5)
    replies = [ODD[kind] for kind in odd]
    replies.insert(place, honest)
    found = []
    for some in ([honest], replies):
        server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
        updates = RoundUpdates.from_replies(some, dim=D, client_lr=0.3, dtype=torch.float32)
        report = server.receive(updates)
        assert report.accepted == (0,)
        found.append(server.w)
    assert torch.equal(*found)
    without_number = [kind for kind in odd if not isinstance(ODD[kind], Reply)]
    assert len(report.refused) == len(without_number) + len(set(odd) - set(without_number))
    assert all(" not a " in why for why in report.refused.values())


def test_an_update_that_still_belongs_to_a_graph_is_used_without_it() -> None:
    values = torch.linspace(0.1, 0.7, D)
    leaf, result = values.clone().requires_grad_(), values.clone().requires_grad_() * 1.0
    found = []
    for delta in (values, leaf, result, torch.nn.Parameter(values)):
        replies = [Reply(0, delta, 5, 5), Reply(1, values, 5, 5)]
        server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
        updates = RoundUpdates.from_replies(replies, dim=D, client_lr=0.3, dtype=torch.float32)
        assert server.receive(updates).accepted == (0, 1)
        assert not server.w.requires_grad
        found.append(server.w.tolist())
    assert found == [found[0]] * len(found)


@pytest.mark.parametrize("count", [0.0, -3.0, math.nan, math.inf])
def test_a_count_of_gradients_that_is_none_costs_its_reply(count: float) -> None:
    updates = RoundUpdates(
        torch.tensor([0, 1]),
        torch.ones(2, D),
        torch.tensor([5, 5]),
        torch.tensor([5, 5]),
        scale=0.5,
        num_gradients=torch.tensor([5.0, count]),
    )
    server = Server(torch.zeros(D), Scaffold(MemoryTable(N, D)), ServerSGD())
    report = server.receive(updates)
    assert report.accepted == (0,)
    assert "gradients" in report.refused[1]
    assert server.w.tolist() == [-0.5] * D


def test_no_reply_at_all_is_a_round_without_a_valid_reply() -> None:
    updates = RoundUpdates.from_replies([], dim=D, client_lr=0.5, dtype=torch.float32)
    server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
    assert server.receive(updates).accepted == ()


# Replies that come too late


def late_updates(clients: list[int], values: list[float]) -> RoundUpdates:
    ones = torch.ones(len(clients), dtype=torch.int64)
    deltas = torch.tensor(values)[:, None].repeat(1, 2)
    return RoundUpdates(torch.tensor(clients), deltas, ones, ones, scale=1.0)


@pytest.mark.parametrize("kind", [FedVARP, MIFA])
def test_late_replies_refresh_rows_and_move_nothing_else(
    kind: type[FedVARP] | type[MIFA],
) -> None:
    server = Server(torch.zeros(2), kind(MemoryTable(4, 2)), ServerSGD())
    server.receive(late_updates([0], [1.0]))
    w, round_ = server.w.clone(), server.round
    report = server.receive_late(late_updates([0, 1, 2], [3.0, float("nan"), 5.0]))
    assert report.accepted == (0, 2)
    assert list(report.refused) == [1]
    assert server.w.equal(w)
    assert server.round == round_ == report.round
    table = server.aggregator.table
    assert table is not None
    assert table.get(torch.arange(4))[:, 0].tolist() == [3, 0, 5, 0]
    assert table.mean().tolist() == [2, 2]


@pytest.mark.parametrize("aggregator", [FedAvg(), Scaffold(MemoryTable(4, 2))])
def test_some_algorithms_have_no_use_for_late_replies(aggregator: Aggregator) -> None:
    server = Server(torch.zeros(2), aggregator, ServerSGD())
    assert server.receive_late(late_updates([0], [1.0])).accepted == ()
    assert aggregator.table is None or not aggregator.table.mean().any()
