"""Devices that nobody asks for anything: a name and a few bytes each, until a message for one of them comes.

A sleeping device is there for everybody else: its birth is at its broker, and its will is kept. What wakes it finds the
node that it would have been. Devices that have been awake for longest are put away again when there are many, with what
a restart of theirs would find in their store, and a little more: so they go on as if nothing had happened.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from edge_agent.agent import Agent
from edge_agent.records import AgentState
from fleet_sim.world.counted_link import CountedLink  # msgspec reads the annotations of a struct
from fleet_sim.world.memory_fleet import FLEET
from sojourn import WIRE
from sojourn.node.at_rest import NodeAtRest
from sojourn.node.node import SECONDS_PER_SWEEP
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.mending import read_record
from sojourn.protocol.messages import Birth, Death
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch
from sojourn.store.journal import MemoryStore
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fleet_sim.world.world import SimulatedNode, World
    from sojourn.links.link import Link
    from sojourn.links.local_packet import LocalPacket
    from sojourn.links.memory import MemoryBroker
    from sojourn.profile import LinkProfile
    from sojourn.protocol.wire import Offer
    from sojourn.store.journal import Store
    from sojourn.store.memory_blobs import BlobsAtRest

AWAKE = 2000
"""Devices that stay awake when they have nothing to do; of more, those that woke first are put away."""
WILL_AND_BIRTH = 2
"""Packets that a node has made when it is connected."""


class Sleeper(NamedTuple):
    """What is kept of a device: its node, the blobs in its store, and bytes down and up that nobody asked for yet."""

    rest: NodeAtRest
    blobs: BlobsAtRest = ()
    counted: tuple[int, int] = (0, 0)
    there: bool = True
    """Whether it is connected; one that is not hears nothing."""


class WakingFleet(Protocol):
    """Where devices sleep."""

    world: World
    nodes: dict[str, SimulatedNode]
    stores: dict[str, Store]
    links: dict[str, CountedLink]
    """Of the devices that are awake."""

    def make(self, name: str, counted: tuple[int, int]) -> SimulatedNode:
        """The node of a device whose store is in place, not started yet."""

    def broker_of(self, device: str) -> MemoryBroker:
        """The broker that a device is connected to."""


class Sleepers:
    """The sleeping devices of a fleet by name, and those that were woken."""

    def __init__(self, fleet: WakingFleet, offer: Offer, links: Mapping[str, LinkProfile]) -> None:
        self.fleet, self._offer, self._links = fleet, offer, links
        self._asleep: dict[str, Sleeper] = {}
        self._awake: dict[str, None] = {}
        """Who was woken and not put away since, the first one first."""

    def __contains__(self, name: str) -> bool:
        return name in self._asleep

    def __iter__(self) -> Iterator[tuple[str, Sleeper]]:
        """Every sleeping device."""
        return iter(self._asleep.items())

    def start(self, names: Iterable[str]) -> None:
        """Connect devices of one broker, with what their stores hold, and leave them asleep; in one step for all."""
        lots: dict[tuple[int, LinkProfile | None], list[tuple[str, bytes]]] = {}
        for name in names:
            birth = self._lie_down(name)
            lots.setdefault((len(birth), self._links.get(name)), []).append((name, birth))
        later = self.fleet.world.later
        for (size, line), births in lots.items():
            if line is None:
                self._publish(births)
            else:
                # As long as it is on a line that nothing else is on.
                arrive = _Arriving(self, births)
                later(size / line.up, lambda line=line, arrive=arrive: later(line.latency, arrive))  # type: ignore[misc]

    def _lie_down(self, name: str) -> bytes:
        """A device has started: what it is from now on, and its birth."""
        before, store = self._asleep.get(name), self.fleet.stores.pop(name, None)
        snapshot, boots = b"", 0
        blobs: BlobsAtRest = ()
        if before:
            snapshot, blobs, boots = before.rest.snapshot, before.blobs, before.rest.epoch.count
        elif store:
            snapshot, blobs = store.load()[0] or b"", _blobs_at_rest(store)
        epoch = Epoch(boots + 1, os.urandom(8))
        birth = pack(Packet(WILL_AND_BIRTH, epoch, Birth(self._offer, WIRE)))
        rest = NodeAtRest(epoch, WILL_AND_BIRTH, self.fleet.world.now + SECONDS_PER_SWEEP, snapshot)
        self._asleep[name] = Sleeper(rest, blobs, (0, len(birth)))
        return birth

    def _publish(self, births: list[tuple[str, bytes]]) -> None:
        for name, birth in births:
            sleeper = self._asleep.get(name)
            if sleeper is None or sleeper.there:  # else it vanished with all that was on its line
                state = topics.state(FLEET, Address("device", name))
                self.fleet.broker_of(name).publish(state, birth, retain=True)

    def kill(self, name: str) -> None:
        """A sleeping device vanishes: its broker publishes its will."""
        sleeper = self._asleep[name]
        if sleeper.there:
            self._asleep[name] = sleeper._replace(there=False)
            will = pack(Packet(1, sleeper.rest.epoch, Death()))
            self.fleet.broker_of(name).publish(topics.state(FLEET, Address("device", name)), will, retain=True)

    def wake_by(self, topic: str) -> None:
        """Something that nobody heard is for a device that sleeps: wake it."""
        route = topics.read(FLEET, topic)
        if route is not None and route.sender is not None and route.node.role == "device":
            self.wake(route.node.name)

    def wake(self, name: str) -> None:
        """Make the node of a device that sleeps; none is made of one that does not, or is not there."""
        sleeper = self._asleep.get(name)
        if sleeper is None or not sleeper.there:
            return
        del self._asleep[name]
        fleet, rest = self.fleet, sleeper.rest
        store = fleet.stores[name] = MemoryStore(rest.epoch.count)
        if rest.snapshot:
            store.snapshot(rest.snapshot)
        store.blobs = MemoryBlobs.from_rest(sleeper.blobs)
        node = fleet.nodes[name] = fleet.make(name, sleeper.counted)
        node.go_on(rest)
        self.woke(name)

    def woke(self, name: str) -> None:
        """A device is awake; of many, those that woke first are put away, if they have nothing to do."""
        for eldest in list(self._first(2)) if len(self._awake) >= AWAKE else ():
            del self._awake[eldest]
            if not self._put_away(eldest) and self.fleet.nodes[eldest].alive:
                self._awake[eldest] = None
        self._awake[name] = None

    def _first(self, count: int) -> Iterator[str]:
        """Those who woke first. Two for each that wakes: so their number falls when all have come to rest."""
        for _, name in zip(range(count), self._awake, strict=False):
            yield name

    def _put_away(self, name: str) -> bool:
        fleet = self.fleet
        machine, store, link = fleet.nodes[name].node.machine, fleet.stores[name], fleet.links[name]
        assert isinstance(machine, Agent)  # noqa: S101
        # What woke it is still on its way, if it has not heard anything.
        heard, doorbell = fleet.nodes[name].node.traffic > 0, _Doorbell(self, name, link)
        rest = fleet.nodes[name].put_away(doorbell) if heard and machine.idle else None
        if rest is None:
            return False
        assert isinstance(store.blobs, MemoryBlobs)  # noqa: S101
        self._asleep[name] = Sleeper(rest, store.blobs.put_away(machine.live()), link.taken())
        del fleet.nodes[name], fleet.stores[name], fleet.links[name]
        return True

    def taken(self, name: str) -> tuple[int, int]:
        """Bytes down and up of a sleeping device since this was last asked."""
        sleeper = self._asleep[name]
        self._asleep[name] = sleeper._replace(counted=(0, 0))
        return sleeper.counted


class _Arriving(msgspec.Struct, frozen=True):
    """Births that reach their broker at one time."""

    sleepers: Sleepers
    births: list[tuple[str, bytes]]

    def __call__(self) -> None:
        self.sleepers._publish(self.births)  # noqa: SLF001


class _Doorbell(msgspec.Struct, frozen=True):
    """Takes what was on its way to a device when it was put away."""

    sleepers: Sleepers
    name: str
    old: CountedLink

    def link_up(self, link: Link) -> None:
        """Links in memory are up."""

    def link_down(self, link: Link, reason: str) -> None:
        """Links in memory stay up."""

    def arrived(self, _link: Link, topic: str, payload: bytes) -> None:
        """Wake the device and let it have the message."""
        if node := self._woken():
            node.arrived(self.sleepers.fleet.links[self.name], topic, payload)

    def take(self, packet: LocalPacket) -> None:
        """Wake the device and let it have the packet."""
        if node := self._woken():
            node.take(self.sleepers.fleet.links[self.name], packet)

    def _woken(self) -> SimulatedNode | None:
        """The device, and what its old link has counted since."""
        self.sleepers.wake(self.name)
        fleet = self.sleepers.fleet
        if self.name in fleet.links:
            came, went = self.old.taken()
            fleet.links[self.name].moved(went, came)
        return fleet.nodes.get(self.name)


def may_sleep(store: Store) -> bool:
    """Whether a device that starts with this store has nothing to do."""
    snapshot, records = store.load()
    if records:
        return False
    state = read_record(snapshot, AgentState) if snapshot else AgentState()
    return not (state.held or state.lines)


def _blobs_at_rest(store: Store) -> BlobsAtRest:
    assert isinstance(store.blobs, MemoryBlobs)  # noqa: S101
    snapshot, _ = store.load()
    return store.blobs.put_away(read_record(snapshot, AgentState).live() if snapshot else frozenset())
