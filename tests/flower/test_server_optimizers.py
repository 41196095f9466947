"""Server optimisers of strategies: named or given, and equal to Flower's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedYogi

from fedvarp import (
    FedAvg,
    RoundUpdates,
    Server,
    ServerAdagrad,
    ServerAdam,
    ServerExP,
    ServerYogi,
    stream,
)
from flower import asking as ours
from flower.small_federation import a_grid, an_app, run

M, D, ROUNDS = 3, 7, 12
FLOWERS: dict[str, tuple[Any, Any]] = {
    "adam": (FedAdam(), ServerAdam(lr=0.1)),
    "yogi": (FedYogi(), ServerYogi()),
    "adagrad": (FedAdagrad(), ServerAdagrad()),
    "adam, other settings": (
        FedAdam(eta=0.5, beta_1=0.5, beta_2=0.7, tau=0.1),
        ServerAdam(0.5, 0.5, 0.7, 0.1),
    ),
}


def reply(node: int, w: np.ndarray[Any, Any], examples: int) -> Message:
    """What a client sends: its model, and its number of examples."""
    asked = Message(RecordDict(), node, MessageType.TRAIN)
    metrics = MetricRecord({"num-examples": examples})
    content = RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics})
    return Message(content, reply_to=asked)


@pytest.mark.parametrize("name", FLOWERS)
def test_rounds_are_those_of_flowers_own_strategy(name: str) -> None:
    """The same clients' models round after round; float64, in which both compute here.

    Weights are those by examples. Our updates are over a client rate that changes.
    """
    strategy, optimizer = FLOWERS[name]
    examples = torch.tensor([1, 4, 5])
    weights = examples.double() / 10
    theirs = np.ones(D)
    server = Server(torch.ones(D).double(), FedAvg(), optimizer)
    generator = stream(0, "updates")
    for t in range(1, ROUNDS + 1):
        moves = torch.randn(M, D, generator=generator, dtype=torch.float64) * 10.0 ** -(t % 3)
        strategy.current_arrays = {"w": theirs}
        replies = [reply(i + 1, theirs - moves[i].numpy(), int(examples[i])) for i in range(M)]
        arrays, _ = strategy.aggregate_train(t, replies)
        theirs = arrays["w"].numpy()
        rate = 0.3 / t
        steps = torch.ones(M, dtype=torch.int64)
        server.receive(RoundUpdates(torch.arange(M), moves / rate, steps, examples, rate, weights))
        np.testing.assert_allclose(server.w.numpy(), theirs, rtol=0, atol=1e-12)
    assert np.abs(theirs - 1).max() > 0.05, "the model has moved"


@pytest.mark.parametrize("theirs", [FedAdam(), FedYogi(), FedAdagrad()])
def test_defaults_are_flowers(theirs: Any) -> None:
    mine: Any = {"FedAdam": ServerAdam, "FedYogi": ServerYogi, "FedAdagrad": ServerAdagrad}
    made = mine[type(theirs).__name__]()
    assert (made.beta1, made.tau) == (theirs.beta_1, theirs.tau)
    assert getattr(made, "beta2", 0.0) == theirs.beta_2


def test_a_name_is_the_optimiser_of_that_name() -> None:
    named = ours.FedVARP(server_optimizer="adam", server_lr=0.5)
    given = ours.FedVARP(server_optimizer=ServerAdam(0.5))
    for strategy in (named, given):
        run(strategy, a_grid(an_app(), 4, seed=0), rounds=3)
    assert named.server.w.equal(given.server.w)
    assert named.server.describe() == given.server.describe()
    assert ours.FedVARP(server_lr=0.5).make_server_optimizer().describe()["server_lr"] == 0.5


def test_fedexp_hears_of_the_replies() -> None:
    """Clients move the model by 1 … 4 in both numbers: Σ(w − w_i)²/4 = 2 · 30/4 = 15, mean 2.5."""
    strategy = ours.FedAvg(server_optimizer=ServerExP(eps=1e-9), weighting="uniform")
    run(strategy, a_grid(an_app(), 4, seed=0), rounds=1)
    rate = max(1.0, 15 / (2 * 2 * 2.5**2))
    torch.testing.assert_close(strategy.server.w, torch.full((2,), 2.5 * rate))
    opposed = ours.FedAvg(server_optimizer="exp", server_lr=3.0, weighting="uniform")
    run(opposed, a_grid(an_app(), 4, seed=0), rounds=1)
    torch.testing.assert_close(opposed.server.w, torch.full((2,), 7.5))


@pytest.mark.parametrize("name", ["adam", "exp"])
def test_a_run_in_two_sittings_is_the_run_in_one(name: str, tmp_path: Path) -> None:
    def strategy(**more: Any) -> Any:
        return ours.FedVARP(clients_per_round=2, seed=1, server_optimizer=name, **more)

    whole = strategy()
    run(whole, a_grid(an_app(), 5, seed=0), rounds=5)
    for rounds in (2, 5):
        pieces = strategy(checkpoint=tmp_path)
        run(pieces, a_grid(an_app(), 5, seed=rounds), rounds=rounds)
    assert pieces.server.w.equal(whole.server.w)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"server_optimizer": "adan"}, "FedVARP: server_optimizer.* did you mean adam"),
        ({"server_optimizer": ServerAdam(), "server_lr": 0.5}, "not both"),
        ({"server_optimizer": ServerAdam}, "server_optimizer = .* should be"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        ours.FedVARP(**settings)
