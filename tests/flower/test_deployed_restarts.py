"""SuperNodes that are killed and started again under other ids, on a real SuperLink."""

from __future__ import annotations

import numpy as np
import pytest

from flower.deployment import ON_REAL_PROCESSES, Deployment

pytestmark = ON_REAL_PROCESSES

MEAN = [1 / 3, 2 / 3, 1.0]  # of the centres (i + 1) e_i of three clients that count the same


@pytest.mark.parametrize("names", [False, True])
def test_a_killed_and_restarted_supernode_does_not_count_twice(
    deployment: Deployment, names: bool
) -> None:
    """Without names the old row leaves with its node id; with names it is found again."""
    flower = deployment.flower
    settings = {"names": names, "ask-names": False, "deadline": 20.0}
    run = deployment.submit("run", {"num-server-rounds": 24, **settings})
    first = deployment.wait_for_training(2, run)
    deployment.wait_for_training(2, run, after=first)
    flower.kill("supernode-2")
    flower.start_supernode(2)
    flower.wait_for_end(run)
    saved = deployment.saved()
    assert saved.round == 24
    assert len(saved.clients) == (3 if names else 4)
    # A ghost would push the last coordinate to 2 instead of 1 for ever.
    np.testing.assert_allclose(saved.w, MEAN, atol=0.05)
    assert "error" not in flower.log("supernode-0").lower(), "nobody was asked who they are"

    with_less = deployment.submit("second", {"num-server-rounds": 26, **settings})
    flower.wait_for_end(with_less)
    resumed = deployment.saved()
    assert len(resumed.clients) == 3, "the row of an id that is gone was dropped"
    np.testing.assert_allclose(resumed.w, MEAN, atol=0.05)
