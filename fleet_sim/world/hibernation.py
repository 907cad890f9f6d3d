"""Hibernated devices: idle devices take only a name and a few bytes each until a message arrives.

To its peers, a hibernated device is online: its birth is published, and the broker keeps its will. When woken, it
resumes as the same node. If many devices are awake, those awake for longest hibernate again; their snapshot contains
their durable state and a little more, so they resume as if they had never hibernated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import msgspec

from edge_agent.agent import Agent
from edge_agent.records import AgentState
from fleet_sim.world.memory_fleet import FLEET
from fleet_sim.world.transfer import CountedLink  # msgspec reads the annotations of a struct
from fleet_sim.world.world import NodeSnapshot, SimulatedNode, World
from sojourn import WIRE
from sojourn.links.link import Link
from sojourn.links.memory import MemoryBroker
from sojourn.node.node import SECONDS_PER_SWEEP
from sojourn.node.transport import Delivery
from sojourn.profile import LinkProfile
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.limits import decoded
from sojourn.protocol.messages import Birth, Death
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer
from sojourn.store.journal import MemoryStore, Store
from sojourn.store.memory_blobs import HibernatedBlobs, MemoryBlobs

MAX_AWAKE = 2000
"""Number of idle devices that may stay awake; beyond it, those that woke first hibernate."""
WILL_AND_BIRTH = 2
"""Number of packets that a node has sent once it is connected."""


class HibernatedDevice(NamedTuple):
    """The saved state of a device: its node, the blobs in its store, and unreported bytes down and up."""

    node: NodeSnapshot
    blobs: HibernatedBlobs = ()
    counted: tuple[int, int] = (0, 0)
    online: bool = True
    """Whether its peers can reach it; an offline device receives nothing."""


class WakingFleet(Protocol):
    """The fleet in which devices hibernate."""

    world: World
    nodes: dict[str, SimulatedNode]
    stores: dict[str, Store]
    links: dict[str, CountedLink]
    """The links of awake devices."""

    def make(self, name: str, counted: tuple[int, int]) -> SimulatedNode:
        """Create the node of a device from its store, without starting it."""

    def broker_of(self, device: str) -> MemoryBroker:
        """Return the broker that a device is connected to."""


class HibernatedDevices:
    """The hibernated devices of a fleet by name, and those that are awake."""

    def __init__(self, fleet: WakingFleet, offer: Offer, links: Mapping[str, LinkProfile]) -> None:
        self.fleet, self._offer, self._links = fleet, offer, links
        self._hibernated: dict[str, HibernatedDevice] = {}
        self._awake: dict[str, None] = {}
        """Devices woken since they last hibernated, in the order of waking."""

    def __contains__(self, name: str) -> bool:
        return name in self._hibernated

    def __iter__(self) -> Iterator[tuple[str, HibernatedDevice]]:
        """Iterate over all hibernated devices."""
        return iter(self._hibernated.items())

    def start(self, names: Iterable[str]) -> None:
        """Connect hibernated devices of one broker, with the contents of their stores, in one step."""
        groups: dict[tuple[int, LinkProfile | None], list[tuple[str, bytes]]] = {}
        for name in names:
            birth = self._hibernate_started(name)
            groups.setdefault((len(birth), self._links.get(name)), []).append((name, birth))
        later = self.fleet.world.later
        for (size, line), births in groups.items():
            if line is None:
                self._publish(births)
            else:
                # The transfer time on an idle line.
                arrive = _Arriving(self, births)
                later(size / line.up, lambda line=line, arrive=arrive: later(line.latency, arrive))  # type: ignore[misc]

    def _hibernate_started(self, name: str) -> bytes:
        """Register a started device: its snapshot and its birth."""
        before, store = self._hibernated.get(name), self.fleet.stores.pop(name, None)
        snapshot, boots = b"", 0
        blobs: HibernatedBlobs = ()
        if before:
            snapshot, blobs, boots = before.node.snapshot, before.blobs, before.node.epoch.count
        elif store:
            snapshot, blobs = store.load()[0] or b"", _hibernated_blobs(store)
        epoch = Epoch(boots + 1, os.urandom(8))
        birth = pack(Packet(WILL_AND_BIRTH, epoch, Birth(self._offer, WIRE)))
        node = NodeSnapshot(epoch, WILL_AND_BIRTH, self.fleet.world.now + SECONDS_PER_SWEEP, snapshot)
        self._hibernated[name] = HibernatedDevice(node, blobs, (0, len(birth)))
        return birth

    def _publish(self, births: list[tuple[str, bytes]]) -> None:
        for name, birth in births:
            saved = self._hibernated.get(name)
            if saved is None or saved.online:  # otherwise it was killed together with the packets on its line
                state = topics.state(FLEET, Address("device", name))
                self.fleet.broker_of(name).publish(state, birth, retain=True)

    def kill(self, name: str) -> None:
        """Kill a hibernated device: its broker publishes its will."""
        saved = self._hibernated[name]
        if saved.online:
            self._hibernated[name] = saved._replace(online=False)
            will = pack(Packet(1, saved.node.epoch, Death()))
            self.fleet.broker_of(name).publish(topics.state(FLEET, Address("device", name)), will, retain=True)

    def wake_by(self, topic: str) -> None:
        """Wake the device that an undelivered message is addressed to."""
        route = topics.read(FLEET, topic)
        if route is not None and route.sender is not None and route.node.role == "device":
            self.wake(route.node.name)

    def wake(self, name: str) -> None:
        """Create the node of a hibernated device; do nothing if the device is awake or offline."""
        saved = self._hibernated.get(name)
        if saved is None or not saved.online:
            return
        del self._hibernated[name]
        fleet, snapshot = self.fleet, saved.node
        store = fleet.stores[name] = MemoryStore(snapshot.epoch.count)
        if snapshot.snapshot:
            store.snapshot(snapshot.snapshot)
        store.blobs = MemoryBlobs.wake(saved.blobs)
        node = fleet.nodes[name] = fleet.make(name, saved.counted)
        node.resume(snapshot)
        self.woke(name)

    def woke(self, name: str) -> None:
        """Register an awake device; if there are many, idle devices that woke first hibernate."""
        for eldest in list(self._first(2)) if len(self._awake) >= MAX_AWAKE else ():
            del self._awake[eldest]
            if not self._hibernate(eldest) and self.fleet.nodes[eldest].alive:
                self._awake[eldest] = None
        self._awake[name] = None

    def _first(self, count: int) -> Iterator[str]:
        """Return the devices that woke first, two per wake-up, so that their number shrinks once all are idle."""
        for _, name in zip(range(count), self._awake, strict=False):
            yield name

    def _hibernate(self, name: str) -> bool:
        fleet = self.fleet
        machine, store, link = fleet.nodes[name].node.machine, fleet.stores[name], fleet.links[name]
        assert isinstance(machine, Agent)  # noqa: S101
        # If it has received nothing yet, the message that woke it is still in transit.
        received, wake_listener = fleet.nodes[name].node.traffic > 0, _WakeListener(self, name, link)
        snapshot = fleet.nodes[name].hibernate(wake_listener) if received and machine.idle else None
        if snapshot is None:
            return False
        assert isinstance(store.blobs, MemoryBlobs)  # noqa: S101
        self._hibernated[name] = HibernatedDevice(snapshot, store.blobs.hibernate(machine.live()), link.taken())
        del fleet.nodes[name], fleet.stores[name], fleet.links[name]
        return True

    def taken(self, name: str) -> tuple[int, int]:
        """Return a hibernated device's bytes down and up since the last call."""
        saved = self._hibernated[name]
        self._hibernated[name] = saved._replace(counted=(0, 0))
        return saved.counted


class _Arriving(msgspec.Struct, frozen=True):
    """Births that reach their broker at the same time."""

    hibernated: HibernatedDevices
    births: list[tuple[str, bytes]]

    def __call__(self) -> None:
        self.hibernated._publish(self.births)  # noqa: SLF001


class _WakeListener(msgspec.Struct, frozen=True):
    """Receives messages that were in transit to a device when it hibernated."""

    hibernated: HibernatedDevices
    name: str
    old: CountedLink

    def link_up(self, link: Link) -> None:
        """Links in memory are always up."""

    def link_down(self, link: Link, reason: str) -> None:
        """Links in memory stay up."""

    def arrived(self, _link: Link, topic: str, payload: bytes) -> None:
        """Wake the device and deliver the message."""
        if node := self._woken():
            node.arrived(self.hibernated.fleet.links[self.name], topic, payload)

    def deliver(self, delivery: Delivery) -> None:
        """Wake the device and deliver the message."""
        if node := self._woken():
            node.deliver(delivery)

    def _woken(self) -> SimulatedNode | None:
        """Return the woken device, after adding the bytes that its old link has counted."""
        self.hibernated.wake(self.name)
        fleet = self.hibernated.fleet
        if self.name in fleet.links:
            came, went = self.old.taken()
            fleet.links[self.name].moved(went, came)
        return fleet.nodes.get(self.name)


def may_hibernate(store: Store) -> bool:
    """Return whether a device with this store is idle after starting."""
    snapshot, records = store.load()
    if records:
        return False
    state = decoded(snapshot, AgentState) if snapshot else AgentState()
    return not (state.held or state.lines)


def _hibernated_blobs(store: Store) -> HibernatedBlobs:
    assert isinstance(store.blobs, MemoryBlobs)  # noqa: S101
    snapshot, _ = store.load()
    return store.blobs.hibernate(decoded(snapshot, AgentState).live() if snapshot else frozenset())
