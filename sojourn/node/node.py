"""One node: a role's machine on its transport, its store and its workers.

It has no thread and no clock: `sojourn.node.driver` runs it in real time, `fleet_sim.world` in virtual time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sojourn import WIRE
from sojourn.errors import DiskFull, InvalidBlob, InvalidMessage, LinkError
from sojourn.links.link import Link, Will
from sojourn.logs import LEVELS, subject
from sojourn.node.machine import (
    Append,
    CancelWork,
    Effect,
    Event,
    LinkUp,
    Log,
    Machine,
    Publish,
    PublishBirth,
    Pull,
    Received,
    Send,
    StartWork,
    StoreBlob,
    TimerFired,
    WorkDone,
    WorkEvent,
    WorkFailed,
    WorkProgress,
    earliest,
)
from sojourn.node.reception import Reception
from sojourn.node.replay import replay
from sojourn.node.transport import Delivery, PacketTransport, Transport
from sojourn.node.workers import Workers
from sojourn.protocol import limits, topics
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.messages import Birth, Chunk, Death, Fetch, FetchHashes, Gone, Hashes, refs
from sojourn.protocol.operator_messages import Refused
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch, Ref
from sojourn.rate_limiter import RateLimiter
from sojourn.store.journal import Store

INLINE = limits.INLINE
"""Blobs up to this size are sent inside the first message to a node that refers to them, and not in later ones."""
INLINED_REMEMBERED = 256
"""At most this many blobs that were sent inside a message are remembered; the oldest is forgotten first."""
RECORDS_PER_SNAPSHOT = 512
SECONDS_PER_SWEEP = 30.0
log = logging.getLogger("sojourn")
_WORK_EVENTS = (WorkDone, WorkFailed, WorkProgress)
_BLOB_MESSAGES = frozenset({Fetch, FetchHashes, Hashes, Chunk, Gone})
_ENCODER = msgspec.msgpack.Encoder()


class Node:
    """Performs a machine's effects, in order, and passes events to it."""

    def __init__(
        self,
        fleet: str,
        machine: Machine,
        store: Store,
        links: Mapping[Role, Link],
        workers: Workers,
        *,
        pause: Callable[[float], None] = time.sleep,
        rate: RateLimiter | None = None,
        transport: Transport | None = None,
    ) -> None:
        """`rate` limits the messages of each peer; without it there is no limit.

        `transport` carries messages and blobs, by default as packets on the links.
        """
        self.fleet = topics.check_name(fleet, "fleet")
        self.machine = machine
        self.address = machine.address
        self.store = store
        self.links = links
        self.workers = workers
        self.reception = Reception(fleet, machine, links, rate)
        self.transport = transport or PacketTransport(fleet, self.address, links, store.blobs)
        self.exchange = self.transport.exchange(self._send_for_exchange, self._payload_limit)
        self.report: Callable[[WorkEvent], None]
        self.epoch: Epoch
        self.packets = 0
        """The number of packets of this boot; also the number of the last one."""
        self.next_sweep = 0.0
        self.sent_inline: dict[tuple[Address, bytes], None] = {}
        """Blobs that were sent inside a message, by receiver: a node that has lost one may fetch it."""
        self.received = self.sent = 0
        """Bytes of messages received and sent, without the birth and the overhead of the links."""
        self._pause = pause
        self.on_disk_full: Callable[[str], None] = lambda _reason: None
        """Called repeatedly, with the reason, while the disk is full."""
        self._events: deque[Event] = deque()
        self._working: dict[str, bool] = {}
        """The running work, and whether it may leave blobs that nothing refers to yet."""
        self._since_snapshot = 0
        self._observers: list[Callable[[Any], None]] = []

    def start(self, now: float, report: Callable[[WorkEvent], None]) -> None:
        """Replay the journal and resume unfinished work; workers call `report` with their events."""
        self.report = report
        self.epoch = self.store.boot()
        self._since_snapshot = replay(self.machine, self.store, self.epoch.count)
        self.next_sweep = now + SECONDS_PER_SWEEP
        self._perform(self.machine.start(now), now)
        self._run(now)

    @property
    def idle(self) -> bool:
        """Whether nothing is running or planned."""
        return not (self._working or self._events or self.exchange.pulling()) and self.wake_at() is None

    @property
    def traffic(self) -> int:
        """The bytes of messages in both directions."""
        return self.received + self.sent

    def on_record(self, observer: Callable[[Any], None]) -> None:
        """Call `observer` with every record that is written."""
        self._observers.append(observer)

    def will(self) -> Will:
        """Return what the broker publishes if this node vanishes."""
        return Will(topics.state(self.fleet, self.address), self._packed(Death()))

    def link_up(self, link: Link, now: float) -> None:
        """Publish the birth, on every connect."""
        self._publish_birth(link)
        self.reception.link_up(link)
        self._events.append(LinkUp())
        self._run(now)

    def arrived(self, link: Link, topic: str, payload: bytes, now: float) -> None:
        """Process a payload that a link received."""
        arrival = self.reception.read(link, topic, payload, now)
        if isinstance(arrival, Delivery):
            self.deliver(arrival, now)
        else:
            self._events.extend(arrival)
            self._run(now)

    def deliver(self, delivery: Delivery, now: float) -> None:
        """Process a message."""
        try:
            self._accept(delivery, now)
        except (InvalidMessage, InvalidBlob) as error:
            self.reception.drop(delivery.sender.name, str(error))
        self._run(now)

    def inject(self, event: Event, now: float) -> None:
        """Take an event that is not a message, such as a worker's report."""
        if isinstance(event, _WORK_EVENTS):
            if event.key not in self._working:
                return
            if not isinstance(event, WorkProgress):
                del self._working[event.key]
        self._events.append(event)
        self._run(now)

    def tick(self, now: float) -> None:
        """Perform what is due."""
        self.exchange.tick(now)
        wake = self.machine.wake_at()
        if wake is not None and wake <= now:
            self._events.append(TimerFired())
        self._run(now)
        if now >= self.next_sweep and not any(self._working.values()):
            self._sweep(now)

    def is_due(self, now: float) -> bool:
        """Return whether a tick has something to do: what it was set for may have been answered since."""
        wake = self.wake_at()
        return now >= self.next_sweep or (wake is not None and wake <= now)

    def wake_at(self) -> float | None:
        """Return when to tick at the latest."""
        wake, pulling = self.machine.wake_at(), self.exchange.wake_at()
        return wake if pulling is None else earliest(wake, pulling)

    def refuse(self, link: Link, topic: str, payload: bytes, reason: str, now: float) -> bool:
        """Refuse an operator's request because the disk is full; return False, and do nothing, for others."""
        request = self.reception.operator_request(link, topic, payload, now)
        if request is None:
            return False
        sender, ticket = request
        text = (
            f"the disk of coordinator {self.address.name!r} is full, and it waits until there is room. Free "
            f"disk space on that machine, then try again ({reason}). Requests already accepted will be completed"
        )
        self._transmit(sender, Refused(ticket, text), now)
        return True

    def close(self) -> None:
        """Stop cleanly: publish the death, and write a snapshot so that the next start is fast."""
        for link in set(self.links.values()):
            link.publish(topics.state(self.fleet, self.address), self._packed(Death()), retain=True)
            link.close()
        self.workers.close()
        self._snapshot()
        self.store.close()

    def _accept(self, delivery: Delivery, now: float) -> None:
        """Process a message that may be for this node."""
        sender, message = delivery.sender, delivery.message
        self.reception.admit(delivery)
        self.received += delivery.size
        useful = True
        if type(message) in _BLOB_MESSAGES:
            outcomes, useful = self.exchange.handle(sender, message, now)
            self._events.extend(outcomes)
            if not useful:
                self.reception.limit(sender, now)
        else:
            self.reception.limit(sender, now)
            if delivery.blobs:
                self.transport.keep(sender, delivery.blobs)
            self._events.append(Received(sender, delivery.epoch, message))
        self.machine.on_traffic(sender, delivery.size, now, sign_of_life=useful)

    def _run(self, now: float) -> None:
        while self._events:
            self._perform(self.machine.handle(self._events.popleft(), now), now)
        since = self._since_snapshot
        if since and (since >= RECORDS_PER_SNAPSHOT or self.store.needs_compaction()):
            self._since_snapshot = 0
            self._snapshot()

    def _snapshot(self) -> None:
        """Write a snapshot for a faster next start; without room for it, the journal only grows longer."""
        try:
            self.store.snapshot(self.machine.snapshot())
        except DiskFull as error:
            log.warning("%s: no snapshot is written", error)

    def _perform(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect.to, effect.message, now)
                case Append():
                    self._append(effect)
                case Log():
                    _log(effect)
                case Pull():
                    self._events.extend(self.exchange.pull(effect.ref, effect.source, now))
                case StartWork():
                    self._working[effect.key] = effect.keeps
                    self.workers.start(effect.key, effect.work, self.report)
                case StoreBlob():
                    self._retry_while_disk_full(self.store.blobs.put, effect.data, effect.digest)
                case CancelWork():
                    self._working.pop(effect.key, None)
                    self.workers.stop(effect.key)
                case PublishBirth() | Publish():
                    self._publish(effect)

    def _append(self, effect: Append) -> None:
        self._retry_while_disk_full(self._write, _ENCODER.encode(effect.record), effect)
        self._since_snapshot += 1
        for observer in self._observers:
            observer(effect.record)

    def _write(self, record: bytes, effect: Append) -> None:
        for digest in effect.blobs:
            self.store.blobs.sync(digest)
        self.store.append(record, sync=effect.sync)

    def _retry_while_disk_full(self, write: Callable[..., object], *args: object) -> None:
        """Retry until the write succeeds: no effect may leave that a crash could make this node forget."""
        reported = False
        while True:
            try:
                write(*args)
            except DiskFull as error:
                if not reported:
                    log.error("%s", error)  # noqa: TRY400  # the disk is full, not a bug
                reported = True
                self._pause(2.0)
                self.on_disk_full(str(error))
            else:
                return

    def _payload_limit(self, to: Address) -> int:
        return self.links[to.role].payload_limit

    def _send(self, to: Address, message: Message, now: float) -> None:
        """Send a message of the machine; its receiver may fetch the blobs that it refers to."""
        carried = refs(message)
        if not carried:
            self._transmit(to, message, now)
            return
        self.exchange.grant(to, [ref.digest for ref in carried])
        self._transmit(to, message, now, self._inlined(to, carried))

    def _inlined(self, to: Address, carried: list[Ref]) -> dict[bytes, Ref]:
        """Return the references with their blob inlined: small blobs that were not sent to this node before."""
        room, inlined = self._payload_limit(to) // 2, dict[bytes, Ref]()
        for ref in carried:
            if ref.size > INLINE or ref.size > room or (to, ref.digest) in self.sent_inline:
                continue
            try:
                content = self.store.blobs.read(ref.digest)
            except KeyError:
                continue
            inlined[ref.digest] = Ref(ref.digest, ref.size, ref.encoding, ref.delta, content)
            room -= ref.size
            self.sent_inline[to, ref.digest] = None
            limits.drop_oldest(self.sent_inline, INLINED_REMEMBERED)
        return inlined

    def _send_for_exchange(self, to: Address, message: Message) -> None:
        self._transmit(to, message, 0.0)

    def _transmit(self, to: Address, message: Message, now: float, inlined: Mapping[bytes, Ref] | None = None) -> None:
        size = self.transport.send(to, self._packet(message), inlined or {})
        if size:
            self.sent += size
            self.machine.on_traffic(to, size, now, sign_of_life=False)

    def _packet(self, message: Message) -> Packet:
        self.packets += 1
        return Packet(self.packets, self.epoch, message)

    def _packed(self, message: Birth | Death) -> bytes:
        return pack(self._packet(message))

    def _publish_birth(self, *links: Link) -> None:
        """Publish the birth; a link that is down drops it, and the next connect publishes it."""
        for link in links:
            birth = self._packed(Birth(self.machine.offer, WIRE))
            link.publish(topics.state(self.fleet, self.address), birth, retain=True)

    def _publish(self, effect: PublishBirth | Publish) -> None:
        if isinstance(effect, PublishBirth):
            self._publish_birth(*set(self.links.values()))
            return
        try:
            self.links[effect.role].publish(effect.topic, effect.payload, retain=True)
        except LinkError as error:
            log.error("cannot publish %s: %s", effect.topic, error)  # noqa: TRY400
            return
        self.sent += len(effect.payload)

    def _sweep(self, now: float) -> None:
        """Delete the blobs that nothing refers to."""
        live = frozenset(self.machine.live())
        self.exchange.forget(live)
        self.store.blobs.sweep(live)
        self.transport.swept()
        self.next_sweep = now + SECONDS_PER_SWEEP


def _log(effect: Log) -> None:
    """Log a sentence if its level is enabled: formatting the steps of many visits takes time."""
    if log.isEnabledFor(level := LEVELS[effect.level]):
        log.log(level, "%s", effect.text, extra=subject(effect.about))
