"""What Flower's own apps, wrappers and tutorials do with a strategy works with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Result,
    Strategy,
)
from torch import nn

from fedvarp.errors import FedvarpError
from fedvarp.flower import FedAvg, FedVARP, LocalSteps, Scaffold
from flower.centres import (
    OwnMessages,
    centre,
    centres_grid,
    flowers_fedavg,
    optimum,
    train,
    zeros,
)
from flower.handmade_replies import Round, a_model, good, numbers
from flower.in_process import InProcessGrid

QUIET: dict[str, Any] = {"fraction_evaluate": 0.0}


class OwnLoop(FedVARP):
    """As advanced-pytorch and the tutorials do: `start` is Flower's loop, with something added."""

    def start(  # type: ignore[override]
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **more: Any
    ) -> Result:
        self.summary()
        result, arrays = Result(), initial_arrays
        for current in range(1, num_rounds + 1):
            messages = self.configure_train(current, arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages, timeout=5.0)
            found, metrics = self.aggregate_train(current, replies)
            assert metrics is None or found is not None
            arrays = arrays if found is None else found
            result.arrays = arrays
        return result


def test_a_summary_before_the_start_says_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    FedVARP().summary()
    assert "Clients count: by their 'num-examples'" in caplog.text


def test_with_a_loop_of_its_own_a_run_is_saved_and_goes_on(tmp_path: Path) -> None:
    """The second loop counts from 1 and begins with the first model, and trains on all the same."""
    whole = OwnLoop(clients_per_round=2, **QUIET)
    train(whole, centres_grid(named=True), 7)
    first = OwnLoop(clients_per_round=2, checkpoint=tmp_path, **QUIET)
    train(first, centres_grid(named=True), 4)
    first.close()
    grid = centres_grid(named=True)
    second = OwnLoop(clients_per_round=2, checkpoint=tmp_path, **QUIET)
    train(second, grid, 3)
    assert second.server.round == 7
    assert {t for t, _ in grid.sent_to("train")} == {5, 6, 7}
    assert second.server.w.equal(whole.server.w)
    second.close()


@pytest.mark.parametrize(
    "wrapper",
    [
        DifferentialPrivacyServerSideFixedClipping,
        DifferentialPrivacyServerSideAdaptiveClipping,
        DifferentialPrivacyClientSideFixedClipping,
        DifferentialPrivacyClientSideAdaptiveClipping,
    ],
)
def test_under_flowers_privacy_wrappers_rows_are_measured_from_what_was_sent(wrapper: Any) -> None:
    """They add noise to the model that the strategy gives back, and send that."""
    grid = centres_grid(named=True)
    if "ClientSide" in wrapper.__name__:
        grid.tamper = _with_norm_bit
    inner = FedVARP(**QUIET, clip_updates=None)
    settings: dict[str, Any] = {"noise_multiplier": 0.5, "num_sampled_clients": 4}
    if "Fixed" in wrapper.__name__:
        settings["clipping_norm"] = 10.0
    else:
        settings |= {"initial_clipping_norm": 10.0, "clipped_count_stddev": 2.0}
    strategy: Strategy = wrapper(inner, **settings)
    np.random.seed(0)
    sent: list[Any] = []
    configure = inner.configure_train

    def noting(*given: Any) -> Any:
        sent.append(given[1]["w"].numpy().copy())
        return configure(*given)

    inner.configure_train = noting  # type: ignore[assignment, method-assign]
    strategy.start(grid, zeros(), num_rounds=4, timeout=5)
    table = inner.server.aggregator.table
    assert table is not None
    for client in inner.clients:
        row = table.get(torch.tensor([client.row]))[0].numpy()
        assert row == pytest.approx(0.5 * (sent[-1] - centre(int(client.name))), abs=1e-5)
    assert np.abs(sent[-1] - sent[0]).max() > 0.1


def _with_norm_bit(reply: Message) -> list[Message]:
    if reply.has_content():
        reply.content["norm_bit"] = ConfigRecord({"norm_bit": True})
        next(iter(reply.content.metric_records.values()))["norm_bit"] = 1
    return [reply]


class OwnMessagesAndLoop(OwnMessages, OwnLoop):
    """Both: nobody sees what was sent."""


@pytest.mark.parametrize("kind", [OwnMessages, OwnMessagesAndLoop])
def test_messages_of_ones_own_are_accepted(kind: Any) -> None:
    strategy = kind(server_lr=0.4, clip_updates=None, **QUIET)
    if kind is OwnMessagesAndLoop:
        strategy.begin(zeros())
    end = train(strategy, centres_grid(named=True), 60)
    assert end == pytest.approx(optimum([0, 1, 2, 3], "examples"), abs=1e-2)


def test_a_message_may_carry_another_model() -> None:
    """Half of the clients are sent w + 1: their rows are measured from there."""

    class Shifted(FedVARP):
        def configure_train(self, *given: Any) -> list[Message]:
            messages = list(super().configure_train(*given))
            moved = ArrayRecord({"w": Array(given[1]["w"].numpy() + np.float32(1))})
            for n in (0, 1):
                old = messages[n]
                content = RecordDict({**old.content, "arrays": moved})
                messages[n] = Message(content, old.metadata.dst_node_id, "train")
            return messages

    strategy = Shifted(clip_updates=None, weighting="uniform", **QUIET)
    train(strategy, centres_grid(named=True), 1)
    table = strategy.server.aggregator.table
    assert table is not None
    shifted = 0
    for client in strategy.clients:
        row = table.get(torch.tensor([client.row]))[0].numpy()
        for start in (0.0, 1.0):
            if row == pytest.approx(0.5 * (start - centre(int(client.name))), abs=1e-6):
                shifted += int(start)
    assert shifted == 2


def test_what_configure_train_sets_in_the_configuration_stays() -> None:
    seen: list[float] = []

    class Decaying(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Any:
            config["lr"] = float(str(config["lr"])) / 2
            seen.append(float(str(config["lr"])))
            return super().configure_train(server_round, arrays, config, grid)

    given = ConfigRecord({"lr": 1.0})
    train(Decaying(**QUIET), centres_grid(), 3, train_config=given)
    assert seen == [0.5, 0.25, 0.125]
    assert given["server-round"] == 3


def decaying_app() -> ClientApp:
    """Steps of config["lr"] towards the client's centre; it reports nothing but its examples."""
    app = ClientApp()

    @app.train()
    def step(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        w = message.content.array_records["arrays"]["w"].numpy()
        rate = float(str(message.content.config_records["config"]["lr"]))
        arrays = ArrayRecord({"w": Array((w - rate * (w - centre(number))).astype(np.float32))})
        metrics = MetricRecord({"num-examples": 1, "partition-id": number})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def decaying_grid() -> InProcessGrid:
    grid = InProcessGrid(decaying_app())
    for number in range(4):
        grid.connect(100 + number, {"partition-id": number})
    return grid


def halved(server_round: int) -> float:
    """A rate that is halved every five rounds, after one in which nobody moves."""
    return 0.4 * 0.5 ** (server_round // 5) * (server_round > 1)


class HalvedBefore(FedVARP):
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        config["lr"] = halved(server_round)
        return super().configure_train(server_round, arrays, config, grid)


class HalvedAfterwards(FedVARP):
    """Writes the rate into the messages once they are made."""

    def configure_train(self, server_round: int, *given: Any) -> Any:
        messages = list(super().configure_train(server_round, *given))
        for message in messages:
            message.content["config"] = ConfigRecord({"lr": halved(server_round)})
        return messages


class HalvedInALoop(HalvedAfterwards, OwnLoop):
    """The same in a loop of one's own."""


def distance_after_a_schedule(kind: Any, **more: Any) -> float:
    """How far from the optimum a run ends whose rate is halved every five rounds."""
    strategy = kind(clients_per_round=2, clip_updates=None, **more, **QUIET)
    end = np.array(train(strategy, decaying_grid(), 25))
    return float(np.abs(end - optimum([0, 1, 2, 3], "uniform")).max())


@pytest.mark.parametrize("kind", [HalvedBefore, HalvedAfterwards, HalvedInALoop])
def test_a_rate_that_is_sent_is_known_and_a_schedule_does_no_harm(kind: Any) -> None:
    """Rows of other rates would point too far, and it would stay away."""
    near = distance_after_a_schedule(kind)
    assert near < 0.05
    assert distance_after_a_schedule(kind, client_lr_key="another") > 2 * near


@pytest.mark.parametrize(
    "wrong",
    [
        RecordDict({"config": ConfigRecord()}),
        RecordDict({"arrays": ArrayRecord({"other": Array(np.zeros(4, dtype=np.float32))})}),
        RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))})}),
    ],
    ids=["no model", "another name", "another shape"],
)
def test_a_message_of_ones_own_with_another_kind_of_model_is_refused_before_it_is_sent(
    wrong: RecordDict,
) -> None:
    class Wrong(FedVARP):
        def configure_train(self, *given: Any) -> list[Message]:
            return [Message(content=wrong, message_type="train", dst_node_id=100)]

    grid = centres_grid()
    with pytest.raises(FedvarpError, match="message to node 100 does not hold the model"):
        train(Wrong(**QUIET), grid, 1)
    assert grid.pushed == []


def test_a_hook_after_each_round_can_keep_the_best_and_end_the_run(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def look(round: int, result: Result) -> bool:
        seen.append((round, float(result.arrays["w"].numpy()[0])))
        return round == 3

    strategy = FedVARP(after_round=look, checkpoint=tmp_path, **QUIET)
    train(strategy, centres_grid(), 10)
    assert [t for t, _ in seen] == [1, 2, 3]
    assert seen[0][1] != seen[2][1]
    assert strategy.server.round == 3


def test_a_run_that_learns_nothing_fails_and_says_why() -> None:
    app = ClientApp()

    @app.train()
    def fail(message: Message, context: Context) -> Message:
        raise ValueError("there are no data here.")

    grid = InProcessGrid(app)
    for node in (1, 2):
        grid.connect(node, {})
    with pytest.raises(FedvarpError, match=r"3 rounds running: 6 × error .*no data here\. Look"):
        FedVARP().start(grid, zeros(), num_rounds=10, timeout=1)
    tireless = FedVARP(max_failed_rounds=None, fraction_evaluate=0)
    tireless.start(grid, zeros(), num_rounds=5, timeout=1)
    assert tireless.server.round == 5
    strategy = FedVARP(min_available_nodes=3, max_failed_rounds=2)
    with pytest.raises(FedvarpError, match="2 rounds running: 2 × too few nodes"):
        strategy.start(grid, zeros(), num_rounds=5, timeout=0.01)
    strategy = FedVARP(select=lambda round, names: [])
    with pytest.raises(FedvarpError, match=r"3 rounds running: 3 × .*select\(\) chose nobody"):
        strategy.start(grid, zeros(), num_rounds=5, timeout=1)


def test_numbers_of_other_types_that_lose_nothing_are_converted(one_round: Round) -> None:
    """float64 and integers for floats, a counter as float, fractions of examples."""
    asked, contents = one_round.ask(1), [good() for _ in range(4)]
    contents[0].array_records["arrays"]["weight"] = numbers((3, 2), 0.5, "float64")
    contents[1].array_records["arrays"] = a_model(1.0)
    contents[1].array_records["arrays"]["bias"] = numbers((3,), 1, "int64")
    contents[2].array_records["arrays"]["steps"] = numbers((), 9.0, "float64")
    contents[3].metric_records["metrics"]["num-examples"] = 2.5
    one_round.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(contents, 1)])
    rows = sorted(one_round.rows()[:, 0].tolist())
    assert rows == [-1.0, -0.5, -0.5, -0.5] + [0.0] * 8
    assert one_round.strategy.arrays["steps"].numpy().tolist() == 9
    assert one_round.strategy.arrays["steps"].dtype == "int64"
    mean = (10 * 0.5 + 10 * 1.0 + 10 * 0.5 + 2.5 * 0.5) / 32.5
    assert float(one_round.strategy.server.w[0]) == pytest.approx(mean)


def test_scaffold_works_beside_a_mod_that_expects_one_record_of_arrays() -> None:
    app = ClientApp(mods=[LocalDpMod(1e6, 0.0, 1.0, 1e-5)])  # neither clips nor adds noise

    @app.train()
    def step(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        model = nn.ParameterDict({"w": nn.Parameter(arrays["w"])})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        steps = LocalSteps(message, model, optimizer)
        for _ in range(2):
            model["w"].grad = model["w"].detach() - torch.tensor(centre(number)).float()
            optimizer.step()
        metrics = MetricRecord({"num-examples": 1, "partition-id": number, **steps.metrics()})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    grid = InProcessGrid(app)
    for number in range(4):
        grid.connect(100 + number, {"partition-id": number})
    end = train(Scaffold(clients_per_round=2, clip_updates=None, **QUIET), grid, 25)
    # Flower's mod divides by the length of an update, and fails once that is 0.
    assert end == pytest.approx(optimum([0, 1, 2, 3], "uniform"), abs=0.1)


def test_no_deadline_is_one_that_never_comes() -> None:
    strategy = FedVARP(**QUIET)
    result = strategy.start(centres_grid(), zeros(), num_rounds=2, timeout=None)
    assert result.arrays["w"].numpy().tolist() == pytest.approx(flowers_fedavg(centres_grid(), 2))
