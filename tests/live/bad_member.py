"""A fleet member that breaks the protocol: it sends any message that the broker lets it send."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Self

import msgpack
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from sojourn.protocol import topics
from sojourn.protocol.topics import Address, Role
from sojourn.store.blobs import LEAF, leaf_hashes, ref_of
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from paho.mqtt.client import MQTTMessage

    from sojourn.brokers.local_broker import Broker

Fields = dict[str, Any]


class BadMember:
    """A client with a member's name. Received messages are kept as plain maps; sent ones are packed without a check."""

    def __init__(self, broker: Broker, fleet: str, role: Role, name: str) -> None:
        self.address = Address(role, name)
        self.received: list[tuple[str, Fields]] = []
        self.blobs: dict[bytes, bytes] = {}
        """The blobs that it serves to any node."""
        self.on_message: Callable[[str, Fields], None] = lambda _sender, _message: None
        self._fleet = fleet
        self._number = 0
        self._born = False
        self._epoch = [1 << 20, os.urandom(8)]
        self._connected = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.username_pw_set(name)
        inbox = topics.inbox_filter(fleet, self.address)
        self._client.on_connect = lambda *_: self._client.subscribe(inbox, 1) and None
        self._client.on_subscribe = lambda *_: self._connected.set()
        self._client.on_message = lambda _client, _data, message: self._receive(message)
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        assert self._connected.wait(LIMIT)

    def report(self, role: Role, to: str, kind: str, *, retain: bool = False, **fields: Any) -> None:
        """Send a message with any fields."""
        topic = topics.inbox(self._fleet, Address(role, to), self.address.name)
        self._client.publish(topic, self._packed(kind, fields), qos=1, retain=retain)

    def born(self, **fields: Any) -> None:
        """Be online, with any offer, until the end of the block."""
        self._born = True
        self._show("birth", fields)

    def _show(self, kind: str, fields: Fields) -> None:
        topic = topics.state(self._fleet, self.address)
        self._client.publish(topic, self._packed(kind, fields), qos=1, retain=True).wait_for_publish(LIMIT)

    def blob(self, data: bytes, encoding: str = "raw") -> Fields:
        """Return a reference to these bytes, which are served to any node."""
        ref = ref_of(data)
        self.blobs[ref.digest] = data
        return {"digest": ref.digest, "size": ref.size, "encoding": encoding}

    def wait(self, kind: str, count: int = 1, **fields: Any) -> Fields:
        """Return the newest message of a kind with these fields, once at least `count` have arrived."""

        def found() -> list[Fields]:
            of_kind = [message for _, message in list(self.received) if message["kind"] == kind]
            return [message for message in of_kind if fields.items() <= message.items()]

        wait_until(lambda: len(found()) >= count, f"{count} of {kind}", lambda: [it["kind"] for _, it in self.received])
        return found()[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._born:
            self._show("death", {})
        self._client.disconnect()
        self._client.loop_stop()

    def _packed(self, kind: str, fields: Fields) -> bytes:
        self._number += 1
        return bytes(msgpack.packb({"id": self._number, "epoch": self._epoch, "kind": kind, **fields}))

    def _receive(self, message: MQTTMessage) -> None:
        sender, fields = message.topic.rpartition("/")[2], msgpack.unpackb(message.payload, strict_map_key=False)
        self.received.append((sender, fields))
        role: Role = "edge" if self.address.role != "edge" else ("device" if sender != "cloud" else "cloud")
        data = self.blobs.get(fields.get("digest", b""))
        if fields["kind"] == "fetch" and data is not None:
            at = fields["first"] * LEAF
            self.report(
                role, sender, "chunk", digest=fields["digest"], first=fields["first"], data=data[at : at + 2 * LEAF]
            )
        elif fields["kind"] == "fetch-hashes" and data is not None:
            hashes = leaf_hashes(data)[fields["first"] * 32 :]
            self.report(role, sender, "hashes", digest=fields["digest"], first=fields["first"], hashes=hashes)
        self.on_message(sender, fields)
