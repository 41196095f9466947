"""Settings: what files and --set may say, how they combine, and what an error tells."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from fedvarp import LocalSGD, data
from fedvarp.clients.availability import Bernoulli, Cyclic, Markov, Trace
from fedvarp.clients.importance_sampling import ImportanceSampler
from fedvarp.clients.round_robin import RoundRobinSampler
from fedvarp.clients.sampling import UniformSampler, WeightedSampler
from fedvarp.clients.stratified_sampling import StratifiedSampler
from fedvarp.data import digits
from fedvarp.experiments.build import Experiment, build
from fedvarp.experiments.files import (
    load_settings,
    preset_names,
    preset_summary,
    preset_text,
    settings_of_run,
)
from fedvarp.experiments.settings import DATASETS, Settings
from fedvarp.models import LogisticRegression, initialised
from fedvarp.server.optimizers import ServerMomentum, ServerSGD
from fedvarp.settings.names import options_of
from fedvarp.settings.problems import SettingsError, fields_of
from simulating import simulate

MINIMAL = """
rounds = 3
clients_per_round = 2
data = "quadratics"
[local_sgd]
lr = 0.1
batch_size = 5
epochs = 1
"""


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def refusal(source: str | Path, *overrides: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(source, overrides)
    return str(caught.value)


def built(*overrides: str) -> Experiment:
    return build(load_settings("digits", overrides))


# What combines with what


def test_a_minimal_file_is_completed(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, MINIMAL))
    assert settings.name == "mine"
    assert settings.model.name == "quadratic"  # it follows from the data
    assert (settings.algorithm, settings.server.lr, settings.trainer.threads) == ("fedvarp", 1.0, 1)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("algorithm=mifa", "algorithm", "mifa"),  # no quotes
        ('algorithm="mifa"', "algorithm", "mifa"),
        ("seed = 7", "seed", 7),
        ("client_lr=.5", "local_sgd.lr", 0.5),
        ("local_sgd.lr=1e-2", "local_sgd.lr", 0.01),
        ("local_sgd.lr=10^-1.5", "local_sgd.lr", 10**-1.5),
        ("sampling.dropout=0.5", "sampling.dropout", 0.5),
        ("table={where='disk', codec='int8'}", "table.codec", "int8"),
        ("model=logistic_regression", "model.name", "logistic_regression"),
    ],
)
def test_overrides_are_toml_values_or_plain_texts(text: str, key: str, value: object) -> None:
    found: Any = load_settings("digits", [text])
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_later_sources_win(tmp_path: Path) -> None:
    mine = written(tmp_path, 'preset = "digits"\nrounds = 7\n[local_sgd]\nbatch_size = 4\n')
    settings = load_settings(mine, ["rounds=8", "rounds=9"])
    assert settings.rounds == 9
    assert settings.local_sgd.batch_size == 4
    assert settings.local_sgd.epochs == load_settings("digits").local_sgd.epochs
    assert settings.name == "mine"


def test_steps_replace_epochs_and_epochs_steps() -> None:
    by_steps = load_settings("digits", ["local_sgd.steps=3"]).local_sgd
    assert (by_steps.epochs, by_steps.steps) == (None, 3)
    of_a_run = load_settings("digits", ["local_sgd.steps=3"]).as_toml()
    back = settings_of_run(of_a_run, "config.toml", ["local_sgd.epochs=2"]).local_sgd
    assert (back.epochs, back.steps) == (2, None)


def test_both_epochs_and_steps_in_one_source_are_refused(tmp_path: Path) -> None:
    both = written(tmp_path, MINIMAL + "steps = 3\n")
    assert "give one of epochs and steps" in refusal(both)


def test_a_section_of_another_kind_starts_anew() -> None:
    kept = load_settings("digits", ["data.partition=iid", "data=digits"])
    assert kept.data.name == "digits"
    assert kept.data.options["partition"] == "iid"
    other = load_settings("digits", ["data.num_clients=50", "data=logistic"])
    assert other.data.name == "logistic"
    assert other.data.options["num_clients"] == 30  # Synthetic's own, not the 50 of the digits


@pytest.mark.parametrize(
    ("overrides", "way_out"),
    [
        (["data.alpha=0.5"], "data.partition=dirichlet"),
        (["data.partition=iid", "data.alpha=0.5"], "data.alpha=none"),
        (["data.partition=dirichlet", "data.shards_per_client=4"], "data.partition=shards"),
    ],
)
def test_what_the_partition_does_not_use_is_refused(overrides: list[str], way_out: str) -> None:
    ignored = overrides[-1].removeprefix("data.").replace("=", " = ")
    with pytest.raises(SettingsError, match=f"{ignored} has no effect"):
        built(*overrides)
    built(*overrides, way_out)


def test_the_defaults_of_other_partitions_are_no_choice() -> None:
    """config.toml holds them all; so do those of earlier runs."""
    for partition in ("shards", "dirichlet", "iid"):
        given = load_settings("digits", [f"data.partition={partition}"])
        assert settings_of_run(given.as_toml(), "config.toml", []) == given
        assert {"alpha", "shards_per_client"} <= given.as_toml()["data"].keys()


def test_none_goes_back_to_the_default() -> None:
    settings = load_settings(
        "cifar10-lenet5", ["evaluation.target_accuracy=0.5", "evaluation.target_accuracy=none"]
    )
    assert settings.evaluation.target_accuracy is None
    assert (
        load_settings(
            "cifar10-lenet5", ["evaluation.num_train_clients=none"]
        ).evaluation.num_train_clients
        is None
    )


# What an error tells


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("alogrithm=fedavg", "alogrithm is no setting; did you mean algorithm?"),
        ("local_sgd.batchsize=3", "did you mean local_sgd.batch_size?"),
        ("batch_size=3", "did you mean local_sgd.batch_size?"),  # found in another section
        ("server_optimizer=adam", "did you mean server.name?"),  # as Python calls it
        ("rows=last_layer", "did you mean table.rows?"),
        ("sampling=stratified", "should be a section, [sampling]: set sampling.scheme or"),
        ("local_sgd.learning_rate=3", "did you mean local_sgd.lr?"),
        ("table.nonsense=1", "there are table.clip_updates, table.clusters"),
        ("algorithm=fedvrap", "did you mean fedvarp?"),
        ("data=digit", "did you mean digits?"),
        ("sampling.scheme=weighted", "is not one of uniform, examples, stratified"),
        (
            "sampling.uniform_share=0.5",
            'uniform_share goes with scheme = "importance", not "uniform"',
        ),
        ("rounds=0", "rounds = 0 should be at least 1"),
        ("rounds=2.5", "rounds = 2.5 should be a whole number"),
        ("rounds='3'", "rounds = '3' should be a whole number"),
        ("trainer.compile=True", "trainer.compile = 'True' should be true or false"),
        ("local_sgd.lr=nan", "should be a finite number"),
        ("local_sgd.momentum=1", "local_sgd.momentum = 1 should be less than 1"),
        ("sampling.dropout=oops", "sampling.dropout = 'oops' should be a number"),
        ("local_sgd=3", "local_sgd = 3 should be a section"),
        ("seed.x=3", "seed = {'x': 3} should be a whole number"),
        ("name=a/b", "may hold no slash"),
        ("model=lenet5", 'model = "lenet5" cannot read data = "digits"'),
        ("sampling.availability.probability=0.5", "sampling.availability.name is missing"),
        ("sampling.availability=bernoulli", "sampling.availability.probability is missing"),
        ("rounds=none", "rounds is missing: How many rounds to train"),
        ("rounds", "write key=value"),
    ],
)
def test_wrong_settings_are_refused_with_what_would_be_right(override: str, sentence: str) -> None:
    assert sentence in refusal("digits", override)


def test_an_error_names_the_source_of_each_wrong_setting(tmp_path: Path) -> None:
    mine = written(tmp_path, 'preset = "digits"\nrounds = 0\n')
    message = refusal(mine, "seed=-1")
    assert f"{mine}: rounds = 0" in message
    assert "--set seed=-1: seed = -1" in message
    assert message.count("\n") == 1  # and nothing else is wrong


def test_files_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path) -> None:
    assert "Texts need quotes" in refusal(written(tmp_path, "algorithm = fedvarp"))
    assert "preset = 3 should be the name of one" in refusal(written(tmp_path, "preset = 3"))
    latin = tmp_path / "latin.toml"
    latin.write_bytes('name = "Zürich"'.encode("latin-1"))
    assert f"{latin} is no text in UTF-8" in refusal(latin)
    assert "no preset called 'digit'. Did you mean digits?" in refusal(
        written(tmp_path, 'preset = "digit"')
    )
    assert "Did you mean cifar10-lenet5?" in refusal("cifar-lenet5")
    assert "twice" in refusal(written(tmp_path, "client_lr = 1\n[local_sgd]\nlr = 2\n"))
    written(tmp_path, MINIMAL, "config.toml")
    assert f"fedvarp resume {tmp_path}" in refusal(tmp_path)


# Round trips


@pytest.mark.parametrize("preset", preset_names())
def test_presets_can_be_read_back_from_what_a_run_records(preset: str, tmp_path: Path) -> None:
    settings = load_settings(preset)
    assert settings.name == preset
    again = written(tmp_path, tomli_w.dumps(settings.as_toml()), "config.toml")
    assert load_settings(again) == settings


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_is_a_short_page_with_a_remark_on_every_constant(preset: str) -> None:
    page = preset_text(preset)
    assert preset_summary(preset).startswith("Figure 1")
    assert len(page.splitlines()) < 50
    for line in page.splitlines():
        assert "=" not in line or "#" in line, line


def test_every_setting_survives_the_trip_through_toml(tmp_path: Path) -> None:
    """One value that is not the default for everything that has no alternative."""
    rich = [
        "evaluation.target_accuracy=0.5",
        "evaluation.num_train_clients=3",
        "evaluation.num_test_examples=4",
        "server.momentum=0.9",
        "sampling.objective=examples",
        "local_sgd.clip_norm=10",
        "local_sgd.optimizer={name='adam', betas=[0.5, 0.9]}",
        "local_sgd.schedule={name='cosine', rounds=50, floor=0.1}",
        "sampling.availability={name='markov', on_to_off=0.1, off_to_on=[0.5, 1, 0.25]}",
    ]
    settings = load_settings("digits", rich)
    again = written(tmp_path, tomli_w.dumps(settings.as_toml()))
    assert load_settings(again) == settings
    assert settings.sampling.availability.name == "markov"
    assert settings.sampling.availability.options["off_to_on"] == [0.5, 1, 0.25]


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(load_settings("digits"), "rounds", 3)  # noqa: B010  # mypy would refuse it


# What is derived from the declarations


@pytest.mark.parametrize("name", list(DATASETS))
def test_data_settings_are_the_parameters_of_the_functions(name: str) -> None:
    parameters = inspect.signature(getattr(data, name)).parameters
    options = options_of(DATASETS.find(name)).model_fields
    assert list(options) == [n for n in parameters if n not in ("root", "dtype")]
    for option, field in options.items():
        assert field.default == parameters[option].default


def test_the_names_of_all_settings() -> None:
    names = [name for name, _ in fields_of(Settings)]
    assert {"rounds", "data.name", "local_sgd.schedule", "table.codec"} <= set(names)
    assert len(names) == len(set(names)) > 40


def test_every_setting_says_what_it_means() -> None:
    assert [name for name, meaning in fields_of(Settings) if not meaning] == []


# From settings to objects


def test_samplers() -> None:
    uniform = built("sampling.dropout=0.25").sampler
    assert isinstance(uniform, UniformSampler)
    assert (uniform.num_clients, uniform.clients_per_round) == (100, 2)
    assert (uniform.availability, uniform.dropout) == (None, 0.25)

    by_size = built("sampling.scheme=examples", "data.num_clients=90", "data.partition=iid")
    assert isinstance(by_size.sampler, WeightedSampler)
    assert by_size.sampler.objective is None
    assert sorted(set(torch.as_tensor(by_size.sampler.sizes).tolist())) == [17.0, 18.0]
    assert by_size.task().client_weights is None

    weighted = built("sampling.objective=examples", "data.num_clients=90", "data.partition=iid")
    assert isinstance(weighted.sampler, WeightedSampler)
    assert set(torch.as_tensor(weighted.sampler.sizes).tolist()) == {1.0}
    weights = weighted.task().client_weights
    assert weights is not None
    assert weighted.sampler.objective is not None
    assert torch.equal(torch.as_tensor(weighted.sampler.objective), weights)


def test_samplers_that_know_of_clusters_turns_and_rows() -> None:
    stratified = built("sampling.scheme=stratified", "sampling.dropout=0.25").sampler
    assert isinstance(stratified, StratifiedSampler)
    assert (stratified.clients_per_round, stratified.dropout) == (2, 0.25)
    own = built().dataset.cluster_of
    assert own is not None
    assert torch.equal(torch.as_tensor(stratified.clusters), own)
    by_labels = built("sampling.scheme=stratified", "table.clusters=labels").sampler
    assert isinstance(by_labels, StratifiedSampler)

    in_turn = built("sampling.scheme=round_robin", "sampling.objective=examples")
    assert isinstance(in_turn.sampler, RoundRobinSampler)
    assert in_turn.sampler.objective is not None
    assert in_turn.task().client_weights is not None

    for given, uniform_share in (([], 0.2), (["sampling.uniform_share=0.5"], 0.5)):
        important = built("sampling.scheme=importance", *given).sampler
        assert isinstance(important, ImportanceSampler)
        assert important.uniform_share == uniform_share


def test_strata_are_known_before_the_first_round() -> None:
    with pytest.raises(SettingsError, match='"auto:5" are found later'):
        built("sampling.scheme=stratified", "table.clusters=auto:5")
    with pytest.raises(SettingsError, match=r'no clusters of its own.*"labels"'):
        built("sampling.scheme=stratified", "data=logistic")


def test_availabilities(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client\n0,5\n1,7\n")
    cases: list[tuple[str, type]] = [
        ("{name='bernoulli', probability=0.5}", Bernoulli),
        ("{name='markov', on_to_off=0.1, off_to_on=0.2}", Markov),
        ("{name='cyclic', profile=[1, 0]}", Cyclic),
        (f"{{name='trace', file='{trace}', after_end='repeat'}}", Trace),
    ]
    for text, kind in cases:
        sampler = built(f"sampling.availability={text}").sampler
        assert isinstance(sampler, UniformSampler)
        assert type(sampler.availability) is kind
    assert sampler.cohort(3).clients.tolist() == [7]  # the trace, at its end, begins again


def test_a_trace_is_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(
        "digits", ["sampling.availability=trace", "sampling.availability.file=t.csv"]
    )
    assert settings.as_toml()["sampling"]["availability"]["file"] == str(tmp_path / "t.csv")


def test_local_sgd_and_the_server() -> None:
    experiment = built(
        "local_sgd.schedule={name='exponential', decay=0.5}",
        "local_sgd.momentum=0.5",
        "local_sgd.clip_norm=2",
        "server.momentum=0.9",
        "server.lr=0.3",
    )
    local = experiment.local_sgd
    assert (local.schedule(2), local.momentum, local.clip_norm) == (0.25, 0.5, 2)
    optimizer = experiment.server_optimizer
    assert isinstance(optimizer, ServerMomentum)
    assert (optimizer.lr, optimizer.beta) == (0.3, 0.9)
    assert isinstance(built().server_optimizer, ServerSGD)


def test_every_setting_reaches_the_simulation() -> None:
    """Against the call that somebody would write by hand, bit by bit."""
    run = built(
        *(
            "seed=1",
            "rounds=5",
            "evaluation.every=2",
            "evaluation.num_train_clients=7",
            "algorithm=mifa",
        ),
        "evaluation.num_test_examples=31",
        *("table.codec=int8", "server.lr=0.5", "data.partition=iid", "data.num_clients=90"),
        *("sampling.objective=examples", "sampling.dropout=0.3", "evaluation.target_accuracy=0.99"),
    ).run()
    data = digits(partition="iid", num_clients=90)
    assert data.num_examples is not None
    sizes = data.num_examples.double()
    by_hand = simulate(
        data,
        initialised(lambda: LogisticRegression(64, 10), seed=1),
        local_sgd=LocalSGD(lr=0.1, batch_size=8, epochs=5),
        rounds=5,
        algorithm="mifa",
        seed=1,
        server_optimizer=ServerSGD(lr=0.5),
        sampler=WeightedSampler(torch.ones(90), 2, 1, objective=sizes, dropout=0.3),
        client_weights=sizes,
        codec="int8",
        evaluate_every=2,
        num_train_clients=7,
        num_test_examples=31,
        target_accuracy=0.99,
    )
    assert torch.equal(run.server.w, by_hand.server.w)
    assert run.metrics == by_hand.metrics
    assert run.server.describe() == by_hand.server.describe()


def test_the_seed_moves_the_weights_but_not_the_federation() -> None:
    first, second = built("seed=0"), built("seed=1")
    assert torch.equal(first.dataset.client(3)[0], second.dataset.client(3)[0])
    weights = [next(iter(e.model.parameters())) for e in (first, second)]
    assert not torch.equal(*weights)
    other = built("data.seed=1")
    assert not torch.equal(first.dataset.client(3)[0], other.dataset.client(3)[0])


def test_settings_that_do_not_fit_the_data_are_refused() -> None:
    with pytest.raises(SettingsError, match="between 1 and 100"):
        built("clients_per_round=101")
    with pytest.raises(SettingsError, match="nearest numbers of clients that work"):
        built("data.num_clients=99")
    with pytest.raises(SettingsError, match="'tpu' cannot be used here"):
        built("trainer.device=tpu")


@pytest.mark.parametrize("data", ["quadratics", "logistic"])
def test_synthetic_federations_can_be_run(data: str, tmp_path: Path) -> None:
    source = written(tmp_path, MINIMAL)
    # With two clients and a rate of 0.1 the loss rises after three rounds in every second seed.
    small_steps = [f"data={data}", "clients_per_round=10", "client_lr=0.01"]
    settings: Settings = load_settings(source, small_steps)
    metrics = build(settings).run().metrics
    assert metrics[-1]["train_loss"] < metrics[0]["train_loss"]
