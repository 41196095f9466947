"""Clients count by their examples, as in Flower's FedAvg, in replies and rows alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message

from fedvarp.flower import MIFA, ClusterFedVARP, FedAvg, FedVARP, Median
from flower.centres import HALF_WAY, centre, centres_grid, flowers_fedavg, optimum, train, zeros
from flower.handmade_replies import NUM_CLIENTS, Round, a_model, with_metric
from flower.small_federation import table

QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}


@pytest.mark.parametrize("kind", [FedAvg, FedVARP, MIFA, ClusterFedVARP])
def test_with_full_participation_the_model_is_that_of_flowers_fedavg(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Sizes 1:2:3:4. The default settings: nothing is clipped in an ordinary run."""
    clusters = {"clusters": lambda name: name} if kind is ClusterFedVARP else {}
    for rounds in (1, 2, 5):
        found = train(kind(**clusters, **QUIET), centres_grid(), rounds)
        assert found == pytest.approx(flowers_fedavg(centres_grid(), rounds), rel=1e-6, abs=1e-7)
    assert "clipped" not in caplog.text
    uniform = train(kind(weighting="uniform", **clusters, **QUIET), centres_grid(), 5)
    assert uniform != pytest.approx(found, rel=0.05)


def test_somebody_who_joins_later_does_not_change_that() -> None:
    """The last client comes in round 3: from then on v is the mean of four, by their sizes."""
    grid, w = centres_grid(3), np.zeros(4)
    strategy = FedVARP(clip_updates=None, **QUIET)
    strategy.begin(zeros())
    for t in range(1, 7):
        if t == 3:
            grid.connect(103, {"partition-id": 3})
        messages = strategy.configure_train(t, strategy.arrays, ConfigRecord(), grid)
        strategy.aggregate_train(t, grid.send_and_receive(messages))
        here = range(3 if t < 3 else 4)
        sizes = [i + 1 for i in here]
        w = w - HALF_WAY * np.average([w - centre(i) for i in here], axis=0, weights=sizes)
        assert strategy.server.w.tolist() == pytest.approx(w.tolist(), rel=1e-5, abs=1e-6)


def test_whoever_has_not_been_seen_is_taken_to_be_of_mean_size() -> None:
    """Clients 0 and 2 of four are seen, with 1 and 3 examples: n̄ = 2, ȳ = (1 y_0 + 3 y_2) / 8."""
    strategy = FedVARP(num_clients=4, ask_names=False, **QUIET)
    grid = centres_grid(named=True)
    strategy.begin(zeros())
    messages = strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid)
    asked = [m for m in messages if m.metadata.dst_node_id in (100, 102)]
    strategy.aggregate_train(1, grid.send_and_receive(asked))
    y = -HALF_WAY * np.array([centre(0), centre(2)])
    expected = (1 * y[0] + 3 * y[1]) / (4 * 2)
    assert table(strategy).mean().tolist() == pytest.approx(expected.tolist())
    # The step itself was that of Flower's FedAvg over the two.
    assert strategy.server.w.tolist() == pytest.approx((-(1 * y[0] + 3 * y[1]) / 4).tolist())


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("kind", [FedVARP, MIFA])
def test_with_few_clients_a_round_it_rests_at_the_optimum_of_all(kind: Any, weighting: str) -> None:
    """M = 2 of 4; FedAvg would be carried about by who is drawn."""
    strategy = kind(
        clients_per_round=2, weighting=weighting, server_lr=0.3, clip_updates=None, **QUIET
    )
    end = train(strategy, centres_grid(named=True), 150)
    assert end == pytest.approx(optimum([0, 1, 2, 3], weighting), abs=1e-3)


def test_sizes_that_change_count_from_the_round_in_which_they_are_told() -> None:
    """Client 1 has 1 example and then 9; w = 0 in both rounds as the moves cancel out."""
    round_ = Round(FedVARP(num_clients=2, ask_names=False, clip_updates=None))
    for node in range(3, NUM_CLIENTS + 1):
        round_.grid.disconnect(node)
    for t, size in ((1, 1), (2, 9), (3, 3)):
        asked = round_.ask(t)
        contents = [with_metric("num-examples", n) for n in (size, 1)]
        w = float(round_.strategy.server.w[0])
        contents[0]["arrays"], contents[1]["arrays"] = a_model(w + 1.0), a_model(w - 2.0)
        round_.end(t, [Message(c, reply_to=asked[n]) for n, c in enumerate(contents, 1)])
        rows = round_.rows()[:, 0]
        expected = (size * -1.0 + 1 * 2.0) / (size + 1)
        assert rows.tolist() == pytest.approx([-1.0, 2.0], abs=1e-5)
        assert float(table(round_.strategy).mean()[0]) == pytest.approx(expected, abs=1e-5)
        assert float(round_.strategy.server.w[0]) == pytest.approx(w - expected, abs=1e-5)


def test_a_run_with_sizes_that_are_being_learned_is_resumed_to_the_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_clients": 9, "clients_per_round": 2, **QUIET}
    whole = FedVARP(**settings)
    train(whole, centres_grid(9, named=True), 8)
    for rounds in (1, 3, 8):
        pieces = FedVARP(checkpoint=tmp_path, **settings)
        train(pieces, centres_grid(9, named=True), rounds)
    assert pieces.server.w.equal(whole.server.w)
    assert torch.equal(table(pieces).mean(), table(whole).mean())


def test_another_key_can_say_what_clients_count_for() -> None:
    grid = centres_grid(reported={"minutes": 2.5})
    found = train(FedVARP(weighted_by_key="minutes", **QUIET), grid, 30)
    assert found == pytest.approx(optimum([0, 1, 2, 3], "uniform"), abs=1e-5)


def test_medians_count_everybody_the_same() -> None:
    assert Median().weighting == "uniform"
    with pytest.raises(ValueError, match="weighting must be"):
        Median(weighting="examples")
