"""A grid in this process: Flower's `Grid` interface over a client app, without a network."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
    UserConfigValue,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

RecordType = ArrayRecord | MetricRecord | ConfigRecord
NodeConfig = Mapping[str, UserConfigValue]


@dataclass
class Node:
    """A SuperNode: where a client app runs."""

    config: NodeConfig
    context: Context
    public_key: bytes = b""
    name: str = ""  # under which it was registered


@dataclass
class InProcessGrid(Grid):
    """Runs the client app when its reply is first looked for.

    Attributes:
        app: What every node runs.
        tamper: Changes a reply on its way, or delays it: (reply) → replies that arrive now.
        chance: Decides who answers first.
    """

    app: ClientApp
    nodes: dict[int, Node] = field(default_factory=dict)
    tamper: Callable[[Message], Iterable[Message]] | None = None
    chance: random.Random = field(default_factory=random.Random)
    pushed: list[Message] = field(default_factory=list)
    _waiting: dict[str, Message] = field(default_factory=dict)

    def connect(self, node_id: int, config: NodeConfig, public_key: bytes = b"") -> None:
        context = Context(
            run_id=1,
            node_id=node_id,
            node_config=dict(config),
            state=RecordDict(),
            run_config={},
        )
        self.nodes[node_id] = Node(config, context, public_key)

    def disconnect(self, node_id: int) -> None:
        del self.nodes[node_id]

    def sent_to(self, kind: str) -> list[tuple[int, int]]:
        """(round, node) of every message of this type."""
        return [
            (int(m.metadata.group_id or 0), m.metadata.dst_node_id)
            for m in self.pushed
            if m.metadata.message_type == kind
        ]

    # Flower's interface

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=i, public_key=node.public_key, name=node.name)
            for i, node in self.nodes.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"{self.chance.getrandbits(128):032x}"
            self._waiting[message.metadata.message_id] = message
            self.pushed.append(message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found: list[Message] = []
        for id_ in sorted(message_ids):
            if id_ in self._waiting:
                reply = self._reply(self._waiting.pop(id_))
                if reply is not None:
                    found += [reply] if self.tamper is None else self.tamper(reply)
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        waiting = set(self.push_messages(messages))
        end = time.monotonic() + (3600 if timeout is None else timeout)
        found: list[Message] = []
        while waiting and time.monotonic() < end:
            arrived = list(self.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            found += arrived
        return found

    def _reply(self, message: Message) -> Message | None:
        node = self.nodes.get(message.metadata.dst_node_id)
        if node is None:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        copy = Message(
            RecordDict({k: _copied(v) for k, v in message.content.items()}),
            message.metadata.dst_node_id,
            message.metadata.message_type,
            group_id=message.metadata.group_id,
        )
        copy.metadata.__dict__["_message_id"] = message.metadata.message_id
        try:
            return self.app(copy, node.context)
        except Exception as error:  # as Flower's own runner does
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}: {error}"),
                reply_to=message,
            )


def _copied(record: RecordType) -> RecordType:
    """What crosses a network is a copy; configurations are what client apps write into."""
    return ConfigRecord({**record}) if isinstance(record, ConfigRecord) else record
