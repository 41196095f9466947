"""What an update is measured in: the rate of its round, and where that is wanted its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedvarp.flower import LocalSteps
from flower.asking import MIFA, FedAvg, FedVARP, Scaffold
from flower.handmade_replies import DIM, NUM_CLIENTS, Round, a_model, a_strategy
from flower.small_federation import a_grid, an_app, numbered_grid, row_of, run, train, w0


def a_reply(fill: float, **reported: float) -> RecordDict:
    """w_i is `fill` everywhere; ``client_lr=0.1`` is reported as "client-lr"."""
    told = {name.replace("_", "-"): value for name, value in reported.items()}
    metrics = MetricRecord({"num-examples": 1, **told})
    return RecordDict({"arrays": a_model(fill), "metrics": metrics})


REPLIES = st.lists(
    st.builds(
        lambda fill, examples, reported: (fill, examples, reported),
        st.floats(-9, 9, width=32),
        st.integers(1, 1000),
        st.fixed_dictionaries(
            {},
            optional={
                "client_lr": st.floats(1e-6, 1e3),
                "num_steps": st.integers(1, 10**6),
                "num_gradients": st.floats(1e-3, 1e6),
            },
        ),
    ),
    min_size=1,
    max_size=NUM_CLIENTS,
)


@pytest.mark.parametrize("weighting", ["examples", pytest.param("uniform", marks=pytest.mark.slow)])
@given(rounds=st.lists(REPLIES, min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_fedavg_is_the_mean_of_the_models_whatever_clients_report(
    weighting: Any, rounds: list[list[tuple[float, int, dict[str, float]]]]
) -> None:
    """w − η Σ a_i (w − w_i)/η = Σ a_i w_i: steps do not enter, and η cancels."""
    told_apart = {"ask_names": False, "weighting": weighting, "clip_updates": None}
    told_apart["claims_within"] = None
    round_ = Round(FedAvg(num_clients=NUM_CLIENTS, **told_apart))
    for t, replies in enumerate(rounds, 1):
        asked = round_.ask(t)
        contents = [
            a_reply(fill, num_examples=examples, **told) for fill, examples, told in replies
        ]
        round_.end(t, [Message(c, reply_to=asked[n]) for n, c in enumerate(contents, 1)])
        fills, examples = [r[0] for r in replies], [r[1] for r in replies]
        mean = np.average(fills, weights=examples if weighting == "examples" else None)
        # Models and differences are at most 18 in size, and rounded about four times to float32.
        assert round_.strategy.server.w.tolist() == pytest.approx([mean] * DIM, abs=2e-5)


def test_the_rate_of_a_round_is_the_median_of_its_reports(one_round: Round) -> None:
    """Rates 0.5, 0.25 and 8, and one client that is silent: Δ = (0 − 1) / 0.5 for all four."""
    asked = one_round.ask(1)
    # In the first round all must say, so that the silent one is in the second.
    one_round.end(1, [Message(a_reply(0.0, client_lr=0.125), reply_to=asked[1])])
    asked = one_round.ask(2)
    replies = [a_reply(1.0, client_lr=rate) for rate in (0.25, 0.5, 8.0)] + [a_reply(1.0)]
    one_round.end(2, [Message(c, reply_to=asked[n]) for n, c in enumerate(replies, 1)])
    assert one_round.rows().eq(-2).all(1).sum() == 4
    # FedVARP's rows were zero: the mean move of the four is 1.
    assert one_round.strategy.server.w.tolist() == [1.0] * DIM


def test_a_first_round_with_rates_settles_that_they_count() -> None:
    """Client 0 moves the model by 1: rows of -1/0.5, -1/0.25, and the latest rate after that."""
    grid = numbered_grid(an_app(rates={1: 0.5, 2: 0.25}), 1)
    strategy = FedVARP()
    strategy.begin(w0())
    for t, row in ((1, -2), (2, -4), (3, -4)):
        train(strategy, grid, t)
        assert row_of(strategy, "0") == [row, row]


def test_a_first_round_without_rates_settles_that_they_do_not() -> None:
    grid = numbered_grid(an_app(rates={2: 0.25}), 1)
    strategy = FedVARP(client_lr=0.5)
    strategy.begin(w0())
    for t in (1, 2):
        train(strategy, grid, t)
        assert row_of(strategy, "0") == [-2, -2]


def test_a_late_reply_to_a_round_nobody_answered_in_time_has_the_rate_it_reports() -> None:
    """The rate decays from 1 to 0.1: moving the model by 0.1 is a row of −1, late or in time."""
    round_ = Round(a_strategy(late_replies=3))
    asked = {t: round_.ask(t) for t in (1,)}
    round_.end(1, [Message(a_reply(0.0, client_lr=1.0), reply_to=asked[1][1])])
    asked[2] = round_.ask(2)
    round_.end(2, [])
    asked[3] = round_.ask(3)
    moved = a_reply(float(round_.strategy.server.w[0]) + 0.1, client_lr=0.1)
    round_.end(3, [Message(moved, reply_to=asked[2][2]), Message(moved, reply_to=asked[3][3])])
    assert round_.rows()[1:3, 0].tolist() == pytest.approx([-1.0, -1.0])


@pytest.mark.parametrize("reported", ["num_steps", "num_gradients"])
def test_normalised_updates_are_divided_by_steps_and_the_server_steps_by_their_mean(
    reported: str,
) -> None:
    """η = 0.5. Round 1: τ = 2 and 4 move w by 1 and 3. Round 2: τ = 6 moves it by 1.5."""
    round_ = Round(a_strategy(normalise_steps=True))
    told = [{"num_steps": 1, "client_lr": 0.5, reported: tau} for tau in (2, 4, 6)]
    asked = round_.ask(1)
    replies = [a_reply(1.0, **told[0]), a_reply(3.0, **told[1])]
    round_.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(replies, 1)])
    # Δ = -1/(0.5·2) and -3/(0.5·4); the step is 0.5·3 times their mean, as all rows were zero.
    assert round_.rows()[:2].tolist() == [[-1.0] * DIM, [-1.5] * DIM]
    assert round_.strategy.server.w.tolist() == pytest.approx([1.5 * 1.25] * DIM)
    asked = round_.ask(2)
    round_.end(2, [Message(a_reply(1.875 + 1.5, **told[2]), reply_to=asked[1])])
    # Δ = -1.5/(0.5·6) = -0.5, ȳ = -2.5/12, v = ȳ + (Δ - y_1); τ̄ = (2 + 4 + 6)/3 = 4.
    v = -2.5 / 12 + (-0.5 + 1.0)
    assert round_.strategy.server.w.tolist() == pytest.approx([1.875 - 0.5 * 4 * v] * DIM)


def test_the_running_mean_of_steps_tends_to_the_mean_over_clients() -> None:
    """τ = 1 … 8, mean 4.5, variance 5.25; a mean of 2 of 8 varies by 5.25/2 · 6/7.

    After 200 rounds the standard error is √(2.25/200) = 0.106; three of them are allowed.
    """
    strategy = FedAvg(clients_per_round=2, seed=0, normalise_steps=True, fraction_evaluate=0)
    run(strategy, a_grid(an_app(steps=1, uneven=True), 8, seed=0), rounds=200)
    assert strategy._rounds.units.scale([], rate=1.0) == pytest.approx(4.5, abs=0.32)


def test_a_reply_that_the_core_refuses_does_not_count_for_the_mean_of_steps() -> None:
    """Both at a rate of 1e-12, so that a move of 1e8 would make a row of 1e20/τ."""
    round_ = Round(FedVARP(num_clients=NUM_CLIENTS, ask_names=False, normalise_steps=True))
    asked = round_.ask(1)
    told = {"client_lr": 1e-12}
    replies = [a_reply(0.5, num_steps=3, **told), a_reply(1e8, num_steps=10, **told)]
    round_.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(replies, 1)])
    assert round_.strategy._rounds.units.scale([], rate=1.0) == 3


STEPS, EXAMPLES, RATE = (1, 4), (3, 1), 0.1


def two_quadratics() -> ClientApp:
    """f_i(w) = ½ (w − i)²: τ_i steps take a model q_i = 1 − (1 − η)^τ_i of the way to i."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        model = nn.ParameterDict({"w": nn.Parameter(arrays["w"])})
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        steps = LocalSteps(message, model, optimizer)
        for _ in range(STEPS[client]):
            model["w"].grad = model["w"].detach() - client
            optimizer.step()
        metrics = MetricRecord({"num-examples": EXAMPLES[client], **steps.metrics()})
        arrays_out = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays_out, "metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("normalise_steps", [False, True])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("kind", [FedAvg, FedVARP, MIFA, Scaffold])
def test_whom_the_model_is_trained_for(kind: Any, weighting: str, normalise_steps: bool) -> None:
    """Averaged with weights a_i, the model rests where Σ a_i q_i (w − i) = 0.

    That is w = a_1 q_1 / (a_0 q_0 + a_1 q_1). Normalised it has q_i / τ_i, which is nearly η for
    both. SCAFFOLD rests where c = Σ a_i (w − i) = 0, whatever the steps.
    """
    share = [1 - (1 - RATE) ** steps for steps in STEPS]
    if normalise_steps:
        share = [q / steps for q, steps in zip(share, STEPS, strict=True)]
    more: dict[str, Any] = {"normalise_steps": normalise_steps, "fraction_evaluate": 0}
    more["clip_updates"] = None  # one client is far longer than the other
    share = [1, 1] if kind is Scaffold else share
    if weighting == "examples":
        share = [n * q for n, q in zip(EXAMPLES, share, strict=True)]
    rest = share[1] / sum(share)
    strategy = kind(weighting=weighting, **more)
    run(strategy, numbered_grid(two_quadratics(), 2), rounds=80)
    assert strategy.server.w.tolist() == pytest.approx([rest, rest], abs=1e-5)
