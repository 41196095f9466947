"""Clients that step by an optimiser of torch.optim: torch's own loop, from nothing each round."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import FlatModel, LocalSGD, SettingsError, stream
from fedvarp.clients import local_training
from fedvarp.clients.local_sgd import OPTIMIZERS
from fedvarp.clients.schedules import Exponential
from fedvarp.experiments.files import load_settings
from fedvarp.runs.directory import RunDirectory
from fedvarp.trainers import AutoTrainer, VectorisedTrainer
from fedvarp.trainers.makers import TrainerParts, make_auto
from small_federation import plain, run

FEATURES, CLASSES, ROUND = 5, 3, 2


def a_net() -> nn.Module:
    """Matrices alone, which every optimiser takes."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 4, bias=False), nn.Tanh(), nn.Linear(4, CLASSES, bias=False)
    )


def examples(count: int = 11) -> tuple[Tensor, Tensor]:
    draws = stream(1, "examples")
    return torch.randn(count, FEATURES, generator=draws), torch.randint(
        CLASSES, (count,), generator=draws
    )


def local(optimizer: Any, **more: Any) -> LocalSGD:
    return LocalSGD(lr=0.05, batch_size=4, epochs=2, optimizer=optimizer, **more)


def trained(settings: LocalSGD, **more: Any) -> Tensor:
    """Δ, (d,)."""
    model = FlatModel(a_net())
    result = local_training.train(
        settings,
        model,
        cross_entropy,
        model.vector(),
        examples(),
        seed=0,
        round=ROUND,
        client=0,
        **more,
    )
    return result.delta


def by_torch(settings: LocalSGD, kind: str, options: Mapping[str, Any], rho: float = 0.0) -> Tensor:
    """The loop that a user of torch writes, with ρ/2 ‖w_i − w‖² in the loss; Δ = (w − w_i)/η_c."""
    module, (x, y) = a_net(), examples()
    sent = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = getattr(torch.optim, kind)(module.parameters(), lr=settings.rate(ROUND), **options)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, settings.step_decay)
    for batch in local_training.batches(settings, len(x), 0, ROUND, 0):
        optimizer.zero_grad()
        loss = cross_entropy(module(x[batch]), y[batch])
        for parameter, start in zip(module.parameters(), sent, strict=True):
            loss = loss + rho / 2 * (parameter - start).square().sum()
        torch.autograd.backward(loss)
        optimizer.step()
        decay.step()
    walks = [s - p.detach() for s, p in zip(sent, module.parameters(), strict=True)]
    return torch.cat([walk.reshape(-1) for walk in walks]) / settings.rate(ROUND)


KINDS = [target.rpartition(":")[2] for target in OPTIMIZERS.values() if isinstance(target, str)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "SGD"])
def test_every_optimiser_takes_the_steps_it_takes_in_torch(kind: str) -> None:
    if not hasattr(torch.optim, kind):
        pytest.skip(f"this torch has no {kind}")
    settings = local(kind.lower(), schedule=Exponential(decay=0.5), step_decay=0.9)
    expected = by_torch(settings, kind, {})
    torch.testing.assert_close(trained(settings), expected, rtol=1e-5, atol=1e-5)
    assert float(expected.norm()) > 1e-3


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Adam", {"betas": [0.5, 0.9], "eps": 1e-3, "amsgrad": True}),
        ("AdamW", {"weight_decay": 0.3}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_it_has_its_settings(kind: str, options: dict[str, Any]) -> None:
    found = trained(local({"name": kind.lower(), **options}))
    expected = by_torch(local(None), kind, options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, trained(local({"name": kind.lower(), "maximize": False})))


def test_the_proximal_term_and_corrections_are_part_of_its_gradient() -> None:
    settings = local("adam")
    torch.testing.assert_close(
        trained(settings, proximal=3.0), by_torch(settings, "Adam", {}, 3.0), rtol=1e-4, atol=1e-5
    )
    zero, large = torch.zeros(32), torch.full((32,), 100.0)
    assert torch.equal(trained(settings, correction=zero), trained(settings))
    # A correction beyond all gradients: Adam then steps by the rate in each of 6 steps.
    steps = torch.full((32,), 6.0)
    torch.testing.assert_close(trained(settings, correction=large), steps, rtol=0, atol=0.1)


def test_nothing_survives_the_round() -> None:
    settings = local("adam")
    assert torch.equal(trained(settings), trained(settings))


def test_sgd_by_its_name_is_the_plain_one() -> None:
    assert local("sgd") == local({"name": "sgd"}) == local(None)
    assert "optimizer" not in local("sgd").as_toml(), "an old run's settings are the same"


def test_torchs_momentum_is_ours() -> None:
    ours = trained(LocalSGD(lr=0.05, batch_size=4, epochs=2, momentum=0.9))
    torchs = trained(local({"name": "sgd", "momentum": 0.9}))
    torch.testing.assert_close(torchs, ours, rtol=1e-5, atol=1e-5)


# What is refused, before anything starts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("adm", "optimizer = 'adm' is no optimiser; did you mean adam"),
        ({"name": "adam", "beta": 1.0}, r"optimizer = 'adam': beta is no option.*mean betas\?$"),
        ({"name": "adam", "betas": [2.0, 0.9]}, r"optimizer = 'adam\(betas=.*Invalid beta.*2\.0"),
        ({"name": "adam", "lr": 0.1}, r"rate from local_sgd\.lr"),
        ("torch.optim:LBFGS", "optimizer = 'torch.optim:LBFGS' cannot be used: .*closure"),
        ("collections:OrderedDict", "is no torch.optim.Optimizer"),
        (3, r"optimizer = 3 should be a section"),
    ],
)
def test_what_cannot_step_is_refused(given: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run(rounds=1, local_sgd=local(given))


def test_an_optimiser_that_the_model_does_not_suit_is_refused() -> None:
    if "Muon" not in dir(torch.optim):
        pytest.skip("this torch has no Muon")
    with pytest.raises(SettingsError, match=r"'muon' cannot be used: .*2D"):
        run(rounds=1, local_sgd=local("muon"))  # its model has a bias


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"momentum": 0.9}, "momentum = 0.9 is that of plain SGD"),
        ({"normalise_steps": True}, "normalise_steps.*how many gradients.*'adam'"),
    ],
)
def test_what_is_sgds_alone_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        local("adam", **more)


def test_scaffold_needs_gradients() -> None:
    with pytest.raises(ValueError, match=r"scaffold learns the means .*gradients.*'adam'.*SGD"):
        run(rounds=1, algorithm="scaffold", local_sgd=local("adam"))


def test_feddyn_needs_models() -> None:
    normalised = local(None, normalise_steps=True)
    with pytest.raises(ValueError, match=r"feddyn needs the models .*normalise_steps"):
        run(rounds=1, algorithm="feddyn", local_sgd=normalised)


# Who trains


@pytest.mark.parametrize("algorithm", ["fedvarp", "feddyn"])
def test_parallel_runs_are_the_sequential_ones_to_the_bit(algorithm: str) -> None:
    settings: dict[str, Any] = {"algorithm": algorithm, "local_sgd": local("adam"), "rounds": 3}
    alone, shared = run(**settings), run(**settings, trainer="parallel", workers=2)
    assert torch.equal(alone.server.w, shared.server.w)
    assert not torch.equal(alone.server.w, run(**settings | {"local_sgd": local(None)}).server.w)


def test_vectorised_refuses_and_auto_leaves_it_out() -> None:
    parts = plain(sgd=local("adam"))
    with pytest.raises(ValueError, match=r"vectorised.*SGD.*'adam'.*parallel"):
        VectorisedTrainer(parts.dataset, parts.model, parts.loss, parts.local_sgd, 0)
    evaluator: Any = None
    auto = make_auto(
        TrainerParts(
            parts.dataset, parts.model, parts.loss, parts.local_sgd, 0, evaluator, exact=False
        )
    )
    with auto:
        assert isinstance(auto, AutoTrainer)
        assert "vectorised" not in auto.candidates
        assert "SGD" in auto.not_tried["vectorised"]


# From settings


def test_settings_name_it_with_its_options() -> None:
    told = ["local_sgd.optimizer=adam", "local_sgd.optimizer.betas=[0.8, 0.9]"]
    found = load_settings("digits", told).local_sgd
    assert found.optimizer == local({"name": "adam", "betas": (0.8, 0.9)}).optimizer
    assert load_settings("digits", [*told, "local_sgd.optimizer=adamw"]).local_sgd.optimizer == (
        local("adamw").optimizer
    ), "another optimiser forgets the options"
    assert local("adam(betas=[0.8, 0.9])").optimizer == found.optimizer
    with pytest.raises(ValueError, match=r"optimizer = 'adam\(eps' cannot be read.*beta=0.5"):
        local("adam(eps")
    with pytest.raises(SettingsError, match=r"--set .*beta=1.*optimizer = 'adam': beta .*betas"):
        load_settings("digits", ["local_sgd.optimizer=adam", "local_sgd.optimizer.beta=1"])


OWN = """
import torch

class Slower(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= {factor}
        return super().step(closure)
"""


def test_an_optimiser_of_ones_own_is_known_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import path is the same in two runs; what lies there need not be."""
    told = []
    for factor in ("1.0", "0.5", "0.50"):
        folder = tmp_path / factor
        folder.mkdir()
        (folder / "own_optimizers.py").write_text(OWN.format(factor=factor))
        with monkeypatch.context() as here:
            here.syspath_prepend(folder)
            run(rounds=1, local_sgd=local("own_optimizers:Slower"), out=folder / "run")
        del sys.modules["own_optimizers"]
        told.append(RunDirectory(folder / "run").settings()["optimizer"])
    assert told[0]["kind"] == "Slower"
    assert told[0] != told[1] == told[2]
