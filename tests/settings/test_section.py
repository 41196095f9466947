"""Sections: the same sentence for a wrong call from Python as for a wrong file."""

from __future__ import annotations

import pytest

from fedvarp import Evaluation, LocalSGD, Recording, Table, Trainer
from fedvarp.experiments.files import load_settings
from fedvarp.settings.problems import SettingsError

WRONG = [
    (Table, "table", {"codec": "int4"}, "codec = 'int4' is not one of"),
    (Table, "table", {"recluster_every": 3}, "goes with clusters"),
    (Trainer, "trainer", {"workers": 0}, "workers = 0 should be at least 1"),
    (Trainer, "trainer", {"name": "paralel"}, "is no trainer; did you mean parallel"),
    (Evaluation, "evaluation", {"every": 2.5}, "every = 2.5 should be a whole number"),
    (Evaluation, "evaluation", {"target_accuracy": 50}, "target_accuracy = 50 should be at most 1"),
    (Recording, "recording", {"commit_every": 0}, "commit_every = 0 should be at least 1"),
    (LocalSGD, "local_sgd", {"momentum": 1.0}, "momentum = 1.0 should be less than 1"),
]


@pytest.mark.parametrize(("section", "name", "wrong", "says"), WRONG, ids=lambda part: str(part))
def test_python_and_files_refuse_with_the_same_words(
    section: type, name: str, wrong: dict[str, object], says: str
) -> None:
    right = {"lr": 0.1, "batch_size": 8, "epochs": 1} if section is LocalSGD else {}
    with pytest.raises(SettingsError, match=rf"^{section.__name__}: .*{says}"):
        section(**(right | wrong))
    ((key, value),) = wrong.items()
    with pytest.raises(SettingsError, match=f"{name}.*{says}"):
        load_settings("digits", [f"{name}.{key}={value}"])


def test_a_misspelt_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"LocalSGD: batchsize is no setting.*batch_size"):
        LocalSGD(lr=0.1, batchsize=8, epochs=1)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"LocalSGD: lr is missing: The client learning rate"):
        LocalSGD(batch_size=8, epochs=1)  # type: ignore[call-arg]


def test_sections_are_frozen_and_replaced_with_the_same_checks() -> None:
    local = LocalSGD(lr=0.1, batch_size=8, epochs=1)
    with pytest.raises(ValueError, match="frozen"):
        local.lr = 0.2
    assert local.replace(lr=0.2).batch_size == 8
    with pytest.raises(SettingsError, match=r"LocalSGD: lr = -1"):
        local.replace(lr=-1)
