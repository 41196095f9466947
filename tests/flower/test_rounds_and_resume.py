"""Deadlines, late replies, restarts, and what a run keeps."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedvarp import CheckpointError, ServerMomentum, Steady
from fedvarp.flower import MIFA, ClusterFedVARP, FedAvg, FedVARP, Scaffold
from flower.in_process import InProcessGrid, be_the_server_app
from flower.small_federation import a_grid, an_app, row_of, run, table, w0


@pytest.fixture(autouse=True)
def server_app() -> None:
    be_the_server_app()


EVERY = [FedAvg, FedVARP, ClusterFedVARP, MIFA, Scaffold]


def make(kind: Any, **settings: Any) -> Any:
    if kind is ClusterFedVARP:
        settings["clusters"] = "region"
    return kind(clients_per_round=3, seed=1, **settings)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("kind", EVERY)
def test_a_run_killed_in_the_middle_of_rounds_is_the_run_in_one(
    kind: Any, where: Any, tmp_path: Path
) -> None:
    """Node ids are new after each restart, as in a simulation; names and rows are not."""

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        if round in deaths:
            deaths.remove(round)
            raise Killed
        return MetricRecord({"norm": float(arrays.to_torch_state_dict()["w"].norm())})

    app = an_app(reports=True, steps=2, uneven=True)
    deaths: set[int] = set()
    calm = make(kind, server_optimizer=Steady(ServerMomentum(0.1)))
    whole = run(calm, a_grid(app, 8, seed=0), rounds=6, evaluate_fn=evaluate)
    deaths = {0, 2, 5}
    optimizer = Steady(ServerMomentum(0.1))
    settings = {"checkpoint": tmp_path, "where": where, "server_optimizer": optimizer}
    for seed in (1, 2, 3):
        with pytest.raises(Killed):
            run(make(kind, **settings), a_grid(app, 8, seed), rounds=6, evaluate_fn=evaluate)
    last = make(kind, **settings)
    grid = a_grid(app, 8, seed=4)
    pieces = run(last, grid, rounds=6, evaluate_fn=evaluate)
    assert {t for t, _ in grid.sent_to("train")} == {5, 6}, "round 5 is begun again"
    assert last.server.round == 6
    assert last.server.w.equal(calm.server.w)
    for part in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        assert getattr(pieces, part) == getattr(whole, part)
        assert list(getattr(pieces, part)) == [1, 2, 3, 4, 5, 6]
    assert pieces.evaluate_metrics_serverapp == whole.evaluate_metrics_serverapp
    assert list(pieces.evaluate_metrics_serverapp) == list(range(7))
    again = run(make(kind, **settings), grid, rounds=6, evaluate_fn=evaluate)
    assert again.arrays == pieces.arrays, "a run that has ended gives its model"


def test_clients_that_joined_are_there_after_a_restart(tmp_path: Path) -> None:
    grid = a_grid(an_app(), 3, seed=0)
    run(FedVARP(checkpoint=tmp_path, fraction_evaluate=0), grid, rounds=1)
    grid.connect(5, {"partition-id": 7})
    run(FedVARP(checkpoint=tmp_path, fraction_evaluate=0), grid, rounds=2)
    asked = len(grid.sent_to("query.identity"))
    strategy = FedVARP(checkpoint=tmp_path, fraction_evaluate=0)
    run(strategy, grid, rounds=3)
    assert row_of(strategy, "7") == [-8, -8]
    assert table(strategy).num_clients == 4
    assert len(grid.sent_to("query.identity")) == asked, "those who are known are not asked"


def test_another_run_is_not_continued(tmp_path: Path) -> None:
    grid = a_grid(an_app(), 3, seed=0)
    run(FedVARP(checkpoint=tmp_path), grid, rounds=1)
    with pytest.raises(CheckpointError, match="algorithm=FedVARP"):
        run(MIFA(checkpoint=tmp_path), grid, rounds=2)
    with pytest.raises(CheckpointError, match="begun without clusters"):
        run(ClusterFedVARP(checkpoint=tmp_path, clusters="region"), grid, rounds=2)
    with pytest.raises(CheckpointError, match="identity='partition-id', not 'hospital': nobody"):
        run(FedVARP(checkpoint=tmp_path, identity="hospital"), grid, rounds=2)
    with pytest.raises(CheckpointError, match="begun with seed=0, not 1"):
        run(FedVARP(checkpoint=tmp_path, seed=1), grid, rounds=2)
    with pytest.raises(CheckpointError, match=r"client_lr=1\.0, not 0\.1: .* different units"):
        run(FedVARP(checkpoint=tmp_path, client_lr=0.1), grid, rounds=2)
    with pytest.raises(CheckpointError, match="other arrays"):
        FedVARP(checkpoint=tmp_path).start(grid, ArrayRecord({"v": torch.zeros(2)}))
    assert run(FedVARP(checkpoint=tmp_path), grid, rounds=2).arrays, "the folder is free again"


def test_another_weighting_does_not_continue_a_run(tmp_path: Path) -> None:
    grid = a_grid(an_app(), 3, seed=0)
    run(FedAvg(checkpoint=tmp_path, weighting="examples"), grid, rounds=1)
    with pytest.raises(CheckpointError, match="weighting='examples', not 'uniform'"):
        run(FedAvg(checkpoint=tmp_path), grid, rounds=2)
    strategy = FedAvg(checkpoint=tmp_path, weighting="examples")
    run(strategy, grid, rounds=2)
    assert strategy.server.round == 2


def test_a_client_that_changed_its_cluster_in_a_round_without_effect_can_be_resumed(
    tmp_path: Path,
) -> None:
    grid = a_grid(an_app(reports=True), 2, seed=0)
    settings: dict[str, Any] = {"clusters": "region", "checkpoint": tmp_path, "min_replies": 2}
    strategy = ClusterFedVARP(fraction_evaluate=0, **settings)
    run(strategy, grid, rounds=1)

    def only_one_and_that_elsewhere(reply: Message) -> list[Message]:
        if (
            not reply.has_content()
            or reply.content.metric_records["metrics"].get("partition-id") != 1
        ):
            return []
        reply.content.metric_records["metrics"]["region"] = 9
        return [reply]

    grid.tamper = only_one_and_that_elsewhere
    ClusterFedVARP(fraction_evaluate=0, **settings).start(grid, w0(), num_rounds=2, timeout=0.1)
    grid.tamper = None
    resumed = ClusterFedVARP(fraction_evaluate=0, **settings)
    run(resumed, grid, rounds=3)
    assert resumed.server.round == 3
    client = resumed.clients.named("1")
    assert client is not None
    assert client.cluster == "1", "it has said so again"


def delayed(grid: InProcessGrid, client: int, round: int) -> None:
    """The reply of this client to this round comes together with one to the next round."""

    def tamper(reply: Message) -> list[Message]:
        name = grid.nodes[reply.metadata.src_node_id].config["partition-id"]
        if name == client and reply.metadata.group_id == str(round):
            held.append(reply)
            return []
        late = [held.pop()] if held and reply.metadata.group_id == str(round + 1) else []
        return [*late, reply]

    held: list[Message] = []
    grid.tamper = tamper


@pytest.mark.parametrize("kind", [FedVARP, MIFA])
def test_a_late_reply_refreshes_its_row(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Client 0 is late in round 1 and not asked again: its row is from round 1 all the same."""
    grid = a_grid(an_app(), 2, seed=0)
    delayed(grid, client=0, round=1)
    strategy = kind(fraction_evaluate=0)
    strategy.begin(w0())
    first = strategy.configure_train(1, w0(), ConfigRecord(), grid)
    strategy.aggregate_train(1, strategy._rounds.ledger.send_and_receive(grid, first, 0.2, 1))
    assert row_of(strategy, "0") == [0, 0], "it was not there in time"
    grid.disconnect(strategy.clients.named("0").node)
    second = strategy.configure_train(2, strategy.arrays, ConfigRecord(), grid)
    replies = strategy._rounds.ledger.send_and_receive(grid, second, 0.2, 2)
    strategy.aggregate_train(2, replies)
    late = [record.getMessage() for record in caplog.records if "late reply" in record.message]
    assert len(late) == 1
    assert "'0', 1 round(s) stale" in late[0]
    assert row_of(strategy, "0") == [-1, -1], "relative to the model of round 1"
    assert table(strategy).mean().tolist() == [-1.5, -1.5]


@pytest.mark.parametrize(("kind", "late_replies"), [(FedVARP, 0), (FedAvg, 10), (Scaffold, 10)])
def test_late_replies_can_be_ignored_and_some_algorithms_have_no_use_for_them(
    kind: Any, late_replies: int, caplog: pytest.LogCaptureFixture
) -> None:
    grid = a_grid(an_app(steps=1), 3, seed=0)
    delayed(grid, client=0, round=1)
    strategy = kind(fraction_evaluate=0, late_replies=late_replies)
    strategy.start(grid, w0(), num_rounds=3, timeout=0.2)
    assert "late reply refreshed" not in caplog.text
    assert ("1 round(s) late" in caplog.text) == (late_replies > 0)
    assert strategy.server.round == 3


def test_a_late_reply_is_measured_from_the_model_it_was_trained_from() -> None:
    """Models of rounds reuse memory, but not that of a round still waited for."""
    grid = a_grid(an_app(), 2, seed=0)
    strategy = FedVARP(fraction_evaluate=0)
    strategy.begin(w0())
    held: list[Message] = []
    for t in (1, 2, 3):
        sent = list(strategy.configure_train(t, strategy.arrays, ConfigRecord(), grid))
        replies = list(grid.send_and_receive(sent))
        client = strategy.clients.named("1")
        assert client is not None
        slow = client.node
        if t > 1:
            held += [reply for reply in replies if reply.metadata.src_node_id == slow]
            replies = [reply for reply in replies if reply.metadata.src_node_id != slow]
        if t == 3:
            table(strategy).put(torch.tensor([1]), torch.full((1, 2), 9.0))
            replies.append(held[0])  # to round 2
        strategy.aggregate_train(t, replies)
    assert row_of(strategy, "1") == [-2, -2], "client 1 moves the model by 2"


@pytest.mark.parametrize("kind", [FedVARP, Scaffold])
def test_a_late_reply_does_not_bring_its_client_back_to_a_node_it_has_left(kind: Any) -> None:
    grid = InProcessGrid(an_app(reports=True, steps=1))
    for client in range(2):
        grid.connect(100 + client, {"partition-id": client})
    strategy = kind(seed=0)
    strategy.begin(w0())
    late: list[Message] = []
    for t in (1, 2, 3):
        messages = strategy.configure_train(t, strategy.arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages))
        if t == 2:
            late = [reply for reply in replies if reply.metadata.src_node_id == 101]
            replies = [reply for reply in replies if reply not in late]
            grid.disconnect(101)
            grid.connect(999, {"partition-id": 1})
        strategy.aggregate_train(t, replies + (late if t == 3 else []))
    assert [client.node for client in strategy.clients] == [100, 999]
    assert strategy.clients.still_at(grid.nodes) == [100, 999]


def test_a_late_reply_is_no_news_of_a_client_that_is_looked_for() -> None:
    strategy = FedVARP(seed=0)
    strategy.begin(w0())
    clients = strategy.clients
    for name, node in (("A", 1), ("C", 5), ("A", 4), ("C", 4)):  # A is missing, 1 and 5 were left
        clients.meet(name, node)
    late: Any = SimpleNamespace(round=1, node=1)
    assert strategy._rounds._meet(3, late, "A").node is None
    assert clients.still_at([1, 4, 5]) == [1, 4, 5]  # it may be at any of them


def test_an_old_reply_does_not_undo_a_newer_one(caplog: pytest.LogCaptureFixture) -> None:
    grid = a_grid(an_app(), 2, seed=0)
    strategy = FedVARP(fraction_evaluate=0)
    strategy.begin(w0())
    first = list(strategy.configure_train(1, w0(), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(first))
    strategy.aggregate_train(1, replies[:1])
    second = list(strategy.configure_train(2, strategy.arrays, ConfigRecord(), grid))
    strategy.aggregate_train(2, grid.send_and_receive(second))
    before = table(strategy).get(torch.arange(2))
    third = list(strategy.configure_train(3, strategy.arrays, ConfigRecord(), grid))
    assert len(third) == 2
    strategy.aggregate_train(3, [replies[1]])
    assert table(strategy).get(torch.arange(2)).equal(before)
    assert "it comes 2 round(s) late" in caplog.text


def test_a_round_without_anybody_is_counted_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = InProcessGrid(an_app())
    strategy = FedVARP(clients_per_round=2)
    result = strategy.start(grid, w0(), num_rounds=2, timeout=0.05)
    assert strategy.server.round == 2
    assert result.train_metrics_clientapp == {}
    assert "0 of 2 nodes are online; going on with them" in caplog.text


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


def test_the_size_of_the_table_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FedVARP(num_clients=250, codec="float16")
    strategy.begin(ArrayRecord({"w": torch.zeros(1_000_000)}))
    strategy.summary()
    assert "0 of 250 rows written, float16, 2.00 MB each" in caplog.text
    assert "500.00 MB when full, in memory" in caplog.text


def test_buffers_are_averaged_counters_take_the_maximum_and_no_row_sees_them() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        arrays = ArrayRecord(
            {
                "bn.running_mean": torch.full((2,), float(number)),
                "w": torch.ones(3),
                "bn.num_batches_tracked": torch.tensor(number),
            }
        )
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    grid = InProcessGrid(app)
    for node in range(4):
        grid.connect(node + 1, {"partition-id": node})
    start = ArrayRecord(
        {
            "bn.running_mean": torch.zeros(2),
            "w": torch.zeros(3),
            "bn.num_batches_tracked": torch.tensor(0),
        }
    )
    strategy = FedVARP(fraction_evaluate=0)
    result = strategy.start(grid, start, num_rounds=1, timeout=5)
    arrays = result.arrays.to_torch_state_dict()
    assert list(arrays) == ["bn.running_mean", "w", "bn.num_batches_tracked"]
    assert arrays["bn.running_mean"].tolist() == [1.5, 1.5]
    assert arrays["bn.num_batches_tracked"].dtype == torch.int64
    assert int(arrays["bn.num_batches_tracked"]) == 3
    assert arrays["w"].tolist() == [1, 1, 1]
    assert len(strategy.server.w) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_clients": 0}, "num_clients=0 must be at least 1"),
        ({"clients_per_round": 0}, "clients_per_round=0"),
        ({"fraction_train": 0.0}, "fraction_train=0.0"),
        ({"fraction_evaluate": 1.5}, "fraction_evaluate=1.5"),
        ({"client_lr": math.nan}, "client_lr=nan"),
        ({"server_lr": 0.0}, "server_lr=0.0"),
        ({"server_lr": math.inf}, "server_lr=inf"),
        ({"client_lr": math.inf}, "client_lr=inf"),
        ({"min_available_nodes": 0}, "min_available_nodes=0"),
        ({"where": "tape"}, "'memory' or 'disk'"),
        ({"where": "disk"}, "give checkpoint="),
        ({"codec": "int4"}, "No codec"),
        ({"identity": ""}, "identity=''"),
        ({"when_offline": "wait"}, "'replace' or 'fewer'"),
        ({"min_replies": 0}, "min_replies=0"),
        ({"min_replies": 3, "clients_per_round": 2}, "can never be reached"),
        ({"late_replies": -1}, "late_replies=-1"),
        ({"max_update_norm": 0.0}, "max_update_norm=0.0"),
        ({"server_lr": 0.5, "server_optimizer": ServerMomentum()}, "not both"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedVARP(**settings)
