"""What clients are called: by themselves, by Flower, or by their node id."""

from __future__ import annotations

import hashlib
from typing import Final

from flwr.app import RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedvarp.flower.replies import text_in

SUPERNODE_KEY: Final = "supernode-key"
NODE_ID: Final = "node-id"
_NODE: Final = "node "
_KEY: Final = "key "
_SUPERNODE: Final = "supernode "


def name_order(name: str) -> tuple[int, int, str]:
    """A key to sort names by: numbers by value and before words.

    Args:
        name: A client's name.

    Returns:
        The key.
    """
    number = int(name) if name.isascii() and name.isdecimal() else None
    return (1, 0, name) if number is None else (0, number, name)


def name_of_node(node: int) -> str:
    """What a client is called that tells nothing about itself.

    Args:
        node: Its node id.

    Returns:
        Its name.
    """
    return f"{_NODE}{node}"


def is_name_of_a_node(name: str) -> bool:
    """Whether a name is one that `name_of_node` gives.

    Args:
        name: A client's name.

    Returns:
        True if it is.
    """
    return name.startswith(_NODE) and name.removeprefix(_NODE).isdecimal()


def name_from_flower(node: NodeInfo, identity: str) -> str | None:
    """What a client is called whose SuperNode Flower knows by its key, or was told a name of.

    Args:
        node: The SuperNode.
        identity: What clients are known by: the key they report, or "supernode-key".

    Returns:
        A name by the key if that is asked for, else that of ``flwr supernode register --name``;
        None if Flower knows none.
    """
    if identity == SUPERNODE_KEY:
        digest = hashlib.sha256(node.public_key).hexdigest()[:16]
        return f"{_KEY}{digest}" if node.public_key else None
    return f"{_SUPERNODE}{node.name}" if node.name else None


def is_given_by_flower(name: str) -> bool:
    """Whether Flower vouches for a name: a client must not claim it, nor another in its place.

    Args:
        name: A client's name.

    Returns:
        True of names of registered SuperNodes and of keys.
    """
    return name.startswith((_SUPERNODE, _KEY))


def name_in(content: RecordDict, identity: str) -> str | None:
    """The name that a client gives itself in a reply.

    Args:
        content: Of the reply.
        identity: What clients are known by: the key they report, "supernode-key" or "node-id".

    Returns:
        The name; None if it gives none, or where clients do not choose their names.
    """
    said = None if identity in (SUPERNODE_KEY, NODE_ID) else text_in(content, identity)
    if said is None or is_name_of_a_node(said) or is_given_by_flower(said):
        return None
    return said
