"""`fedvarp flower forget`: a client is erased from a folder, and mistakes end in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedvarp.cli.app import app

pytest.importorskip("flwr")


def test_a_client_is_forgotten_and_mistakes_are_told(tmp_path: Path) -> None:
    from flwr.supercore.task_identity import TaskIdentity

    from fedvarp.flower import FedVARP
    from flower.centres import centres_grid, train

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    train(FedVARP(checkpoint=tmp_path, fraction_evaluate=0), centres_grid(named=True), 1)
    done = CliRunner().invoke(app, ["flower", "forget", str(tmp_path), "2"])
    assert done.exit_code == 0, done.output
    assert "knows nothing of '2'" in done.output
    for folder, message in ((tmp_path, "no client '2'"), (tmp_path / "no", "holds no run")):
        wrong = CliRunner().invoke(app, ["flower", "forget", str(folder), "2"])
        assert wrong.exit_code != 0
        assert message in wrong.output
        assert "Traceback" not in wrong.output
