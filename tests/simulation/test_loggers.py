"""Loggers, read back with the tools that people will look at them with."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedvarp import LocalSGD, SimulationResult
from fedvarp.cli.app import app
from fedvarp.data import digits
from fedvarp.models import LogisticRegression, initialised
from fedvarp.simulation.loggers import Logger, MLflowLogger, TensorBoardLogger
from simulating import simulate


def short_run(logger: Logger, rounds: int = 4, **changes: Any) -> SimulationResult:
    return simulate(
        digits(),
        initialised(lambda: LogisticRegression(64, 10), 0),
        algorithm="fedvarp",
        local_sgd=LocalSGD(lr=1.0, batch_size=10, epochs=1),
        clients_per_round=2,
        rounds=rounds,
        evaluate_every=2,
        callbacks=[logger],
        progress=False,
        fsync=False,
        **changes,
    )


def tensorboard_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in tags}


class Kept(Logger):
    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.figures: list[Mapping[str, float]] = []
        self.closed = False

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self.rounds.append(round)
        self.figures.append(figures)

    def close(self) -> None:
        self.closed = True


def test_a_logger_gets_the_numbers_of_every_round_and_is_closed() -> None:
    logger = Kept()
    assert not logger.closed
    result = short_run(logger)
    assert logger.closed
    assert logger.rounds == [0, 1, 2, 3, 4]
    for record, figures in zip(result.metrics, logger.figures, strict=True):
        assert "round" not in figures
        assert figures.get("test_accuracy") == record.get("test_accuracy")
    assert logger.figures[1]["clients"] == 2
    assert logger.figures[1]["refused"] == 0
    assert logger.figures[1]["bytes_up"] == 2 * 650 * 4


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra fedvarp[tensorboard] is not installed")
    with TensorBoardLogger(tmp_path) as logger:
        result = short_run(logger)
    curves = tensorboard_curves(tmp_path)
    evaluated = [record for record in result.metrics if "test_accuracy" in record]
    assert [step for step, _ in curves["test_accuracy"]] == [0, 2, 4]
    assert [value for _, value in curves["test_accuracy"]] == pytest.approx(
        [record["test_accuracy"] for record in evaluated]
    )
    assert curves["clients"] == [(t, 2.0) for t in (1, 2, 3, 4)]
    # TensorBoard keeps float32, to which no metric of a round comes too large.
    assert curves["server_bytes"][-1][1] == result.metrics[-1]["server_bytes"]


def test_tensorboard_forgets_rounds_that_a_resumed_run_repeats(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra fedvarp[tensorboard] is not installed")
    with TensorBoardLogger(tmp_path) as before:
        for t in range(6):
            before.log(t, {"local_loss": 1.0})
    # The checkpoint had round 3, so rounds 4 and 5 come again.
    with TensorBoardLogger(tmp_path) as after:
        for t in (4, 5):
            after.log(t, {"local_loss": 2.0})
    values = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    assert tensorboard_curves(tmp_path)["local_loss"] == list(enumerate(values))


def test_tensorboard_shows_that_a_run_diverged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra fedvarp[tensorboard] is not installed")
    with TensorBoardLogger(tmp_path) as logger:
        logger.log(1, {"local_loss": math.nan})
    ((step, value),) = tensorboard_curves(tmp_path)["local_loss"]
    assert step == 1
    assert math.isnan(value)


def test_closing_a_logger_that_logged_nothing(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra fedvarp[tensorboard] is not installed")
    TensorBoardLogger(tmp_path / "new").close()
    assert not (tmp_path / "new").exists()


# MLflow's own dependencies warn about each other.
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_logged(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra fedvarp[mlflow] is not installed")
    pytest.importorskip("sqlalchemy", reason="MLflow keeps a local database with SQLAlchemy")
    where = f"sqlite:///{tmp_path / 'mlflow.db'}"
    settings = {"algorithm": "fedvarp", "local_sgd": {"lr": 1.0}, "long": "x" * 600}
    with MLflowLogger("digits", tracking_uri=where, run_name="first", settings=settings) as logger:
        result = short_run(logger)
    client = mlflow.MlflowClient(tracking_uri=where)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params["local_sgd.lr"] == "1.0"
    points = client.get_metric_history(run.info.run_id, "test_accuracy")
    assert [point.step for point in points] == [0, 2, 4]
    assert points[-1].value == result.metrics[-1]["test_accuracy"]
    # A resumed run goes on with its curves.
    with MLflowLogger("digits", tracking_uri=where, run_id=run.info.run_id) as again:
        again.log(5, {"test_accuracy": 0.5})
    assert len(client.get_metric_history(run.info.run_id, "test_accuracy")) == 4
    with (
        pytest.raises(ZeroDivisionError),
        MLflowLogger("digits", tracking_uri=where, run_name="second") as failing,
    ):
        raise ZeroDivisionError
    assert client.get_run(failing.run_id).info.status == "FAILED"


@pytest.mark.parametrize(
    ("module", "extra", "make"),
    [
        ("tensorboard", "tensorboard", lambda: TensorBoardLogger("nowhere")),
        ("mlflow", "mlflow", MLflowLogger),
    ],
)
def test_without_the_extra_the_command_that_helps(
    module: str, extra: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ImportError, match=rf'pip install "fedvarp\[{extra}\]"'):
        make()


def test_the_command_line_logs_for_tensorboard(tmp_path: Path) -> None:
    for command in (
        ["run", "digits", "--out", str(tmp_path / "run"), "--set", "rounds=2"],
        ["resume", str(tmp_path / "run"), "--set", "rounds=4"],
    ):
        log_dir = ["--tensorboard", str(tmp_path / "live"), "--quiet"]
        result = CliRunner().invoke(app, [*command, *log_dir])
        assert result.exit_code == 0, result.output
    steps = [step for step, _ in tensorboard_curves(tmp_path / "live")["local_loss"]]
    assert steps == [1, 2, 3, 4]
