"""What a run keeps: killed and started again, it is the run in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord

from fedvarp import CheckpointError, ServerMomentum
from flower.asking import MIFA, ClusterFedVARP, FedAvg, FedDyn, FedProx, FedVARP, Scaffold
from flower.small_federation import a_grid, an_app, row_of, run, table, w0

EVERY = [FedAvg, FedVARP, ClusterFedVARP, MIFA, Scaffold, FedProx, FedDyn]


def make(kind: Any, **settings: Any) -> Any:
    if kind is ClusterFedVARP:
        settings["clusters"] = "region"
    return kind(clients_per_round=3, seed=1, **settings)


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("where", "normalise_steps"), [("memory", False), ("disk", False), ("memory", True)]
)
@pytest.mark.parametrize("kind", EVERY)
def test_a_run_killed_in_the_middle_of_rounds_is_the_run_in_one(
    kind: Any, where: Any, normalise_steps: bool, tmp_path: Path
) -> None:
    """Node ids are new after each restart, as in a simulation; names and rows are not."""
    if normalise_steps and kind is FedDyn:
        return  # refused

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        if round in deaths:
            deaths.remove(round)
            raise Killed
        return MetricRecord({"norm": float(arrays.to_torch_state_dict()["w"].norm())})

    app = an_app(reports=True, steps=2, uneven=True)
    deaths: set[int] = set()
    same = {"server_optimizer": ServerMomentum(0.1), "normalise_steps": normalise_steps}
    calm = make(kind, **same)
    whole = run(calm, a_grid(app, 8, seed=0), rounds=6, evaluate_fn=evaluate)
    deaths = {0, 2, 5}
    settings = {"checkpoint": tmp_path, "where": where, **same}
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


def test_what_importance_sampling_has_seen_is_there_after_a_restart(tmp_path: Path) -> None:
    def strategy(folder: Path | None, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "sampling": "importance",
            "weighting": "uniform",
            "uniform_share": 0.1,
            **changes,
        }
        return FedVARP(clients_per_round=3, seed=1, checkpoint=folder, **settings)

    calm = strategy(None)
    run(calm, a_grid(an_app(), 12, seed=0), rounds=8)
    for seed, rounds in enumerate((2, 5, 8)):
        last = strategy(tmp_path)
        run(last, a_grid(an_app(), 12, seed), rounds=rounds)
    assert last.server.w.equal(calm.server.w)
    assert [c.residual for c in last.clients] == [c.residual for c in calm.clients]
    assert any(c.residual is not None for c in last.clients)
    with pytest.raises(CheckpointError, match="drawn otherwise"):
        run(strategy(tmp_path, uniform_share=0.5), a_grid(an_app(), 12, 0), rounds=9)


def test_clients_that_joined_are_there_after_a_restart(tmp_path: Path) -> None:
    """Client 7 moves the model by 8, and the others by 1 to 3."""
    settings: dict[str, Any] = {"checkpoint": tmp_path, "fraction_evaluate": 0}
    settings["clip_updates"] = None
    grid = a_grid(an_app(), 3, seed=0)
    run(FedVARP(**settings), grid, rounds=1)
    grid.connect(5, {"partition-id": 7})
    run(FedVARP(**settings), grid, rounds=2)
    asked = len(grid.sent_to("query.identity"))
    strategy = FedVARP(**settings)
    run(strategy, grid, rounds=3)
    assert row_of(strategy, "7") == [-8, -8]
    assert table(strategy).num_clients == 4
    assert len(grid.sent_to("query.identity")) == asked, "those who are known are not asked"


def test_a_run_goes_on_with_the_sampling_it_was_begun_with(tmp_path: Path) -> None:
    grid = a_grid(an_app(), 4, seed=0)
    run(FedVARP(checkpoint=tmp_path, sampling="round_robin"), grid, rounds=1)
    with pytest.raises(CheckpointError, match="sampling='round_robin', not 'uniform'"):
        run(FedVARP(checkpoint=tmp_path), grid, rounds=2)
    run(FedVARP(checkpoint=tmp_path, sampling="round_robin"), grid, rounds=2)


def test_a_run_from_before_there_was_a_choice_of_sampling_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = a_grid(an_app(), 4, seed=0)
    old = FedVARP(checkpoint=tmp_path)
    new = {"sampling", "weighted_by_key"}
    settings = {n: v for n, v in old.unchanging.items() if n not in new}
    with monkeypatch.context() as patch:
        patch.setattr(type(old), "unchanging", property(lambda _: settings))
        run(old, grid, rounds=1)
    with pytest.raises(CheckpointError, match="sampling='uniform', not 'round_robin'"):
        run(FedVARP(checkpoint=tmp_path, sampling="round_robin"), grid, rounds=2)
    again = FedVARP(checkpoint=tmp_path)
    run(again, grid, rounds=2)
    assert again.server.round == 2


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
    with pytest.raises(CheckpointError, match=r"normalise_steps=False, not True: .* objective"):
        run(FedVARP(checkpoint=tmp_path, normalise_steps=True), grid, rounds=2)
    with pytest.raises(CheckpointError, match="other arrays"):
        FedVARP(checkpoint=tmp_path).start(grid, ArrayRecord({"v": torch.zeros(2)}))
    assert run(FedVARP(checkpoint=tmp_path), grid, rounds=2).arrays, "the folder is free again"


def test_a_run_of_a_version_without_a_setting_is_refused(tmp_path: Path) -> None:
    grid = a_grid(an_app(), 3, seed=0)
    old = FedVARP(checkpoint=tmp_path, fraction_evaluate=0)
    old.begin(w0())
    del old._begun.unchanging["normalise_steps"]  # type: ignore[attr-defined]
    old._begun.commit({})
    old.close()
    with pytest.raises(CheckpointError, match=r"without the setting normalise_steps: .*folder"):
        run(FedVARP(checkpoint=tmp_path), grid, rounds=1)


def test_another_weighting_does_not_continue_a_run(tmp_path: Path) -> None:
    grid = a_grid(an_app(), 3, seed=0)
    run(FedAvg(checkpoint=tmp_path, weighting="uniform"), grid, rounds=1)
    with pytest.raises(CheckpointError, match="weighting='uniform', not 'examples'"):
        run(FedAvg(checkpoint=tmp_path), grid, rounds=2)
    strategy = FedAvg(checkpoint=tmp_path, weighting="uniform", weighted_by_key="other")
    with pytest.raises(CheckpointError, match="weighted_by_key='num-examples', not 'other'"):
        run(strategy, grid, rounds=2)
    strategy = FedAvg(checkpoint=tmp_path, weighting="uniform")
    run(strategy, grid, rounds=2)
    assert strategy.server.round == 2


def test_another_mu_does_not_continue_a_run(tmp_path: Path) -> None:
    grid = a_grid(an_app(), 3, seed=0)
    run(FedProx(checkpoint=tmp_path, mu=0.5), grid, rounds=1)
    with pytest.raises(CheckpointError, match=r"mu=0\.5.*0\.01"):
        run(FedProx(checkpoint=tmp_path), grid, rounds=2)


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
