"""Problems of which one knows what is wrong with a step: the advice names it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fedvarp.diagnosis import Diagnosis, advise, diagnose, rank_remedies
from fedvarp.theory.intervals import Estimate

CONFIG = """
rounds = 4
algorithm = "fedavg"
clients_per_round = 4
[model]
name = "quadratic"
[local_sgd]
lr = 0.3
batch_size = 1000
"""
OF = {
    "mini-batches": "The largest cause is mini-batches",
    "participation": "The largest cause is the choice of clients",
    "drift": "The largest cause is clients that walk apart",
}


def diagnosed(tmp_path: Path, federation: str, *overrides: str, walk: str = "steps=5") -> Diagnosis:
    file = tmp_path / "known.toml"
    file.write_text(CONFIG + f'[data]\nname = "known_federations:{federation}"\n')
    return diagnose(file, [f"local_sgd.{walk}", *overrides], progress=False)


def test_identical_clients_with_whole_batches_are_told_nothing_is_wrong(tmp_path: Path) -> None:
    """The issue's example: told to lower the rate, one round left 0.84 in place of 0.00015."""
    found = diagnosed(tmp_path, "identical")
    lines = advise(found)
    assert "is what training on the pooled data would do" in lines[0]
    assert not any("lower client rate" in line.lower() for line in lines)
    assert any("higher client rate, are the next move" in line for line in lines)
    assert found.updates is not None
    # w − w^(τ) = (1 − (1 − ηh)^τ)(w − c) is far from τ gradients: that is progress.
    assert found.updates.spread.progress > 0.1 * found.measured.gradient_norm2.value
    for cause in ("client_drift", "partial_participation", "stochastic_gradient"):
        value = getattr(found.step_errors["fedavg"], cause)
        assert value == pytest.approx(0, abs=1e-10)


def test_pure_heterogeneity_is_the_choice_of_clients(tmp_path: Path) -> None:
    """One step with whole batches: no walk, no noise; FedVARP removes all that is left."""
    found = diagnosed(tmp_path, "apart", walk="steps=1")
    assert OF["participation"] in advise(found)[0]
    assert found.step_errors["fedavg"].client_drift == pytest.approx(0, abs=1e-9)
    best = rank_remedies(found)[0]
    assert best.name == "FedVARP"
    assert best.helps
    assert best.total.value == pytest.approx(0, abs=1e-9)


def test_pure_drift_is_drift(tmp_path: Path) -> None:
    """Whole batches of all clients: nothing is drawn. Half the rate leaves a fraction of it."""
    found = diagnosed(tmp_path, "drifting", "clients_per_round=20", "local_sgd.lr=0.05")
    line = advise(found)[0]
    assert OF["drift"] in line
    assert "A lower client rate" in line
    assert "FedVARP takes the same steps" in line
    best, now = rank_remedies(found)
    assert best.name.endswith("half the rate")
    assert best.helps
    assert now.is_baseline
    # To first order drift is proportional to the rate, its square to the rate's.
    assert best.total.value < 0.5 * now.total.value


def test_pure_noise_is_mini_batches(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, "noisy", "local_sgd.batch_size=2", "local_sgd.lr=0.01")
    line = advise(found)[0]
    assert OF["mini-batches"] in line
    assert "Larger batches" in line
    left = {remedy.name: remedy for remedy in rank_remedies(found)}
    larger = left["FedAvg, twice the batch"]
    assert larger.helps
    # Half of it, with a slack of what the two measurements differ.
    assert larger.total.value == pytest.approx(left["FedAvg (now)"].total.value / 2, rel=0.35)
    assert left["FedVARP"].change.low > 0  # rows bring in noise of their own


def test_one_steep_client_is_named(tmp_path: Path) -> None:
    """At 0.015 the steep client has arrived after five steps, the others have just begun."""
    found = diagnosed(tmp_path, "one_steep", "local_sgd.lr=0.015", "clients_per_round=40")
    lines = advise(found)
    assert OF["drift"] in lines[0]
    assert any("Client 17 is 1e+02 times as steep as the median" in line for line in lines)
    assert found.measured.smoothness.value == pytest.approx(100, rel=1e-3)


@pytest.mark.parametrize("normalised", ["false", "true"])
@pytest.mark.parametrize(
    ("federation", "rate", "steep", "bounces"),
    [
        ("one_large", 0.5, "", ""),  # f̃_0 = 20/2.9 f_0, but its steps are of 0.5 · L = 0.5
        ("one_small_and_steep", 0.25, "Client 0 is 1e+02 times as steep", "curvature is 2.5, "),
    ],
)
def test_local_steps_bounce_on_the_clients_own_losses(
    tmp_path: Path, federation: str, rate: float, steep: str, bounces: str, normalised: str
) -> None:
    """How many steps a client takes makes none of them longer, whatever it weighs."""
    file = tmp_path / "known.toml"
    file.write_text(CONFIG + f'[data]\nname = "known_federations:{federation}"\n')
    changes = ["local_sgd.epochs=1", "local_sgd.batch_size=10", f"client_lr={rate}"]
    changes.append(f"local_sgd.normalise_steps={normalised}")
    text = " ".join(advise(diagnose(file, changes, updates=False, progress=False)))
    assert (steep in text) if steep else ("times as steep" not in text)
    assert (bounces in text) if bounces else ("bounce" not in text)


@pytest.mark.parametrize("normalised", ["false", "true"])
def test_identical_clients_of_unequal_sizes_do_not_drift(tmp_path: Path, normalised: str) -> None:
    found = diagnosed(
        tmp_path,
        "identical_of_unequal_sizes",
        "local_sgd.batch_size=5",
        f"local_sgd.normalise_steps={normalised}",
        walk="epochs=1",
    )
    drift = found.interval("client_drift")
    assert drift.low <= 0 < drift.high
    assert drift.high < 0.01 * found.measured.gradient_norm2.value
    said = any("weigh them by these" in line for line in advise(found))
    assert said == (normalised == "false")


def test_few_clients_do_not_support_advice(tmp_path: Path) -> None:
    """Three of twenty clients, noise and differences of a size: which is larger, who knows."""
    file = tmp_path / "known.toml"
    file.write_text(
        CONFIG + '[data]\nname = "known_federations:apart"\nnum_clients = 20\nnoise = 1.6\n'
    )
    changes = ["local_sgd.steps=1", "local_sgd.batch_size=1"]
    found = diagnose(file, changes, sample=3, progress=False)
    text = " ".join(advise(found))
    assert "The intervals do not tell which is the largest" in text
    assert "Measure more clients (--sample)" in text


def test_one_client_neither_drifts_nor_is_chosen(tmp_path: Path) -> None:
    """The pooled data is its own: mini-batches are all there is, known from two draws."""
    file = tmp_path / "known.toml"
    file.write_text(
        CONFIG + '[data]\nname = "known_federations:apart"\nnum_clients = 1\nnoise = 1.0\n'
    )
    changes = ["clients_per_round=1", "local_sgd.steps=5", "local_sgd.batch_size=3"]
    found = diagnose(file, changes, progress=False)
    line = advise(found)[0]
    assert OF["mini-batches"] in line
    assert "100% from mini-batches" in line
    assert "more clients" not in " ".join(advise(found))
    assert found.interval("client_drift") == Estimate.exact(0.0)
    noise = found.interval("stochastic_gradient")
    assert noise.value > 0
    assert noise.low < 0.5 * noise.value < 2 * noise.value < noise.high


def test_the_choice_of_clients_is_no_cause_where_all_take_part(tmp_path: Path) -> None:
    """Noise and drift, neither told from none: that is all one may hesitate between."""
    changes = ["clients_per_round=20", "local_sgd.batch_size=2", "local_sgd.lr=0.01"]
    found = diagnosed(tmp_path, "noisy", *changes)
    assert found.updates is not None
    noise = 1e-3 * found.updates.spread.noise  # far less than its standard error
    spread = dataclasses.replace(found.updates.spread, noise=noise, drift=noise / 20)
    updates = dataclasses.replace(found.updates, spread=spread)
    line = advise(dataclasses.replace(found, updates=updates))[0]
    assert "do not tell which is the largest" in line
    assert "the choice of clients" not in line


def test_half_the_rate_of_a_single_step_halves_what_is_chance(tmp_path: Path) -> None:
    """The gradient is the same, but two rounds draw twice as many batches and clients."""
    found = diagnosed(tmp_path, "noisy", "local_sgd.batch_size=2", walk="steps=1")
    left = {remedy.name: remedy for remedy in rank_remedies(found)}
    now, half = left["FedAvg (now)"], left["FedAvg, half the rate"]
    assert half.helps
    assert half.errors.stochastic_gradient == pytest.approx(now.errors.stochastic_gradient / 2)
    assert half.errors.partial_participation == pytest.approx(now.errors.partial_participation / 2)
    assert half.price == "2 × the rounds"
    assert half.setting == "client_lr=0.15"
