"""The same seed gives the same cohorts whatever the node ids are."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from hypothesis import given
from hypothesis import strategies as st

import fedvarp.flower
from fedvarp.clients.availability import Trace
from fedvarp.clients.cohorts import ClientSampler
from fedvarp.clients.importance_sampling import ImportanceSampler
from fedvarp.clients.round_robin import RoundRobinSampler
from fedvarp.clients.sampling import UniformSampler
from fedvarp.clients.stratified_sampling import StratifiedSampler
from fedvarp.flower import cohort
from fedvarp.flower.cohort import Candidate, Candidates, training_cohort
from fedvarp.flower.identity import KnownClients
from fedvarp.flower.names import name_in
from flower.asking import ClusterFedVARP, FedAvg, FedVARP
from flower.in_process import InProcessGrid
from flower.small_federation import a_grid, an_app, ask, numbered_grid, run, table, w0


def cohorts(grid: InProcessGrid, kind: str = "train") -> list[tuple[int, int]]:
    """(round, partition-id) of everybody who was asked to train, or to evaluate."""
    return sorted((t, int(grid.nodes[n].config["partition-id"])) for t, n in grid.sent_to(kind))


def test_the_same_seed_gives_the_same_cohorts_as_the_simulation() -> None:
    found = []
    for seed in (1, 2):
        grid = a_grid(an_app(), 20, seed)
        run(FedVARP(clients_per_round=4, seed=5, fraction_evaluate=0), grid, rounds=6)
        found.append(cohorts(grid))
    assert found[0] == found[1]
    sampler = UniformSampler(20, 4, seed=5)
    expected = [(t + 1, c) for t in range(6) for c in sampler.cohort(t).clients.tolist()]
    assert found[0] == sorted(expected)


def test_the_same_seed_gives_the_same_evaluations() -> None:
    found = []
    for seed in (1, 2):
        grid = a_grid(an_app(), 10, seed)
        run(FedVARP(clients_per_round=1, seed=5, fraction_evaluate=0.3), grid, rounds=4)
        found.append(cohorts(grid, "evaluate"))
    assert found[0] == found[1]
    assert [t for t, _ in found[0]] == [t for t in (1, 2, 3, 4) for _ in range(3)]
    assert len({client for _, client in found[0]}) > 3, "not the same ones every time"


@given(
    num_known=st.integers(1, 12),
    size=st.integers(1, 14),
    online=st.sets(st.integers(0, 15)),
    round=st.integers(0, 5),
)
def test_cohorts_are_online_distinct_and_as_large_as_can_be(
    num_known: int, size: int, online: set[int], round: int
) -> None:
    clients = KnownClients()
    for number in range(num_known):
        clients.meet(str(number), node=number)
    among = Candidates(clients, clients.look(online))
    arguments: dict[str, Any] = {"seed": 0, "round": round}
    full = training_cohort(among, size, when_offline="replace", **arguments)
    fewer = training_cohort(among, size, when_offline="fewer", **arguments)
    assert all(c.node in online for c in full)
    assert len({c.node for c in full}) == len(full) == min(size, len(online), len(among))
    assert [c for c in full if c in fewer] == fewer, "replacing adds to those who are online"


def test_the_absent_are_replaced_by_anybody_else_equally_often() -> None:
    """2 of 5, client 0 offline: each of the other four is asked in half of the rounds."""
    among = [Candidate(i, None if i == 0 else i, str(i)) for i in range(5)]
    count = torch.zeros(5)
    for t in range(1500):
        for c in training_cohort(among, 2, seed=0, round=t, when_offline="replace"):
            count[int(c.name)] += 1
    assert count[0] == 0
    # Standard deviation of a share: (0.25 / 1500) ** 0.5 = 0.013; five of them.
    assert (count[1:] / 1500 - 0.5).abs().max() < 0.065


def test_stratified_cohorts_and_turns_are_those_of_the_simulation() -> None:
    """Strata by a mapping, a function, or the clusters of ClusterFedVARP; N = 20, clusters of 7."""
    clusters = [i % 3 for i in range(20)]
    named: dict[str | int, str | int] = {i: f"cluster {i % 3}" for i in range(20)}
    stratified = StratifiedSampler(clusters, 4, seed=5)
    in_turn = RoundRobinSampler(20, 6, seed=5)
    given: dict[str, Any] = {"seed": 5, "fraction_evaluate": 0}
    strata: dict[str, Any] = {**given, "sampling": "stratified", "clients_per_round": 4}
    cases: list[tuple[Any, ClientSampler]] = [
        (FedVARP(strata=named, **strata), stratified),
        (FedAvg(strata=lambda name: int(name) % 3, **strata), stratified),
        (ClusterFedVARP(clusters=named, **strata), stratified),
        (FedVARP(sampling="round_robin", clients_per_round=6, **given), in_turn),
    ]
    for number, (strategy, sampler) in enumerate(cases):
        grid = a_grid(an_app(), 20, seed=number)
        run(strategy, grid, rounds=5)
        expected = [(t + 1, c) for t in range(5) for c in sampler.cohort(t).clients.tolist()]
        assert cohorts(grid) == sorted(expected)


def test_clients_whose_cluster_nobody_knows_are_a_stratum_of_their_own() -> None:
    among = [Candidate(i, i, str(i)) for i in range(6)]
    strategy = FedVARP(sampling="stratified", strata={"0": "a", "1": "a", "2": "a"})
    placed = strategy.placed(among)
    assert [c.cluster for c in placed] == ["a", "a", "a", None, None, None]
    for t in range(20):
        cohort = training_cohort(
            placed, 2, seed=0, round=t, when_offline="fewer", sampling="stratified"
        )
        assert sorted(c.cluster or "" for c in cohort) == ["", "a"]


@pytest.mark.parametrize("sampling", ["stratified", "round_robin"])
def test_the_offline_are_replaced_whoever_was_drawn(sampling: Any) -> None:
    """7 clients by 3 make turns of 2, 2 and 3: as many are asked as were drawn."""
    among = [Candidate(i, None if i < 2 else i, str(i), str(i % 2)) for i in range(7)]
    arguments: dict[str, Any] = {"seed": 0, "sampling": sampling}
    for t in range(12):
        full = training_cohort(among, 3, round=t, when_offline="replace", **arguments)
        fewer = training_cohort(among, 3, round=t, when_offline="fewer", **arguments)
        assert [c for c in full if c in fewer] == fewer
        assert len(full) == len({c.name for c in full})
        assert len(full) == (3 if sampling == "stratified" else (2, 2, 3)[t % 3])
        assert all(c.node is not None for c in full)


def test_importance_draws_those_online_with_the_weights_of_the_simulation() -> None:
    """As the simulation does with an availability; a client that was not seen has no residual."""
    seen = [3.0, None, 0.5, 1.0, 8.0, 0.1, 2.0]
    here = [True, True, False, True, True, True, False]
    among = [Candidate(i, i if here[i] else None, str(i), None, seen[i]) for i in range(7)]
    sampler = ImportanceSampler(
        7,
        3,
        seed=0,
        uniform_share=0.3,
        availability=Trace({t: [0, 1, 3, 4, 5] for t in range(20)}),
    )
    sampler.observe(
        torch.tensor([i for i in range(7) if seen[i] is not None]),
        torch.tensor([r for r in seen if r is not None], dtype=torch.float64),
    )
    for t in range(20):
        drawn = training_cohort(
            among,
            3,
            seed=0,
            round=t,
            when_offline="fewer",
            sampling="importance",
            uniform_share=0.3,
        )
        expected = sampler.cohort(t)
        assert expected.weights is not None
        assert [c.row for c in drawn] == expected.clients.tolist()
        assert [c.weight for c in drawn] == expected.weights.tolist()
    assert (
        training_cohort(
            [Candidate(0, None, "0")],
            1,
            seed=0,
            round=0,
            when_offline="fewer",
            sampling="importance",
        )
        == []
    )


def test_an_offline_client_is_replaced_or_the_round_has_fewer() -> None:
    cases: list[tuple[Any, int]] = [("replace", 3), ("fewer", 2)]
    for when, asked in cases:
        grid = a_grid(an_app(), 6, seed=0)
        strategy = FedVARP(clients_per_round=3, seed=0, when_offline=when)
        strategy.begin(w0())
        ask(strategy, grid, 1)
        drawn = UniformSampler(6, 3, seed=0).cohort(1).clients.tolist()
        gone = strategy.clients.named(str(drawn[0]))
        assert gone is not None
        assert gone.node is not None
        grid.disconnect(gone.node)
        assert len(ask(strategy, grid, 2)) == asked


def test_stock_clients_go_by_their_node_id_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = a_grid(an_app(answers=False), 5, seed=0)
    strategy = fedvarp.flower.FedVARP(clients_per_round=2, seed=0)
    run(strategy, grid, rounds=4)
    assert caplog.text.count("so that they go by their node id") == 1
    assert caplog.text.count("it is taken to be client_lr=1") == 1
    assert grid.sent_to("query.identity") == [], "nobody is asked who has not been told of it"
    assert table(strategy).num_clients == 5, "N is those who may be drawn"


def test_a_node_is_asked_once_for_the_whole_run_whether_it_answers_or_not() -> None:
    grid = a_grid(an_app(answers=False), 5, seed=0)
    strategy = FedVARP(clients_per_round=2)
    strategy.begin(w0())
    ask(strategy, grid, 1)
    node, away = next(iter(grid.nodes.items()))
    grid.disconnect(node)
    ask(strategy, grid, 2)
    grid.nodes[node] = away
    ask(strategy, grid, 3)
    assert sorted(n for _, n in grid.sent_to("query.identity")) == sorted(grid.nodes)


def test_the_question_takes_no_longer_than_a_round() -> None:
    grid = a_grid(an_app(), 3, seed=0)
    grid.tamper = lambda reply: [reply] if reply.metadata.message_type == "train" else []
    began = time.monotonic()
    strategy = FedVARP(fraction_evaluate=0)
    strategy.start(grid, w0(), num_rounds=2, timeout=0.2)
    assert time.monotonic() - began < 30, "it was a minute for each of three nodes once"
    assert strategy.server.round == 2


def test_names_of_registered_supernodes_are_known_without_a_question() -> None:
    """Flower vouches for them: what a client says of itself does not count there."""
    grid = a_grid(an_app(reports=True), 4, seed=0)
    for number, node in enumerate(grid.nodes.values()):
        node.name = f"hospital {number}"
    strategy = FedVARP(clients_per_round=2)
    run(strategy, grid, rounds=4)
    assert sorted(c.name for c in strategy.clients) == [f"supernode hospital {i}" for i in range(4)]
    assert grid.sent_to("query.identity") == []
    claimed = RecordDict({"m": ConfigRecord({"partition-id": "supernode hospital 1"})})
    assert name_in(claimed, "partition-id") is None, "and nobody else can claim one"


def test_a_node_that_comes_back_after_its_client_went_elsewhere_is_asked_again() -> None:
    grid = numbered_grid(an_app(), 1)
    strategy = FedVARP(seed=0)
    strategy.begin(w0())
    ask(strategy, grid, 1)
    grid.disconnect(100)
    grid.connect(999, {"partition-id": 0})
    ask(strategy, grid, 2)
    grid.connect(100, {"partition-id": 1})
    ask(strategy, grid, 3)
    found = {client.name: client.node for client in strategy.clients}
    assert found == {"0": 999, "1": 100}


def test_names_by_supernode_key_are_known_at_once() -> None:
    grid = InProcessGrid(an_app(answers=False))
    for node in range(4):
        grid.connect(50 + node, {"partition-id": node}, public_key=bytes([node]))
    strategy = FedVARP(identity="supernode-key", clients_per_round=2, seed=0)
    run(strategy, grid, rounds=2)
    assert len(strategy.clients) == 4
    assert all(client.name.startswith("key ") for client in strategy.clients)
    assert grid.sent_to("query.identity") == []


def test_a_round_without_anybody_is_counted_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = InProcessGrid(an_app())
    strategy = fedvarp.flower.FedVARP(clients_per_round=2)
    result = strategy.start(grid, w0(), num_rounds=2, timeout=0.05)
    assert strategy.server.round == 2
    assert result.train_metrics_clientapp == {}
    assert "Fewer than 2 nodes are online: nobody is asked" in caplog.text


def test_a_round_waits_for_a_whole_cohort_only_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Later on, a client that is gone for good must not hold up every round."""
    grid = a_grid(an_app(), 3, seed=0)

    def leave(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.disconnect(next(iter(grid.nodes)))

    strategy = FedVARP(clients_per_round=3)
    strategy.start(grid, w0(), num_rounds=3, timeout=600, evaluate_fn=leave)
    assert strategy.server.round == 3
    assert "Waiting for nodes" not in caplog.text


def test_waiting_says_how_many_are_there_once_for_each_number(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, looks = a_grid(an_app(), 1, seed=0), 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 20:
            grid.connect(7, {"partition-id": 7})

    monkeypatch.setattr("fedvarp.flower.cohort.time.sleep", look)
    assert 7 in cohort.wait_for_nodes(grid, 2, timeout=None)
    assert caplog.text.count("Waiting for nodes: 1 of 2") == 1


def test_shares_and_minima_are_flowers() -> None:
    """Flower asks int(share · online), and at least so many."""
    grid = a_grid(an_app(), 9, seed=0)
    for settings, asked, evaluating in (
        ({"fraction_train": 0.5, "fraction_evaluate": 0.4}, 4, 3),
        ({"fraction_train": 0.1, "fraction_evaluate": 0.1}, 2, 2),
        ({"fraction_train": 0.1, "min_train_nodes": 3, "min_evaluate_nodes": 9}, 3, 9),
        ({"fraction_train": 0.0, "fraction_evaluate": 0.0}, 0, 0),
    ):
        strategy = fedvarp.flower.FedVARP(**settings)  # type: ignore[arg-type]
        strategy.begin(w0())
        assert len(ask(strategy, grid, 1)) == asked
        evaluations = strategy.configure_evaluate(1, strategy.arrays, ConfigRecord(), grid)
        assert len(list(evaluations)) == evaluating


def test_everything_that_flowers_fedavg_takes_is_taken() -> None:
    flowers, own = inspect.signature(FlowersFedAvg), inspect.signature(fedvarp.flower.FedAvg)
    for name, parameter in flowers.parameters.items():
        assert own.parameters[name].default == parameter.default, name
    start = inspect.signature(FlowersFedAvg.start), inspect.signature(fedvarp.flower.FedAvg.start)
    assert list(start[0].parameters) == list(start[1].parameters)


def test_clients_can_be_selected_by_name() -> None:
    grid = a_grid(an_app(), 5, seed=0)
    seen: list[list[str]] = []

    def select(round: int, names: Sequence[str]) -> list[str]:
        seen.append(list(names))
        return [names[round], names[0], names[0]]

    run(FedVARP(select=select, fraction_evaluate=0), grid, rounds=2)
    assert seen == [["0", "1", "2", "3", "4"]] * 2
    assert cohorts(grid) == [(1, 0), (1, 1), (2, 0), (2, 2)]
    with pytest.raises(ValueError, match="chose 'nobody' for round 1"):
        run(FedVARP(select=lambda round, names: ["nobody"]), grid, rounds=1)
