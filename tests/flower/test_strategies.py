"""What the strategies are beside their algorithms."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedvarp import CheckpointError
from fedvarp.flower import MIFA, Median, TrimmedMean
from fedvarp.flower.strategy import ServerStrategy
from flower.asking import FedAvg, FedDyn, FedProx, FedVARP, Scaffold
from flower.in_process import InProcessGrid
from flower.small_federation import a_grid, an_app, ask, numbered_grid, row_of, run, train, w0


def test_evaluations_tell_names_too() -> None:
    grid = a_grid(an_app(answers=False, reports=True), 8, seed=0)
    strategy = FedVARP(clients_per_round=1)
    run(strategy, grid, rounds=1)
    assert sorted(client.name for client in strategy.clients) == [str(i) for i in range(8)]


def test_mu_goes_where_flowers_own_fedprox_sends_it() -> None:
    """So that clients written for that need no change."""
    for strategy, sent in ((FedProx(mu=0.25), 0.25), (FedProx(mu=0.0), None), (FedAvg(), None)):
        strategy.begin(w0())
        (message,) = ask(strategy, numbered_grid(an_app(), 1), 1)
        assert message.content.config_records["config"].get("proximal-mu") == sent


def test_feddyn_sends_its_rows_with_the_model() -> None:
    """Two clients move by 1 and 2: h_i = −α (w_i − w), and −h_i comes with the next model.

    w = 1.5 − h/α with h = −α · 1.5, so that it goes to 3.
    """
    strategy, grid = FedDyn(alpha=0.5, weighting="uniform"), numbered_grid(an_app(steps=1), 2)
    strategy.begin(w0())
    train(strategy, grid, 1)
    assert strategy.server.w.tolist() == [3.0, 3.0]
    messages = ask(strategy, grid, 2)
    bytes_sent = [m.content.config_records["correction"]["w"] for m in messages]
    sent = [np.load(io.BytesIO(data)).tolist() for data in bytes_sent if isinstance(data, bytes)]
    assert sorted(sent) == [[0.5, 0.5], [1.0, 1.0]]
    assert all(m.content.config_records["config"]["proximal-mu"] == 0.5 for m in messages)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedProx(mu=-1.0), "mu = -1.0 should be at least 0"),
        (lambda: FedDyn(alpha=0.0), "alpha = 0.0 should be greater than 0"),
        (lambda: FedDyn(normalise_steps=True), "normalise_steps=True.*the models themselves"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def grid_of(clients: list[int]) -> InProcessGrid:
    grid = InProcessGrid(an_app())
    for client in clients:
        grid.connect(client + 1, {"partition-id": client})
    return grid


def test_updates_are_clipped_unless_told_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    """Clients move by 1, 2, 3 and 100; the median that counts is the smaller middle one, 2."""
    moved = {}
    for clip in ("median", 10.0, None, False):
        strategy = FedVARP(clip_updates=clip, num_clients=100)
        run(strategy, grid_of([0, 1, 2, 99]), rounds=1)
        moved[clip] = row_of(strategy, "99")[0]
        assert ("1 updates were clipped: those of '99'" in caplog.text) == bool(clip)
        caplog.clear()
    assert moved == pytest.approx({"median": -6.0, 10.0: -20.0, None: -100.0, False: -100.0})
    assert FedVARP().clip_updates == "median"


def test_a_clipped_run_is_not_resumed_unclipped(tmp_path: Path) -> None:
    run(FedVARP(checkpoint=tmp_path), a_grid(an_app(), 3, seed=0), rounds=1)
    with pytest.raises(CheckpointError, match="clip_updates"):
        FedVARP(checkpoint=tmp_path, clip_updates=None).begin(w0())


def test_only_what_sends_corrections_needs_steps_also_where_it_is_clipped() -> None:
    for strategy, sends in ((FedAvg(), False), (FedDyn(), True), (Scaffold(), True)):
        strategy.begin(w0())
        assert strategy._rounds.sends_corrections == sends


def test_importance_makes_up_for_those_who_do_not_answer() -> None:
    """Two of three who are asked answer, so that each counts for one and a half.

    Nobody was seen yet: all are drawn alike and have the weight 1/3, which becomes 1/2.
    """
    grid = numbered_grid(an_app(), 3)
    strategy = FedAvg(sampling="importance", weighting="uniform", clients_per_round=3)
    strategy.begin(w0())
    replies = grid.send_and_receive(ask(strategy, grid, 1))
    kept = [reply for reply in replies if reply.metadata.src_node_id != 101]  # client 1
    strategy.aggregate_train(1, kept)
    assert strategy.server.w.tolist() == pytest.approx([2.0, 2.0])  # (1 + 3) / 2
    seen = {client.name: client.residual for client in strategy.clients}
    assert seen == {"0": pytest.approx(2**0.5), "1": None, "2": pytest.approx(3 * 2**0.5)}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: FedVARP(checkpoint=folder, rows="fc9"), "FedVARP: rows = 'fc9' matches no"),
        (lambda folder: MIFA(checkpoint=folder, rows="last_layer"), "leave out rows"),
        (lambda folder: MIFA(checkpoint=folder, max_rows=5), "leave out max_rows"),
        (
            lambda folder: Median(checkpoint=folder, server_optimizer="exp", clip_updates=None),
            "Bound the lengths",
        ),
        (
            lambda folder: Median(checkpoint=folder, sampling="importance", where="disk"),
            "counts all clients of a cohort the same",
        ),
    ],
)
def test_what_does_not_go_together_leaves_no_file(
    make: Callable[[Path], ServerStrategy], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        make(tmp_path / "run").begin(w0())
    assert not (tmp_path / "run").exists()


def test_unequal_weights_are_refused_at_the_start_where_clients_must_count_the_same() -> None:
    for kind in (Median, TrimmedMean):
        grid = numbered_grid(an_app(), 3)
        with pytest.raises(ValueError, match="counts all clients of a cohort the same"):
            run(kind(sampling="importance"), grid, rounds=1)
        assert not grid.sent_to("train")
    with pytest.raises(ValueError, match="does not go with it"):
        FedAvg(sampling="importance", weighting="examples")
