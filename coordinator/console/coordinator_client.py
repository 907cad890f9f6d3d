"""Send requests to a coordinator over a link, fetch blobs from it, and serve blobs to it.

This is not a `sojourn.node.Node`: operators may share a name and so an inbox. They have no presence on the broker, no
boot counter and no store. The client uses the same building blocks as a node to send and fetch.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sojourn.errors import InvalidBlob, InvalidMessage, JobError, LinkError
from sojourn.links.link import Link
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import BrokerSettings
from sojourn.node.exchange import Exchange
from sojourn.node.machine import LinkUp, Pulled
from sojourn.node.pending import Outbox
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.messages import Chunk, Fetch, FetchHashes, Gone, Hashes
from sojourn.protocol.operator_messages import Refused
from sojourn.protocol.operators import Request, SignedRequest, sign_request
from sojourn.protocol.registry import Answer, Message, OperatorRequest
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Ref
from sojourn.store.blobs import ref_of, verified
from sojourn.store.memory_blobs import MemoryBlobs
from sojourn.text import clean_lines, cleaned

if TYPE_CHECKING:
    from sojourn.protocol.signing import Signer

ANSWER_TIMEOUT = 30.0
"""Seconds for a running coordinator to answer, even on a busy machine."""
_Answer = TypeVar("_Answer", bound=Answer)
log = logging.getLogger(__name__)


class CoordinatorClient:
    """A connection to one coordinator that sends requests and returns its answers; it opens with the first request."""

    def __init__(
        self, broker: BrokerSettings, fleet: str, cloud: str, name: str, link: Link | None, signer: Signer | None = None
    ) -> None:
        """`signer`: the operator's key; with it every request is signed."""
        self._signer = signer
        self.fleet = topics.check_name(fleet, "fleet")
        self.cloud = Address("cloud", topics.check_name(cloud, "coordinator"))
        self._me = Address("cloud", topics.check_name(name, "operator"))
        self._broker = broker
        named = broker if broker.username is not None else msgspec.structs.replace(broker, username=name)
        # Each process has its own client id, otherwise two operators of one name would disconnect each other.
        self._link = link or MqttLink(named, f"{name}-{secrets.token_hex(4)}")
        self._epoch = Epoch(1, os.urandom(8))
        self._number = 0
        self._inbox: queue.SimpleQueue[Message | LinkUp | None] = queue.SimpleQueue()
        self._blobs = MemoryBlobs()
        self._exchange = Exchange(self._blobs, self._send, lambda _: self._link.payload_limit)
        self._open = False
        self._was_up = False
        self._down: str | None = None

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    def interrupt(self) -> None:
        """Wake up the thread that waits for an answer; may be called from any thread."""
        self._inbox.put(None)

    # --- events of the link, on its own thread

    def link_up(self, link: Link) -> None:  # noqa: ARG002
        """The broker is connected: requests sent before may be lost."""
        self._was_up, self._down = True, None
        self._inbox.put(LinkUp())

    def link_down(self, link: Link, reason: str) -> None:  # noqa: ARG002
        """The broker is not connected."""
        self._down = reason
        self._inbox.put(None)

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:  # noqa: ARG002
        """A message arrived; only the coordinator's are used."""
        route = topics.read(self.fleet, topic)
        if route is None or route.node != self._me or route.sender != self.cloud.name:
            return
        try:
            self._inbox.put(unpack(payload, self.cloud, self._me).message)
        except InvalidMessage as error:
            log.warning("dropped a message from %s: %s", self.cloud.name, error)

    # --- requests

    def ask(self, request: OperatorRequest[_Answer], timeout: float = ANSWER_TIMEOUT) -> _Answer:
        """Repeat the request until its answer arrives; the coordinator is alive while it fetches blobs from here."""
        asked = self._prepared(request)
        outbox, deadline = Outbox(), time.monotonic() + timeout
        sends = outbox.ask("it", self.cloud, asked, time.monotonic())
        while True:
            for send in sends:
                self._send(send.to, send.message)
            answer = self._next(min(deadline, outbox.wake_at() or deadline))
            if isinstance(answer, Answer) and answer.ticket == request.ticket:
                return self._accepted(answer, request)
            now = time.monotonic()
            if self._serve(answer, now):
                deadline = now + timeout
            self._raise_if_unreachable(now > deadline, timeout)
            sends = outbox.resend_now(now) if isinstance(answer, LinkUp) else outbox.due(now)

    def _accepted(self, answer: Answer, request: OperatorRequest[_Answer]) -> _Answer:
        """Return the answer if it has the request's answer type; its texts are made safe for a terminal."""
        if isinstance(answer, Refused):
            raise JobError(clean_lines(answer.reason))
        if not isinstance(answer, request.answer()):
            raise LinkError(f"coordinator {self.cloud.name!r} answered with {type(answer).__name__}")
        return answer if answer.verbatim else cleaned(answer)

    def ask_unless(self, request: OperatorRequest[_Answer], stop: Callable[[], bool], timeout: float) -> _Answer | None:
        """Send a request that is answered later; return None once `stop` returns True, checked after `interrupt`.

        An answer that arrives during another request is lost; the caller repeats the request.
        """
        asked, deadline = self._prepared(request), time.monotonic() + timeout
        self._send(self.cloud, asked)
        while not stop():
            answer = self._next(deadline)
            if isinstance(answer, Answer) and answer.ticket == request.ticket:
                return self._accepted(answer, request)
            if isinstance(answer, LinkUp):
                self._send(self.cloud, asked)
            self._raise_if_unreachable(time.monotonic() > deadline, timeout)
        return None

    def _prepared(self, request: OperatorRequest[Any]) -> OperatorRequest[Any]:
        """Open the link, if this is the first request; returns the request, signed if the operator has a key."""
        if not self._open:
            self._open = True
            self._link.open(self, [topics.inbox_filter(self.fleet, self._me)], None)
        if self._signer is None:
            return request
        data = msgspec.msgpack.encode(request)
        statement = Request(
            self.fleet,
            self.cloud.name,
            self._me.name,
            time.time(),
            request.ticket,
            request.what,
            hashlib.sha256(data).digest(),
        )
        return SignedRequest(request.ticket, data, sign_request(statement, self._signer))

    def offer(self, *contents: bytes) -> list[Ref]:
        """Offer blobs that the coordinator can fetch while a request waits for its answer."""
        refs = [ref_of(content) for content in contents]
        for content, ref in zip(contents, refs, strict=True):
            self._blobs.put(content, ref.digest)
        self._exchange.grant(self.cloud, [ref.digest for ref in refs])
        return refs

    def _serve(self, message: Message | LinkUp | None, now: float) -> bool:
        """Send blobs that are fetched; other operators of the same name serve their own."""
        if not isinstance(message, Fetch | FetchHashes) or not self._blobs.has(message.digest):
            return False
        return self._exchange.handle(self.cloud, message, now)[1]

    def _next(self, until: float) -> Message | LinkUp | None:
        """Return the next event; None when time is up or the link is down."""
        try:
            return self._inbox.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _raise_if_unreachable(self, late: bool, timeout: float) -> None:
        if self._down is not None and (late or not self._was_up):
            raise LinkError(self._down)
        if late:
            raise LinkError(
                f"no answer from coordinator {self.cloud.name!r} at {self._broker.address} in {timeout:g} s: is it "
                f"running, in the fleet {self.fleet!r}, with {self._me.name!r} among its operators?"
            )

    def fetch(self, ref: Ref) -> bytes:
        """Return the content of a blob that the coordinator offers."""
        if ref.inline is not None:
            return verified(ref.inline, ref)
        deadline = time.monotonic() + ANSWER_TIMEOUT
        outcomes = self._exchange.pull(ref, self.cloud, time.monotonic())
        while not outcomes:
            message = self._next(min(deadline, self._exchange.wake_at() or deadline))
            now = time.monotonic()
            if isinstance(message, Hashes | Chunk | Gone) and message.digest == ref.digest:
                deadline = now + ANSWER_TIMEOUT
                outcomes, _ = self._exchange.handle(self.cloud, message, now)
            self._exchange.tick(now)
            self._raise_if_unreachable(now > deadline, ANSWER_TIMEOUT)
        if not isinstance(outcomes[0], Pulled):
            raise InvalidBlob("the coordinator no longer has the requested file: repeat the command")
        return self._blobs.read(ref.digest)

    def _send(self, to: Address, message: Message) -> None:
        self._number += 1
        payload = pack(Packet(self._number, self._epoch, message))
        self._link.publish(topics.inbox(self.fleet, to, self._me.name), payload)
