"""A loop of one's own with messages of one's own: the strategy sees replies, and never the nodes.

What holds for restarts and old rows holds there too, by whom it has heard of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord

from fedvarp.flower import FedVARP
from flower.centres import OwnMessages, centres_grid, optimum, zeros
from flower.in_process import InProcessGrid

HALF_OF_FOUR = 2


def begun(kind: type[FedVARP] = OwnMessages, **settings: Any) -> FedVARP:
    strategy = kind(server_lr=0.4, clip_updates=None, fraction_evaluate=0.0, **settings)
    strategy.begin(zeros())
    return strategy


def loop(strategy: FedVARP, grid: InProcessGrid, rounds: range) -> list[float]:
    for current in rounds:
        messages = strategy.configure_train(current, strategy.arrays, ConfigRecord(), grid)
        strategy.aggregate_train(current, grid.send_and_receive(messages))
    model: list[float] = strategy.arrays["w"].numpy().tolist()
    return model


def test_a_node_without_a_name_that_is_not_heard_of_any_more_counts_as_gone() -> None:
    """Four clients, two a round: after 5 · 4/2 rounds without a word its row is out of the mean."""
    grid, strategy = centres_grid(), begun()
    loop(strategy, grid, range(1, 11))
    ghost = strategy.clients.at(103)
    assert ghost is not None
    grid.disconnect(103)
    grid.connect(999, {"partition-id": 3})  # the same client; nobody can know that
    last = ghost.last_round
    silent_for = 5 * -(-5 // HALF_OF_FOUR)  # five clients are known by then
    loop(strategy, grid, range(11, last + silent_for + 1))
    assert strategy._rounds.rows.num_clients == 5
    loop(strategy, grid, range(last + silent_for + 1, last + silent_for + 2))
    assert strategy._rounds.rows.num_clients == 4
    end = loop(strategy, grid, range(last + silent_for + 2, 80))
    assert end == pytest.approx(optimum([0, 1, 2, 3], "examples"), abs=1e-3)


def test_rows_grow_too_old_there_as_well() -> None:
    """Client 3, which has a name, leaves for good."""
    grid, strategy = centres_grid(named=True), begun(max_row_age=6)
    loop(strategy, grid, range(1, 11))
    grid.disconnect(103)
    end = loop(strategy, grid, range(11, 80))
    assert end == pytest.approx(optimum([0, 1, 2], "examples"), abs=1e-2)


def test_a_run_that_goes_on_drops_rows_nobody_can_know_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = begun(checkpoint=tmp_path)
    loop(first, centres_grid(), range(1, 31))
    first.close()
    again = InProcessGrid(centres_grid().app)
    for number in range(4):
        again.connect(900 + number, {"partition-id": number})
    strategy = begun(checkpoint=tmp_path)
    loop(strategy, again, range(1, 3))  # it counts from 1 again
    assert "with a table of 0 rows" in caplog.text
    assert sorted(client.node or 0 for client in strategy.clients) == [900, 901, 902, 903]
    assert {client.last_round for client in strategy.clients} == {31, 32}
    end = loop(strategy, again, range(3, 30))
    assert end == pytest.approx(optimum([0, 1, 2, 3], "examples"), abs=1e-3)
    strategy.close()


def test_a_loop_that_begins_the_run_itself_goes_on_with_it(tmp_path: Path) -> None:
    """Messages are the strategy's; the loop hands it the very first model once more."""
    settings: dict[str, Any] = {"clients_per_round": 2}
    grid, whole = centres_grid(named=True), begun(FedVARP, **settings)
    loop(whole, grid, range(1, 8))
    first = begun(FedVARP, checkpoint=tmp_path, **settings)
    loop(first, centres_grid(named=True), range(1, 5))
    first.close()
    grid = centres_grid(named=True)
    second = begun(FedVARP, checkpoint=tmp_path, **settings)
    messages = second.configure_train(1, zeros(), ConfigRecord(), grid)
    second.aggregate_train(1, grid.send_and_receive(messages))
    loop(second, grid, range(2, 4))
    assert {t for t, _ in grid.sent_to("train")} == {5, 6, 7}
    assert second.server.round == 7
    assert second.server.w.equal(whole.server.w)
    second.close()
