"""Server optimisers by their names: in Python as in a settings file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedvarp import (
    LocalSGD,
    Recording,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerSGD,
    SettingsError,
    simulate,
)
from fedvarp.analysis import read_runs
from fedvarp.data import digits
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import resume
from fedvarp.models import LogisticRegression, initialised
from fedvarp.runs.errors import RunError
from fedvarp.server import SERVER_OPTIMIZERS
from fedvarp.server.names import make_server_optimizer


class Signs(ServerOptimizer):
    """The simplest of one's own: every number moves by the same."""

    def __init__(self, lr: float = 0.5) -> None:
        self.lr = lr

    def step(self, w: Tensor, v: Tensor, scale: float) -> None:
        w.sub_(v.sign() * self.lr)

    def describe(self) -> Mapping[str, object]:
        return {"optimizer": "signs", "server_lr": self.lr}


@pytest.fixture
def registered() -> Iterator[None]:
    SERVER_OPTIMIZERS["signs"] = Signs
    yield
    del SERVER_OPTIMIZERS["signs"]


@pytest.mark.parametrize("name", list(SERVER_OPTIMIZERS))
def test_each_has_a_name_and_a_rate_of_its_own(name: str) -> None:
    made = make_server_optimizer(name)
    assert made.describe()["optimizer"] == name
    assert make_server_optimizer(name, lr=0.25).describe()["server_lr"] == 0.25


def test_sgd_has_momentum_where_it_is_given() -> None:
    assert isinstance(make_server_optimizer("sgd"), ServerSGD)
    assert isinstance(make_server_optimizer("sgd", momentum=0.5), ServerMomentum)


def test_options_may_be_written_as_in_a_call() -> None:
    written = make_server_optimizer("adam(beta1=0.3)", lr=0.2)
    assert written.describe() == ServerAdam(lr=0.2, beta1=0.3).describe()


def test_an_optimiser_is_taken_as_it_is() -> None:
    mine = ServerAdam(0.5)
    assert make_server_optimizer(mine) is mine


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("adan", {}, "'adan' is no server optimiser; did you mean adam?"),
        ("adam", {"beta1": 1.5}, "beta1 = 1.5 should be less than 1"),
        ("adam(beta1=1.5)", {}, "beta1 = 1.5 should be less than 1"),
        ("adam(lr=0.5)", {"lr": 0.2}, "server_optimizer has lr twice"),
        ("adam(name=sgd)", {}, "cannot be read"),
        ("adam(beta1=0.5", {}, "server_optimizer = 'adam(beta1=0.5' cannot be read"),
        ("adam", {"betas": 1.5}, "betas is no setting; did you mean server_optimizer.beta2?"),
        ("exp", {"eps": 0.0}, "eps = 0.0 should be greater than 0"),
        ("yogi", {"lr": "fast"}, "lr = 'fast' should be a number"),
        ("torch:nowhere", {}, "cannot be imported"),
        ("fedvarp.clients.schedules:Constant", {}, "must make a fedvarp.ServerOptimizer"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    name: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        make_server_optimizer(name, **options)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("server_optimizer")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["server=adan"], "server.name = 'adan' is no server optimiser; did you mean adam?"),
        (["server=adam", "server.beta1=1.5"], "server.beta1 = 1.5 should be less than 1"),
        (["server=adam", "server.momentum=0.5"], "server.momentum is no setting"),
        (["server.momentum=1.5"], "server.momentum = 1.5 should be less than 1"),
        (["server.lr=0"], "server.lr = 0 should be greater than 0"),
        (["server_lr=1"], "did you mean server.lr?"),
        (["server=3"], "server = 3 should be a section"),
    ],
)
def test_files_are_refused_alike(overrides: list[str], sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings("digits", overrides)
    assert sentence in str(refused.value)


def test_another_optimiser_forgets_the_rate_of_the_one_before(tmp_path: Path) -> None:
    """The presets say server.lr = 1.0 of SGD, which is far too much for Adam."""
    assert load_settings("digits", ["server=adam"]).server.lr == 0.01
    assert load_settings("digits", ["server.name=yogi", "server.lr=0.1"]).server.lr == 0.1
    mine = tmp_path / "mine.toml"
    mine.write_text('preset = "digits"\nserver.lr = 0.5\n')
    assert load_settings(mine, ["server=sgd"]).server.lr == 0.5, "it is the one it was"
    mine.write_text('preset = "digits"\n[server]\nname = "adam"\nlr = 0.5\nbeta1 = 0.5\n')
    server = load_settings(mine).server
    assert (server.name, server.lr, server.options["beta1"]) == ("adam", 0.5, 0.5)


def test_one_of_ones_own_is_found_by_its_name(registered: None, tmp_path: Path) -> None:
    settings = load_settings("digits", ["server=signs", "server.lr=0.125", "rounds=2"])
    experiment = build(settings)
    assert isinstance(experiment.server_optimizer, Signs)
    assert experiment.server_optimizer.lr == 0.125
    by_settings = experiment.run(tmp_path / "run")
    by_hand = build(load_settings("digits", ["rounds=2"]))
    found = simulate(
        by_hand.dataset,
        by_hand.model,
        local_sgd=by_hand.local_sgd,
        rounds=2,
        clients_per_round=2,
        server_optimizer=Signs(0.125),
    )
    assert torch.equal(found.server.w, by_settings.server.w)


def test_a_run_from_before_optimisers_had_names_is_resumed_and_compared(tmp_path: Path) -> None:
    """Its config.toml says lr and momentum, and no name."""
    build(load_settings("digits", ["rounds=2", "server.lr=0.5", "trainer=sequential"])).run(
        tmp_path / "old"
    )
    whole = build(load_settings("digits", ["rounds=4", "server.lr=0.5", "trainer=sequential"])).run(
        tmp_path / "new"
    )
    config = tmp_path / "old" / "config.toml"
    assert 'name = "sgd"\nlr = 0.5\nmomentum = 0.0\n' in config.read_text()
    config.write_text(config.read_text().replace('name = "sgd"\n', ""))
    resumed = resume(tmp_path / "old", ["rounds=4"])
    assert torch.equal(resumed.server.w, whole.server.w)
    with pytest.raises(RunError, match=r"server\.name = sgd"):
        resume(tmp_path / "old", ["server=adam", "rounds=5"])
    settings = [run.settings for run in read_runs([tmp_path])[0]]
    assert settings[0] == settings[1]


def test_code_of_ones_own_behind_a_name_is_part_of_the_run(
    registered: None, tmp_path: Path
) -> None:
    build(load_settings("digits", ["rounds=1", "server=signs"])).run(tmp_path)

    class Other(Signs):
        def step(self, w: Tensor, v: Tensor, scale: float) -> None:
            w.add_(v)

    SERVER_OPTIMIZERS["signs"] = Other
    with pytest.raises(RunError, match="server_optimizer"):
        resume(tmp_path, ["rounds=2"])


def test_names_in_python_are_those_of_files() -> None:
    by_name = simulate(
        digits(),
        initialised(lambda: LogisticRegression(64, 10), seed=0),
        local_sgd=LocalSGD(lr=0.1, batch_size=8, epochs=5),
        rounds=3,
        clients_per_round=2,
        server_optimizer="yogi",
        recording=Recording(progress=False),
    )
    by_file = build(load_settings("digits", ["rounds=3", "server=yogi"])).run()
    assert torch.equal(by_name.server.w, by_file.server.w)
    assert by_name.server.describe() == by_file.server.describe()
