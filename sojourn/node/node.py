"""One node: a role's machine on its links, its store and its workers.

It has no thread and no clock of its own: `sojourn.node.driver` runs it in real time, `fleet_sim.world` in virtual time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import msgspec

from sojourn import WIRE
from sojourn.about import NOTHING, About
from sojourn.errors import DiskFull, InvalidBlob, InvalidMessage, LinkError
from sojourn.links.link import Will
from sojourn.links.local_packet import LocalPacket
from sojourn.logs import LEVELS, subject
from sojourn.node.at_rest import NodeAtRest
from sojourn.node.exchange import Exchange
from sojourn.node.machine import (
    Announce,
    Append,
    Did,
    DidNot,
    Do,
    Doing,
    Keep,
    Linked,
    NodeRemoved,
    Overheard,
    Present,
    Publish,
    Pull,
    Received,
    Say,
    Send,
    Undo,
    Woke,
    soonest,
)
from sojourn.node.name_clashes import NameClashes, clash_warning
from sojourn.node.quotas import MEMBERS, QUOTAS, SENDERS
from sojourn.node.replay import replay
from sojourn.protocol import limits, topics
from sojourn.protocol.envelope import Packet, inlined_size, kind, pack, packed_size, unpack, unpack_presence
from sojourn.protocol.messages import Birth, Chunk, Death, Fetch, FetchHashes, Gone, Hashes, Refused, map_refs, refs
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import verified

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sojourn.links.link import Link
    from sojourn.node.exchange import Outcome
    from sojourn.node.machine import Effect, Event, Machine
    from sojourn.node.neighbours import Neighbours
    from sojourn.node.quotas import SpeakingRate
    from sojourn.node.workers import Workers
    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Address, Role
    from sojourn.protocol.wire import Epoch
    from sojourn.store.journal import Store

INLINE = limits.INLINE
"""Blobs up to this size ride inside the first message to a node that refers to them; a repeated one is small again."""
INLINED_REMEMBERED = 256
"""At most this many blobs that rode along are remembered; the oldest goes first."""
RECORDS_PER_SNAPSHOT = 512
SECONDS_PER_SWEEP = 30.0
FIRST_WIRE = 1
"""What a node speaks whose birth does not say."""
OTHERS = "others"
"""Those whose dropped messages are counted together, when there are many."""
log = logging.getLogger("sojourn")
_OF_WORK = (Did, DidNot, Doing)
_OF_BLOBS = frozenset({Fetch, FetchHashes, Hashes, Chunk, Gone})
_ENCODER = msgspec.msgpack.Encoder()


class Node:
    """Performs a machine's effects, in order, and tells it what happens."""

    def __init__(
        self,
        fleet: str,
        machine: Machine,
        store: Store,
        links: Mapping[Role, Link],
        workers: Workers,
        *,
        pause: Callable[[float], None] = time.sleep,
        rate: SpeakingRate | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        """`rate` says how quickly peers may speak; None for as quickly as they like, as in simulated time.

        With `neighbours` all peers are in this process.
        """
        self.fleet = topics.check_name(fleet, "fleet")
        self.machine = machine
        self.address = machine.address
        self.store = store
        self.links = links
        self.workers = workers
        self.report: Callable[[Did | Doing | DidNot], None]
        self.epoch: Epoch
        self._epoch_size = 0
        self.dropped: Counter[str] = Counter()
        self.received = self.sent = 0
        """Bytes of messages that came and went, the birth and what the links add apart."""
        self._pause = pause
        self.while_full: Callable[[str], None] = lambda _reason: None
        """Called again and again while nothing can be written, with the reason."""
        self._rate = rate
        self._wires: dict[Address, int] = {}
        """Which version of the wire each node speaks, as its birth says."""
        self._inlined: Counter[Address] = Counter()
        """Bytes that rode along in a node's messages since the last sweep."""
        self._inbox = topics.inbox(fleet, self.address, "")
        self._number = 0
        self._epochs: dict[Address, Epoch] = {}
        self._clashes = NameClashes()
        self._clashing: set[Address] = set()
        """Names that the log has a warning of."""
        self._events: deque[Event] = deque()
        self._working: dict[str, bool] = {}
        """The work that is under way, and whether it may leave blobs that nothing refers to yet."""
        self._since_snapshot = 0
        self._observers: list[Callable[[Any], None]] = []
        self._next_sweep = 0.0
        self._sent_inline: dict[tuple[Address, bytes], None] = {}
        """The blobs that rode along, and to whom: who has lost one may fetch it."""
        self._warned: set[tuple[str, str]] = set()
        """Senders and reasons of dropped messages that the log has a warning of."""
        self._neighbours = neighbours
        self._overhears: dict[Role, Sequence[str]] = {}
        self._exchange = Exchange(store.blobs, self._send_plain, self._limit, self._hand_over if neighbours else None)

    def start(self, now: float, report: Callable[[Did | Doing | DidNot], None]) -> None:
        """Replay the journal and take up what was under way. `report` is where workers say how it goes."""
        self.report = report
        self.epoch = self.store.boot()
        self._epoch_size = len(_ENCODER.encode(self.epoch))
        self._since_snapshot = replay(self.machine, self.store, self.epoch.count)
        self._next_sweep = now + SECONDS_PER_SWEEP
        self._perform(self.machine.start(now), now)
        self._run(now)

    def put_away(self) -> NodeAtRest | None:
        """What another `Node` of this name needs to go on from here; None while something is under way.

        What the machine knows beside its durable state is lost: who asks makes sure that it is nothing.
        """
        if self._working or self._events or self._exchange.pulling() or self.wake_at() is not None:
            return None
        sent = self._sent_inline or None
        return NodeAtRest(self.epoch, self._number, self._next_sweep, self.machine.snapshot(), sent)

    def go_on(self, rest: NodeAtRest, report: Callable[[Did | Doing | DidNot], None]) -> None:
        """Be the node that was put away: no new start, and nothing is said of it."""
        self.report = report
        self.epoch, self._number, self._next_sweep = rest.epoch, rest.number, rest.next_sweep
        self._epoch_size = len(_ENCODER.encode(self.epoch))
        self._sent_inline = rest.sent_inline or {}
        if rest.snapshot:
            self.machine.restore(rest.snapshot)

    @property
    def traffic(self) -> int:
        """Bytes of messages in both directions."""
        return self.received + self.sent

    def on_record(self, observer: Callable[[Any], None]) -> None:
        """Have somebody told of every record that is written."""
        self._observers.append(observer)

    def overhear(self, role: Role, filters: Sequence[str]) -> None:
        """Listen to topics of programs that are no nodes, too, at the broker where the nodes of a role are."""
        self._overhears[role] = filters

    def filters(self, link: Link) -> list[str]:
        """What to subscribe to on a link."""
        watched = [topics.state_filter(self.fleet, role) for role in self.machine.watches if self.links[role] is link]
        others = [topic for role, those in self._overhears.items() if self.links[role] is link for topic in those]
        return [topics.inbox_filter(self.fleet, self.address), *watched, *others]

    def will(self) -> Will:
        """What the broker is to say when we vanish."""
        return Will(topics.state(self.fleet, self.address), self._pack(Death()))

    def link_up(self, link: Link, now: float) -> None:
        """Say that we are here, on every connect."""
        self._announce(link)
        self._clashes.linked([role for role, its in self.links.items() if its is link])
        self._events.append(Linked())
        self._run(now)

    def _announce(self, *links: Link) -> None:
        """Publish our birth; where a link is down it is dropped, and said on connect."""
        for link in links:
            birth = self._pack(Birth(self.machine.offer, WIRE))
            link.publish(topics.state(self.fleet, self.address), birth, retain=True)

    def arrived(self, link: Link, topic: str, payload: bytes, now: float) -> None:
        """A message came: read it, check it, act on it; what is not valid is counted, said once, and dropped."""
        try:
            if topic.startswith(self._inbox) and topics.is_name(sender := topic[len(self._inbox) :]):
                self._message(link, sender, payload, now)
            elif self._overhears and not topics.is_of_protocol(topic):
                self._events.append(Overheard(topic, payload))
            else:
                self._presence(link, topic, payload, now)
        except (InvalidMessage, InvalidBlob) as error:
            route = topics.read(self.fleet, topic)
            self._drop(route.sender or route.node.name if route else "?", str(error))
        self._run(now)

    def inject(self, event: Event, now: float) -> None:
        """Take an event that did not come over the link, such as a worker's report."""
        if isinstance(event, _OF_WORK):
            if event.key not in self._working:
                return
            if not isinstance(event, Doing):
                del self._working[event.key]
        self._events.append(event)
        self._run(now)

    def tick(self, now: float) -> None:
        """Do what has become due."""
        self._exchange.tick(now)
        wake = self.machine.wake_at()
        if wake is not None and wake <= now:
            self._events.append(Woke())
        self._run(now)
        if now >= self._next_sweep and not any(self._working.values()):
            self._sweep(now)

    def is_due(self, now: float) -> bool:
        """Whether a tick has something to do: what it was set for may have been answered since."""
        wake = self.wake_at()
        return now >= self._next_sweep or (wake is not None and wake <= now)

    def wake_at(self) -> float | None:
        """When to tick at the latest."""
        wake, pulling = self.machine.wake_at(), self._exchange.wake_at()
        return wake if pulling is None else soonest(wake, pulling)

    def close(self) -> None:
        """Stop in good order: say goodbye, keep a snapshot so that the next start is quick."""
        for link in set(self.links.values()):
            link.publish(topics.state(self.fleet, self.address), self._pack(Death()), retain=True)
            link.close()
        self.workers.close()
        self._snapshot()
        self.store.close()

    def _pack(self, message: Message | Birth | Death) -> bytes:
        self._number += 1
        return pack(Packet(self._number, self.epoch, message))

    def _presence(self, link: Link, topic: str, payload: bytes, now: float) -> None:
        route = topics.read(self.fleet, topic)
        if route is None:
            raise InvalidMessage(f"topic {topic[:200]!r} is not ours")
        node = route.node
        if route.sender is not None:
            raise InvalidMessage(f"{route.sender} may not write to {node} here")
        if node.role not in self.machine.watches or self.links[node.role] is not link:
            raise InvalidMessage(f"nobody asked for the presence of {node}")
        if not payload:  # it was removed from the fleet, and what the broker kept of it was cleared
            self._wires.pop(node, None)
            self._clashes.forget(node)
            if (epoch := self._epochs.pop(node, None)) is not None:
                self._events.append(Present(node, epoch, Death()))
            self._events.append(NodeRemoved(node))
            return
        self._hold_back(node, now)
        packet, clash = unpack_presence(payload), False
        if isinstance(packet.message, Birth):
            if node not in self._epochs and len(self._epochs) >= MEMBERS:
                raise InvalidMessage(f"there are {MEMBERS} nodes already")
            clash = self._has_clash(node, packet.epoch, now)
            self._epochs[node], self._wires[node] = packet.epoch, packet.message.wire or FIRST_WIRE
        elif self._epochs.get(node) == packet.epoch:
            del self._epochs[node], self._wires[node]
            self._clashes.left(node, packet.epoch, now)
        self._events.append(Present(node, packet.epoch, packet.message, clash))  # type: ignore[arg-type]

    def _has_clash(self, node: Address, epoch: Epoch, now: float) -> bool:
        """Whether two running nodes use the name of one that is born; the log says so once until that is over."""
        clash = self._clashes.born(node, self._epochs.get(node), epoch, now)
        if clash and node not in self._clashing:
            about = About(device=node.name) if node.role == "device" else NOTHING
            log.warning("%s", clash_warning(node), extra=subject(about))
        (self._clashing.add if clash else self._clashing.discard)(node)
        return clash

    def _message(self, link: Link, sender_name: str, payload: bytes, now: float) -> None:
        role = self.machine.role_of(sender_name)
        if role is None or self.links.get(role) is not link:
            raise InvalidMessage(f"{sender_name} may not write to {self.address} here")
        sender = topics.Address(role, sender_name)
        packet = self._unpacked(payload, sender)
        message: Message = packet.message  # type: ignore[assignment]  # presence is unpacked elsewhere
        self._hear(LocalPacket(sender, packet.epoch, message, len(payload), {}), now)

    def refuse(self, link: Link, topic: str, payload: bytes, reason: str, now: float) -> bool:
        """Answer the request of an operator while the disk is full; False if this is none. Nothing else is done."""
        if self.address.role != "cloud" or not topic.startswith(self._inbox):
            return False
        sender = topics.Address("cloud", topic[len(self._inbox) :])
        if not topics.is_name(sender.name) or self.machine.role_of(sender.name) != "cloud":
            return False
        try:
            ticket = getattr(self._unpacked(payload, sender).message, "ticket", None)
            if ticket is None or self.links.get("cloud") is not link:
                return False
            self._hold_back(sender, now)
        except InvalidMessage:
            return False
        text = (
            f"the disk of coordinator {self.address.name!r} is full, and it does nothing until there is room: free "
            f"some space on that machine, then ask again ({reason}). It completes what it had begun as soon as it can"
        )
        self._publish(sender, Refused(ticket, text), now)
        return True

    def take(self, link: Link, packet: LocalPacket, now: float) -> None:
        """A packet of a node in the same process came: nothing in it needs to be read or doubted."""
        sender = packet.sender
        try:
            if self.machine.role_of(sender.name) != sender.role or self.links.get(sender.role) is not link:
                raise InvalidMessage(f"{sender.name} may not write to {self.address} here")
            self._hear(packet, now)
        except InvalidMessage as error:
            self._drop(sender.name, str(error))
        self._run(now)

    def _hear(self, packet: LocalPacket, now: float) -> None:
        """Act on a packet that may be meant for us."""
        sender, message = packet.sender, packet.message
        known = self._epochs.get(sender)
        if known is not None and packet.epoch.count < known.count:
            raise InvalidMessage("of an earlier boot")
        self.received += packet.size
        useful = True
        if type(message) in _OF_BLOBS:
            outcomes, useful = self._exchange.handle(sender, message, now)
            self._events.extend(outcomes)
            if not useful:
                self._hold_back(sender, now)
        else:
            self._hold_back(sender, now)
            if self._neighbours is not None:
                for digest, content in packet.blobs.items():
                    self.store.blobs.put(content, digest)
            elif any(ref.inline is not None for ref in refs(message)):
                message = map_refs(message, lambda ref: self._take_inline(sender, ref))
            self._events.append(Received(sender, packet.epoch, message))
        self.machine.heard(sender, packet.size, now, spoke=useful)

    def _unpacked(self, payload: bytes, sender: Address) -> Packet:
        # Who has not said that it speaks today's wire may be of the version before: its numbers are cut to the limits.
        return unpack(payload, sender, self.address, mend=self._wires.get(sender, FIRST_WIRE) < WIRE)

    def _hold_back(self, sender: Address, now: float) -> None:
        """Nobody may speak more quickly than its role needs; blobs that were asked for do not count."""
        if self._rate and not self._rate.allows(sender, QUOTAS[sender.role], now):
            raise InvalidMessage("it speaks too quickly: the rest is not heard")

    def _take_inline(self, sender: Address, ref: Ref) -> Ref:
        """Keep a blob that rode along; the machine sees only references."""
        if ref.inline is None:
            return ref
        self._inlined[sender] += len(ref.inline)
        try:
            if self._inlined[sender] <= QUOTAS[sender.role].inlined:  # beyond that, what is wanted is asked for
                self.store.blobs.put(verified(ref.inline, ref), ref.digest)
        except DiskFull as error:  # as if it had not ridden along: it will be asked for, and that may be declined
            log.warning("%s", error)
        return Ref(ref.digest, ref.size, ref.encoding, ref.delta)

    def _drop(self, sender: str, reason: str) -> None:
        sender = sender if sender in self.dropped or len(self.dropped) < SENDERS else OTHERS
        self.dropped[sender] += 1
        word = (sender, reason[:40])
        if word not in self._warned and len(self._warned) < 1000:
            self._warned.add(word)
            log.warning("dropped a message from %s: %s", sender, reason)

    def _run(self, now: float) -> None:
        while self._events:
            self._perform(self.machine.handle(self._events.popleft(), now), now)
        since = self._since_snapshot
        if since and (since >= RECORDS_PER_SNAPSHOT or self.store.crowded()):
            self._since_snapshot = 0
            self._snapshot()

    def _snapshot(self) -> None:
        """Make the next start quick; without the room for it, the journal only grows longer."""
        try:
            self.store.snapshot(self.machine.snapshot())
        except DiskFull as error:
            log.warning("%s: the journal stays as it is", error)

    def _perform(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect.to, effect.message, now)
                case Append():
                    self._append(effect)
                case Say():
                    _say(effect)
                case Pull():
                    self._events.extend(self._exchange.pull(effect.ref, effect.source, now))
                case Do():
                    self._working[effect.key] = effect.keeps
                    self.workers.start(effect.key, effect.work, self.report)
                case Keep():
                    self._patiently(self.store.blobs.put, effect.data, effect.digest)
                case Undo():
                    self._working.pop(effect.key, None)
                    self.workers.stop(effect.key)
                case Announce() | Publish():
                    self._retain(effect)

    def _append(self, effect: Append) -> None:
        self._patiently(self._write, _ENCODER.encode(effect.record), effect)
        self._since_snapshot += 1
        for observer in self._observers:
            observer(effect.record)

    def _write(self, record: bytes, effect: Append) -> None:
        for digest in effect.blobs:
            self.store.blobs.sync(digest)
        self.store.append(record, sync=effect.sync)

    def _patiently(self, write: Callable[..., object], *what: object) -> None:
        """Do not go on before it is written: nothing may leave that could be forgotten."""
        reported = False
        while True:
            try:
                write(*what)
            except DiskFull as error:
                if not reported:
                    log.error("%s", error)  # noqa: TRY400  # the disk is full, not the code wrong
                reported = True
                self._pause(2.0)
                self.while_full(str(error))
            else:
                return

    def _limit(self, to: Address) -> int:
        return self.links[to.role].payload_limit

    def _send(self, to: Address, message: Message, now: float) -> None:
        carries = refs(message)
        if not carries:
            self._publish(to, message, now)
            return
        self._exchange.grant(to, [ref.digest for ref in carries])
        along = self._riding_along(to, carries)
        if self._neighbours is None and along:
            inlined = map_refs(
                message, lambda ref: Ref(ref.digest, ref.size, ref.encoding, ref.delta, along.pop(ref.digest, None))
            )
            self._publish(to, inlined, now)
        else:
            self._publish(to, message, now, along)

    def _riding_along(self, to: Address, carries: list[Ref]) -> dict[bytes, bytes]:
        """The blobs that ride along in a message to a node: those that are small, and were not sent to it before."""
        room, along = self._limit(to) // 2, dict[bytes, bytes]()
        for ref in carries:
            if ref.size > INLINE or ref.size > room or (to, ref.digest) in self._sent_inline:
                continue
            try:
                along[ref.digest] = self.store.blobs.read(ref.digest)
            except KeyError:
                continue
            room -= ref.size
            self._sent_inline[to, ref.digest] = None
            if len(self._sent_inline) > INLINED_REMEMBERED:
                del self._sent_inline[next(iter(self._sent_inline))]
        return along

    def _send_plain(self, to: Address, message: Message) -> None:
        self._publish(to, message, 0.0)

    def _publish(self, to: Address, message: Message, now: float, along: Mapping[bytes, bytes] | None = None) -> None:
        """Send a message; with neighbours, with the blobs that ride along beside it."""
        if self._neighbours is None:
            topic, payload = topics.inbox(self.fleet, to, self.address.name), self._pack(message)
            size = len(payload)
            try:
                self.links[to.role].publish(topic, payload)
            except LinkError as error:
                log.error("%r to %s was not sent: %s", kind(message), to, error)  # noqa: TRY400
                return
        else:
            self._number += 1
            size = packed_size(self._number, self._epoch_size, message)
            if along:
                size += sum(map(inlined_size, along.values()))
            packet = LocalPacket(self.address, self.epoch, message, size, along or {})
            self._neighbours.send(self.links[to.role], to, packet)
        self.sent += size
        self.machine.heard(to, size, now, spoke=False)

    def _retain(self, effect: Announce | Publish) -> None:
        if isinstance(effect, Announce):
            self._announce(*set(self.links.values()))
            return
        try:
            self.links[effect.role].publish(effect.topic, effect.payload, retain=True)
        except LinkError as error:
            log.error("%s was not published: %s", effect.topic, error)  # noqa: TRY400
            return
        self.sent += len(effect.payload)

    def _hand_over(self, ref: Ref, source: Address, arrived: Callable[[float], list[Outcome]]) -> bool:
        """Have a blob from a neighbour, if it is there to be had."""

        def is_here(now: float) -> None:
            self._events.extend(arrived(now))
            self._run(now)

        return self._neighbours is not None and self._neighbours.hand_over(ref, source, self.address, is_here)

    def offers(self, digest: bytes, to: Address) -> bool:
        """Whether a node may have a blob, and it is here."""
        return self._exchange.offers(digest, to)

    def moved(self, peer: Address, size: int, now: float, *, spoke: bool) -> None:
        """Count bytes that would have gone to a neighbour or come from it."""
        self.received += size  # both ways: in one process nobody asks which
        self.machine.heard(peer, size, now, spoke=spoke)

    def _sweep(self, now: float) -> None:
        """Delete what nothing refers to any more."""
        live = frozenset(self.machine.live())
        self._exchange.forget(live)
        self._inlined.clear()
        self.store.blobs.sweep(live)
        self._next_sweep = now + SECONDS_PER_SWEEP


def _say(effect: Say) -> None:
    """Log a sentence, if anybody reads such: the steps of a simulation's visits nobody does."""
    if log.isEnabledFor(level := LEVELS[effect.level]):
        log.log(level, "%s", effect.text, extra=subject(effect.about))
