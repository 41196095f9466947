"""FedVARP on a real SuperLink with real SuperNodes, which are killed while it runs."""

from __future__ import annotations

import numpy as np

from flower.deployment import NUM_CLIENTS, ON_REAL_PROCESSES, Deployment, fedvarp_by_hand

pytestmark = ON_REAL_PROCESSES

DEADLINE = 20.0  # seconds; a round that lost a client takes as long


def test_a_killed_supernode_keeps_its_row_and_a_killed_server_app_its_run(
    deployment: Deployment,
) -> None:
    flower = deployment.flower
    first_id = flower.node_id("supernode-2")
    assert flower.listening_elsewhere() == []

    run = deployment.submit("first", {"num-server-rounds": 50, "deadline": DEADLINE})
    deployment.wait_for_training(2, run)
    deployment.hold(2)
    without = deployment.wait_until_held(2, run)
    flower.kill("supernode-2")  # in the middle of that round, which goes on without it
    deployment.release(2)
    flower.start_supernode(2)
    second_id = flower.node_id("supernode-2")
    assert second_id != first_id

    again = deployment.wait_for_training(2, run, after=without)
    deployment.wait_for_training(2, run, after=again)  # the round before is over
    deployment.hold(0)
    broken = deployment.wait_until_held(0, run)
    flower.kill_server_app()  # in the middle of a round
    flower.kill(run)
    deployment.release(0)

    saved = deployment.saved()
    assert saved.round == broken - 1
    assert 2 not in saved.accepted.get(without, [])
    assert 2 in saved.accepted[again]
    assert saved.clients.keys() == {"0", "1", "2"}  # though there were four node ids
    assert saved.clients["2"]["node"] == second_id
    assert saved.num_rows == 3
    np.testing.assert_allclose(saved.w, fedvarp_by_hand(saved.accepted), rtol=1e-5)

    run = deployment.submit("second", {"num-server-rounds": broken + 1, "deadline": DEADLINE})
    flower.wait_for_end(run)
    resumed = deployment.saved()
    assert resumed.round == broken + 1 >= 5
    assert resumed.rows == saved.rows
    assert {t: resumed.accepted[t] for t in saved.accepted} == saved.accepted
    assert deployment.history() == resumed.accepted  # what `start` returned has all rounds
    np.testing.assert_allclose(resumed.w, fedvarp_by_hand(resumed.accepted), rtol=1e-5)


def test_a_killed_superlink_costs_no_more_than_the_round_it_was_in(deployment: Deployment) -> None:
    flower = deployment.flower
    run = deployment.submit("first", {"num-server-rounds": 50, "deadline": 600.0})
    first = deployment.wait_for_training(0, run)
    deployment.wait_for_training(0, run, after=first)
    deployment.hold(0)
    broken = deployment.wait_until_held(0, run)
    flower.kill("superlink")  # and with it the ServerApp
    flower.kill(run)
    deployment.release(0)
    saved = deployment.saved()
    assert saved.round == broken - 1

    flower.start_superlink()  # SuperNodes have been trying to reach it since
    run = deployment.submit("second", {"num-server-rounds": broken + 1, "deadline": 600.0})
    flower.wait_for_end(run)
    resumed = deployment.saved()
    assert resumed.round == broken + 1
    assert resumed.accepted[broken + 1] == [0, 1, 2]
    assert resumed.rows == saved.rows
    assert {c["node"] for c in resumed.clients.values()} == {
        flower.node_id(f"supernode-{client}") for client in range(NUM_CLIENTS)
    }
    np.testing.assert_allclose(resumed.w, fedvarp_by_hand(resumed.accepted), rtol=1e-5)
