"""How errors are told."""

from __future__ import annotations

import errno

import pytest

from fedvarp.data import MissingDataError
from fedvarp.errors import FedvarpError, is_for_the_user, sentence, wants_tracebacks
from fedvarp.runs.errors import RunError
from fedvarp.server.checkpoint import CheckpointError
from fedvarp.settings.problems import SettingsError
from fedvarp.tables.store import WriteError
from fedvarp.trainers.worker_pool import WorkerError


@pytest.mark.parametrize(
    "kind",
    [
        FedvarpError,
        MissingDataError,
        SettingsError,
        RunError,
        CheckpointError,
        WriteError,
        WorkerError,
    ],
)
def test_errors_of_this_package_speak_for_themselves(kind: type[Exception]) -> None:
    assert is_for_the_user(kind("What, why, and the way out."))
    assert sentence(kind("What, why, and the way out.")) == "What, why, and the way out."


def test_mistakes_of_ours_are_called_so() -> None:
    said = sentence(KeyError("lr"))
    assert not is_for_the_user(KeyError("lr"))
    assert "mistake in fedvarp" in said
    assert "KeyError" in said
    assert "--traceback" in said


def test_what_the_system_refuses_is_told_with_its_place_and_a_full_disk_with_the_way_out() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", "some/file")
    assert sentence(refused) == "Permission denied (some/file)."
    full = OSError(errno.ENOSPC, "No space left on device")
    assert "free some space" in sentence(full)


def test_notes_follow_the_message() -> None:
    error = RunError("It failed.")
    error.add_note("Nothing is lost.")
    assert sentence(error) == "It failed. Nothing is lost."


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("0", False), ("1", True)])
def test_the_environment_asks_for_tracebacks(
    value: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVARP_TRACEBACK", value)
    assert wants_tracebacks() is wanted


def test_a_sentence_commands_no_terminal() -> None:
    assert sentence(FedvarpError("name \x1b]0;gone\x07 \u202e")) == (
        "name \\x1b]0;gone\\x07 \\x202e"
    )
