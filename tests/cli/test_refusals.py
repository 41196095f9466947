"""The command line refuses before it writes, and its way out works as it is printed."""

from __future__ import annotations

import functools
import hashlib
import http.server
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedvarp.cli import data
from fedvarp.cli.app import app
from fedvarp.data import DataError, FederatedDataset, MissingDataError, download, from_tensors
from some_runs import write_run

SHORT = ("--set", "rounds=2", "--set", "evaluation.every=2")


def fedvarp(*words: str | Path) -> tuple[int, str]:
    """The exit code, and all that was printed without frames and line ends."""
    ended = CliRunner().invoke(app, [str(word) for word in words])
    return ended.exit_code, " ".join((ended.stdout + ended.stderr).replace("│", " ").split())


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "metrics.jsonl").write_text("mine")
    for more in ((), ("--set", "recording.resume=true")):
        code, said = fedvarp("run", "digits", *SHORT, *more, "--out", "notes")
        assert code == 2
        assert "no run, but holds metrics.jsonl" in said
    assert [file.read_text() for file in (tmp_path / "notes").iterdir()] == ["mine"]
    code, said = fedvarp("run", "digits", *SHORT, "--out", "notes/run")  # as it says
    assert code == 0


def test_a_sweep_among_strangers_writes_nothing(tmp_path: Path) -> None:
    stranger = tmp_path / "all" / "digits-mifa-lr0.1-seed0" / "notes.txt"
    stranger.parent.mkdir(parents=True)
    stranger.touch()
    code, said = fedvarp(
        "sweep",
        "digits",
        *SHORT,
        "--algorithms",
        "fedavg,mifa",
        "--client-lrs",
        "0.1",
        "--out",
        "all",
    )
    assert code == 2
    assert "notes.txt" in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [stranger]


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (("--set", "local_sgd.epochs=1", "--set", "local_sgd.steps=3"), "Give one of the two"),
        (("--set", "trainer.threads=1000"), "threads=1000 is too many"),
        (("--rounds", "10"), "--set rounds=10"),
        (("--batch-size=32",), "--set local_sgd.batch_size=32"),
        (("--rounds",), "--set rounds=…"),
        (("--ouput", "x"), "Did you mean '--out'?"),
        (("--set", "foo=1"), "foo is no setting; there are algorithm"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_way_out(
    words: tuple[str, ...], meaning: str, tmp_path: Path
) -> None:
    for dry in ((), ("--dry-run",)):
        code, said = fedvarp("run", "digits", *words, *dry)
        assert code == 2
        assert meaning in said
    assert list(tmp_path.iterdir()) == []


def test_epochs_may_still_replace_steps() -> None:
    unset = ("--set", "local_sgd.epochs=none", "--set", "local_sgd.steps=3")
    assert fedvarp("run", "digits", *SHORT, *unset, "--out", "a")[0] == 0
    twice = ("--set", "local_sgd.steps=2", "--set", "local_sgd.steps=3")
    assert fedvarp("run", "digits", *SHORT, *twice, "--out", "b")[0] == 0


def test_a_trace_too_short_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("round,client\n" + "".join(f"{t},1\n" for t in range(50)))
    trace = (
        *("--set", "sampling.availability=trace"),
        *("--set", "sampling.availability.file=trace.csv"),
    )
    for more in (("--out", "run"), ("--dry-run",)):
        code, said = fedvarp("run", "digits", *trace, "--set", "rounds=300", *more)
        assert code == 2
        assert "50 rounds" in said
        assert 'after_end="repeat"' in said
    assert not (tmp_path / "run").exists()
    repeated = (*trace, "--set", "sampling.availability.after_end=repeat")
    code, _ = fedvarp("run", "digits", *repeated, "--set", "rounds=51", "--out", "run")
    assert code in (0, 3), "it runs; whether one client teaches anything is another matter"


def test_a_page_is_html(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [0.1, 0.2])
    code, said = fedvarp("report", "run", "--out", "x.txt")
    assert code == 2
    assert ".html" in said
    assert not (tmp_path / "x.txt").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("plot", "run", "--out", "new/deep/x.png"),
        ("report", "run", "--out", "new/deep/x.html"),
        ("compact", "run", "--out", "new/deep/x.jsonl"),
        ("diagnose", "digits", "--sample", "4", "--bounds-only", "--out", "new/deep/x.svg"),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_that_is_made_is_told(command: tuple[str, ...], tmp_path: Path) -> None:
    write_run(tmp_path / "run", [0.1, 0.2])
    code, said = fedvarp(*command)
    assert code == 0
    assert "Made the folder new/deep." in said
    assert command[-1] in said
    assert "Made the folder" not in fedvarp(*command)[1]


def test_a_run_remembers_where_its_data_is(
    real_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cheap = (
        *("rounds=1", "local_sgd.steps=1"),
        *("evaluation.num_train_clients=2", "evaluation.num_test_examples=100"),
    )
    overrides = [word for text in cheap for word in ("--set", text)]
    (tmp_path / "data").symlink_to(real_data)
    monkeypatch.delenv("FEDVARP_DATA", raising=False)
    preset = "shakespeare-gru-light"
    assert fedvarp("run", preset, *overrides, "--data-dir", "data", "--out", "run")[0] == 0
    before = (tmp_path / "run" / "config.toml").read_text()
    assert str(real_data) not in before  # it is no part of what the run is
    code, said = fedvarp("resume", "run", "--set", "rounds=2")
    assert code == 0, said


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server on this machine, and the folder it serves."""
    served = tmp_path / "served"
    served.mkdir()
    handler = functools.partial(QuietHandler, directory=served)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", served
        running.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_truncated_archive_is_downloaded_again(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    whole = served / "cifar-10-python.tar.gz"
    with tarfile.open(whole, "w:gz") as archive:
        archive.add(__file__, "data_batch_1")

    def load(folder: Path) -> FederatedDataset:
        """Stands for the reading of 170 MB."""
        file = folder / whole.name
        if not file.exists():
            raise MissingDataError("nothing there.")
        if file.read_bytes() != whole.read_bytes():
            raise DataError(f"{file} ends early or is damaged.")
        return from_tensors([([[1.0]], [0])])  # type: ignore[list-item]

    monkeypatch.setitem(data._LOADERS, "cifar10", load)
    monkeypatch.setattr(download, "CIFAR10_URL", f"{url}/{whole.name}")
    monkeypatch.setattr(download, "CIFAR10_MD5", hashlib.md5(whole.read_bytes()).hexdigest())
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / whole.name).write_bytes(whole.read_bytes()[:100])
    code, said = fedvarp("data", "cifar10", "--data-dir", folder)
    assert code == 0, said
    assert "damaged. Downloading it again." in said
    assert "complete and verified" in said
    assert (folder / whole.name).read_bytes() == whole.read_bytes()


def test_a_damaged_copy_of_another_name_is_pointed_out(
    real_data: Path, server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    with zipfile.ZipFile(served / "1994-01-100.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(real_data / "shakespeare" / "pg100.txt", "100.txt")
    monkeypatch.setattr(download, "SHAKESPEARE_URL", f"{url}/1994-01-100.zip")
    damaged = tmp_path / "data" / "shakespeare" / "pg100.txt"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("cut off")
    code, said = fedvarp("data", "shakespeare", "--data-dir", "data")
    assert code == 1
    assert "is sound: delete the damaged copy" in said
    damaged.unlink()
    code, said = fedvarp("data", "shakespeare", "--data-dir", "data")  # as it says
    assert code == 0, said
