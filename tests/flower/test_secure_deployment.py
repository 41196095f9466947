"""TLS and SuperNode authentication: who has no registered key stays outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from flower.certificates import make_supernode_key, make_tls
from flower.deployment import NUM_CLIENTS, ON_REAL_PROCESSES, deployed, fedvarp_by_hand

pytestmark = ON_REAL_PROCESSES


def test_only_supernodes_with_a_registered_key_take_part(tmp_path: Path) -> None:
    keys = [make_supernode_key(tmp_path / f"key-{client}") for client in range(NUM_CLIENTS)]
    wrong_key = make_supernode_key(tmp_path / "wrong-key")
    tls = make_tls(tmp_path / "tls")
    with deployed(tmp_path, 0, "--enable-supernode-auth", tls=tls) as deployment:
        flower = deployment.flower
        registered = []
        for client, key in enumerate(keys):
            public = str(key.with_suffix(".pub"))
            told = flower.flwr("supernode", "register", public, "here", "--format", "json")
            registered.append(int(json.loads(told)["node-id"]))
            flower.start_supernode(client, "--auth-supernode-private-key", str(key))
        intruders = [
            flower.start_supernode(
                0, "--auth-supernode-private-key", str(wrong_key), name="wrong-key"
            ),
            flower.start_supernode(0, name="no-key"),
        ]
        assert [flower.node_id(f"supernode-{i}") for i in range(NUM_CLIENTS)] == registered
        for name in intruders:
            intruder = flower.processes[name]
            flower.wait_for(f"{name} to give up", lambda: intruder.poll() is not None)  # noqa: B023
            assert intruder.returncode != 0
            assert "SuperNode ID" not in flower.log(name)
        assert flower.listening_elsewhere() == []

        config = {"num-server-rounds": 2, "identity": "supernode-key"}
        flower.wait_for_end(deployment.submit("run", config))
        saved = deployment.saved()
    assert saved.accepted == {1: [0, 1, 2], 2: [0, 1, 2]}
    assert {client["node"] for client in saved.clients.values()} == set(registered)
    assert all(name.startswith("key ") for name in saved.clients)
    np.testing.assert_allclose(saved.w, fedvarp_by_hand(saved.accepted), rtol=1e-5)
