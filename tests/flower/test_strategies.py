"""What the strategies are beside their algorithms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedvarp import CheckpointError
from fedvarp.flower import FedAvg, FedDyn, FedProx, FedVARP, Scaffold
from flower.in_process import InProcessGrid
from flower.small_federation import a_grid, an_app, ask, numbered_grid, row_of, run, train, w0


def test_weighting_by_examples_is_flowers_and_the_default_is_the_papers() -> None:
    """Client i moves by i + 1 and has i + 1 examples; i = 0, 1, 2."""
    moved = {}
    for weighting in ("uniform", "examples"):
        strategy = FedAvg(weighting=weighting)
        run(strategy, a_grid(an_app(), 3, seed=0), rounds=1)
        moved[weighting] = float(strategy.server.w[0])
    assert moved["uniform"] == pytest.approx(2.0)
    assert moved["examples"] == pytest.approx((1 + 4 + 9) / 6)


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
    strategy, grid = FedDyn(alpha=0.5), numbered_grid(an_app(steps=1), 2)
    strategy.begin(w0())
    train(strategy, grid, 1)
    assert strategy.server.w.tolist() == [3.0, 3.0]
    messages = ask(strategy, grid, 2)
    sent = [m.content.array_records["correction"]["w"].numpy().tolist() for m in messages]
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
