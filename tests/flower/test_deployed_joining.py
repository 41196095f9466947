"""A SuperNode that joins in the middle of a run, and one that leaves for good, on a SuperLink."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from flower.deployment import ON_REAL_PROCESSES, deployed
from flower.federation import program

pytestmark = ON_REAL_PROCESSES


def test_a_late_client_counts_and_a_forgotten_one_does_not(tmp_path: Path) -> None:
    """The model goes to the mean of the centres (i + 1) e_i of those who are there."""
    with deployed(tmp_path, num_supernodes=2) as deployment:
        flower = deployment.flower
        settings = {"num-clients": 0, "min-nodes": 2, "ask-names": False}

        run = deployment.submit("run", {"num-server-rounds": 10, **settings})
        deployment.wait_for_training(0, run)
        deployment.hold(0)
        joined_after = deployment.wait_until_held(0, run)
        assert joined_after <= 2, "eight rounds of all three are needed to come near their mean"
        flower.start_supernode(2)
        flower.node_id("supernode-2")  # waits until the SuperLink knows it
        deployment.release(0)
        flower.wait_for_end(run)
        with_all = deployment.saved()
        assert with_all.accepted == {
            t: [0, 1] if t <= joined_after else [0, 1, 2] for t in range(1, 11)
        }
        assert with_all.num_rows == 3
        assert with_all.rows.keys() == {"0", "1", "2"}
        np.testing.assert_allclose(with_all.w, [1 / 3, 2 / 3, 1], atol=0.05)

        flower.kill("supernode-1")
        forget = [program("fedvarp"), "flower", "forget", str(deployment.checkpoint), "1"]
        subprocess.run(forget, env=flower.environment, check=True)
        # Flower believes for a minute that it is there: rounds wait for it until their deadline.
        rest = deployment.submit("rest", {"num-server-rounds": 18, "deadline": 30.0, **settings})
        flower.wait_for_end(rest)
        without = deployment.saved()
        assert without.round == 18
        assert without.clients.keys() == {"0", "2"}
        # Its row would hold the model where the three had brought it.
        np.testing.assert_allclose(without.w, [1 / 2, 0, 3 / 2], atol=0.05)
