"""The operator's side: asks a coordinator, and asks again until it answers.

Other operators may share the name, and so the inbox: answers are told apart by the ticket of the question.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import time
from typing import TYPE_CHECKING, Self

import msgspec

from sojourn import topics
from sojourn.blobs import verified
from sojourn.envelope import Packet, pack, unpack
from sojourn.errors import InvalidBlob, InvalidMessage, JobError, LinkError
from sojourn.exchange import Exchange
from sojourn.machine import Linked, Pulled
from sojourn.memory_blobs import MemoryBlobs
from sojourn.messages import Chunk, Export, Exported, Gone, Hashes, Inspect, Jobs, Refused, Stop, Submit
from sojourn.mqtt import MqttLink
from sojourn.outbox import Outbox
from sojourn.topics import Address
from sojourn.wire import Epoch

if TYPE_CHECKING:
    from types import TracebackType

    from sojourn.broker_settings import BrokerSettings
    from sojourn.link import Link
    from sojourn.messages import Message
    from sojourn.wire import JobView, Ref

PATIENCE = 10.0
"""Seconds for a coordinator that is there to answer."""
EXPORT_PATIENCE = 300.0
"""Seconds for an export: the model is put together and checked first."""
log = logging.getLogger(__name__)


class Operator:
    """A person's connection to a coordinator, open for as long as the `with` block."""

    def __init__(
        self, broker: BrokerSettings, *, fleet: str, cloud: str, name: str = "operator", link: Link | None = None
    ) -> None:
        self._fleet = topics.check_name(fleet, "fleet")
        self._cloud = Address("cloud", topics.check_name(cloud, "coordinator"))
        self._me = Address("cloud", topics.check_name(name, "operator"))
        self._broker = broker
        named = broker if broker.username is not None else msgspec.structs.replace(broker, username=name)
        # Every process has a client id of its own, or two operators of one name would throw each other out.
        self._link = link or MqttLink(named, f"{name}-{secrets.token_hex(4)}")
        self._epoch = Epoch(1, os.urandom(8))
        self._number = 0
        self._inbox: queue.SimpleQueue[Message | Linked | None] = queue.SimpleQueue()
        self._blobs = MemoryBlobs()
        self._exchange = Exchange(self._blobs, self._send, lambda _: self._link.payload_limit)
        self._open = False
        self._was_up = False
        self._down: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._link.close()

    def jobs(self, patience: float = PATIENCE) -> tuple[JobView, ...]:
        """All jobs, without their history."""
        return self._ask_jobs(Inspect(_ticket()), patience)

    def job(self, name: str, since: int = 0, patience: float = PATIENCE) -> JobView:
        """One job, with at most a hundred rounds of its history from one on."""
        return self._ask_jobs(Inspect(_ticket(), name, since), patience)[0]

    def submit(self, text: str) -> JobView:
        """Queue the job in a TOML text."""
        return self._ask_jobs(Submit(_ticket(), text), PATIENCE)[0]

    def stop(self, name: str) -> JobView:
        """End a job."""
        return self._ask_jobs(Stop(_ticket(), name), PATIENCE)[0]

    def export(self, name: str) -> tuple[bytes, float]:
        """The newest model of a job as ONNX, and its accuracy."""
        self.job(name)  # whether it is there is known at once; an export takes its time
        answer = self._ask(Export(_ticket(), name), EXPORT_PATIENCE)
        if not isinstance(answer, Exported):
            raise LinkError(f"coordinator {self._cloud.name!r} answered with {type(answer).__name__}")
        return self._fetch(answer.model), answer.accuracy

    # --- what the link tells, on its own thread

    def link_up(self, link: Link) -> None:  # noqa: ARG002
        """The broker is there: what was asked before was not heard."""
        self._was_up, self._down = True, None
        self._inbox.put(Linked())

    def link_down(self, link: Link, reason: str) -> None:  # noqa: ARG002
        """The broker is gone, or was never there."""
        self._down = reason
        self._inbox.put(None)

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:  # noqa: ARG002
        """A message came; only the coordinator's are of interest."""
        route = topics.read(self._fleet, topic)
        if route is None or route.node != self._me or route.sender != self._cloud.name:
            return
        try:
            self._inbox.put(unpack(payload, self._cloud, self._me).message)  # type: ignore[arg-type]
        except InvalidMessage as error:
            log.warning("dropped a message from %s: %s", self._cloud.name, error)

    # --- asking

    def _ask_jobs(self, question: Inspect | Submit | Stop, patience: float) -> tuple[JobView, ...]:
        answer = self._ask(question, patience)
        if not isinstance(answer, Jobs) or not (answer.jobs or isinstance(question, Inspect)):
            raise LinkError(f"coordinator {self._cloud.name!r} answered with {type(answer).__name__}")
        return answer.jobs

    def _ask(self, question: Inspect | Submit | Stop | Export, patience: float) -> Jobs | Exported:
        """Ask until the answer with our ticket is here."""
        if not self._open:
            self._open = True
            self._link.open(self, [topics.inbox_filter(self._fleet, self._me)], None)
        outbox, deadline = Outbox(), time.monotonic() + patience
        sends = outbox.ask("it", self._cloud, question, time.monotonic())
        while True:
            for send in sends:
                self._send(send.to, send.message)
            answer = self._next(min(deadline, outbox.wake_at() or deadline))
            if isinstance(answer, Jobs | Exported | Refused) and answer.ticket == question.ticket:
                break
            now = time.monotonic()
            self._give_up_if_in_vain(now > deadline, patience)
            sends = outbox.hasten(now) if isinstance(answer, Linked) else outbox.due(now)
        if isinstance(answer, Refused):
            raise JobError(answer.reason)
        return answer

    def _next(self, until: float) -> Message | Linked | None:
        """What happens next; None when time is up or the link is down."""
        try:
            return self._inbox.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _give_up_if_in_vain(self, late: bool, patience: float) -> None:
        if self._down is not None and (late or not self._was_up):
            raise LinkError(self._down)
        if late:
            raise LinkError(
                f"no answer from coordinator {self._cloud.name!r} at {self._broker.address} in {patience:g} s: is it "
                f"running, in the fleet {self._fleet!r}, with {self._me.name!r} among its operators?"
            )

    def _fetch(self, ref: Ref) -> bytes:
        """The content of a blob that the coordinator has for us."""
        if ref.inline is not None:
            return verified(ref.inline, ref)
        deadline = time.monotonic() + PATIENCE
        outcomes = self._exchange.pull(ref, self._cloud, time.monotonic())
        while not outcomes:
            message = self._next(min(deadline, self._exchange.wake_at() or deadline))
            now = time.monotonic()
            if isinstance(message, Hashes | Chunk | Gone) and message.digest == ref.digest:
                deadline = now + PATIENCE
                outcomes, _ = self._exchange.handle(self._cloud, message, now)
            self._exchange.tick(now)
            self._give_up_if_in_vain(now > deadline, PATIENCE)
        if not isinstance(outcomes[0], Pulled):
            raise InvalidBlob("the coordinator no longer has the model that it exported: export it again")
        return self._blobs.read(ref.digest)

    def _send(self, to: Address, message: Message) -> None:
        self._number += 1
        payload = pack(Packet(self._number, self._epoch, message))
        self._link.publish(topics.inbox(self._fleet, to, self._me.name), payload)


def _ticket() -> str:
    return secrets.token_hex(8)
