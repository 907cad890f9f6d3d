"""A fleet that serves releases: real machines in virtual time, with unreliable disks and programs."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.coordinator import Coordinator
from coordinator.machine.sites import read_roster
from edge_agent.agent import Agent
from edge_agent.records import ReleaseEnded, ReleaseOrdered
from edge_agent.releases.machine import ReleaseMachine
from edge_agent.releases.orders import Install, Installed, Usage, Withdraw, Withdrawn
from fleet_sim.world.memory_fleet import CLOUD, FLEET, MemoryFleet
from sojourn.links.memory import MemoryLink
from sojourn.node.machine import LocalEvent, Received, WorkDone, WorkFailed
from sojourn.node.workers import InlineWorkers
from sojourn.protocol.release import BlobRef, Goods, Health, HealthRules, Order, Pace, sign
from sojourn.protocol.release_messages import Rollout, Steer
from sojourn.protocol.signing import Signer
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.rollout_records import LineState
    from sojourn.links.memory import Faults, MemoryBroker
    from sojourn.node.node import Node
    from sojourn.protocol.registry import Message
    from sojourn.store.blobs import BlobStore
    from sojourn.store.journal import Store

SITES = {"site-a": tuple(f"dev-{n}" for n in range(5)), "site-b": tuple(f"dev-{n}" for n in range(5, 10))}
DEVICES = tuple(name for there in SITES.values() for name in there)
NODES = (*DEVICES, *SITES, CLOUD)
SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OPERATOR = Address("cloud", "operator")
RULES = HealthRules(soak=5.0, timeout=300.0)
STAGES = (0.1, 0.5, 1.0)
TRIAL = 2.0
"""Virtual seconds of a trial; activating a known release takes a tenth."""
USES = (0.5, 2.0, 8.0, 32.0)
"""When programs report on a release, in seconds after its installation or their start."""
UNHEALTHY: dict[str, Health] = {
    "slow": Health(rows=9, pace=Pace(1.0, 5000.0), pace_before=Pace(1.0, 1000.0)),
    "inaccurate": Health(rows=9, accuracy=0.5, accuracy_before=0.9),
    "adrift": Health(rows=9, drift=0.9),
}
UNHEALTHY_IN_USE: dict[str, Health] = {
    "slow in use": Health(predictions=99, live=Pace(1.0, 5000.0), live_before=Pace(1.0, 1000.0)),
    "adrift in use": Health(predictions=99, live_drift=0.9),
    "wrong": Health(predictions=99, errors=4),
}
KINDS = ("fails", "does not load", *UNHEALTHY, *UNHEALTHY_IN_USE)
FINE = Health(rows=9, pace=Pace(1.0, 10.0), pace_before=Pace(1.0, 10.0), accuracy=0.9, accuracy_before=0.9)


class DeviceDisk:
    """The releases on a device's disk, which survive the agent."""

    def __init__(self) -> None:
        self.current = 0
        self.previous = 0

    def serve(self, version: int) -> None:
        """Serve a release, like `edge_agent.releases.folder`."""
        if version != self.current:
            self.previous, self.current = self.current, version


class Installing:
    """The installer of an agent while it runs: trials take time, and the swap is atomic."""

    def __init__(self, fleet: ReleaseFleet, name: str, blobs: BlobStore) -> None:
        self._fleet, self._name, self._blobs = fleet, name, blobs
        self._wanted: dict[str, object] = {}
        self._lines: dict[str, str] = {}

    def start(self, key: str, work: Install | Withdraw, report: Callable[[WorkDone | WorkFailed], None]) -> None:
        assert key not in self._wanted, "work of this name is under way"
        assert work.line not in self._lines.values(), "two pieces of work on one line at once"
        self._wanted[key] = mark = object()
        self._lines[key] = work.line
        quick = isinstance(work, Withdraw) or work.known
        seconds = TRIAL * self._fleet.pace / (10 if quick else 1)

        def finish() -> None:
            if self._wanted.get(key) is mark:
                event = self._done(key, work)
                # Between the swap and its report, the agent may be killed or receive another order.
                self._fleet.world.later(self._fleet.lag, lambda: deliver(event))

        def deliver(event: WorkDone | WorkFailed) -> None:
            if self._wanted.get(key) is mark:
                del self._wanted[key], self._lines[key]
                report(event)

        self._fleet.world.later(seconds, finish)

    def stop(self, key: str) -> None:
        self._wanted.pop(key, None)
        self._lines.pop(key, None)

    def close(self) -> None:
        self._wanted.clear()
        self._lines.clear()

    def _done(self, key: str, work: Install | Withdraw) -> WorkDone | WorkFailed:
        fleet, disk = self._fleet, self._fleet.disks[self._name]
        if isinstance(work, Withdraw):
            disk.current = disk.previous = 0
            return WorkDone(key, Withdrawn())
        if work.known and work.version in (disk.current, disk.previous):
            fleet.swap(self._name, work.version)
            return WorkDone(key, Installed(Health()))
        digests = (work.goods.graph.digest, work.goods.card.digest)
        if not all(self._blobs.has(digest) for digest in digests):
            assert work.known, "goods that were fetched were not kept"
            return WorkFailed(key, "failed", "the goods are not here")
        kind = fleet.kind_of(self._name, work.version)
        if kind == "fails":
            return WorkFailed(key, "failed", "its logits differ from those on its card")
        fleet.swap(self._name, work.version)
        return WorkDone(key, Installed(UNHEALTHY.get(kind, FINE)))


class ReleaseFleet(MemoryFleet):
    """Ten devices on two sites. `bad` returns a version's fault, by device."""

    def __init__(self, faults: Faults | None = None, stores: Mapping[str, Store] | None = None) -> None:
        self.disks: dict[str, DeviceDisk] = defaultdict(DeviceDisk)
        self.bad: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.pace, self.lag = 1.0, 0.0
        self.orders: dict[str, list[int]] = defaultdict(list)
        """The serial numbers of the orders each device obeyed, over all restarts."""
        self.ended: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._installing: dict[str, Installing] = {}
        self._tickets = 0
        super().__init__(dict.fromkeys(DEVICES), SITES, faults, stores=stores)  # type: ignore[arg-type]

    def kind_of(self, device: str, version: int) -> str:
        """Return a version's fault on a device."""
        kind, where = self.bad.get(version, ("good", ()))
        return kind if device in where else "good"

    def loads(self, device: str, version: int) -> bool:
        """Return whether programs can load it."""
        return version > 0 and self.kind_of(device, version) != "does not load"

    def swap(self, device: str, version: int) -> None:
        """Serve another version; programs always have a loadable release."""
        disk = self.disks[device]
        had = self.works(device)
        disk.serve(version)
        assert self.works(device) or not had, f"{device} has no working model any more"
        self.use(device)

    def works(self, device: str) -> bool:
        """Return whether a program that starts now finds a loadable release."""
        disk = self.disks[device]
        return self.loads(device, disk.current) or self.loads(device, disk.previous)

    def use(self, device: str) -> None:
        """Report usage of the current release several times."""
        for after in USES:
            self.world.later(after, lambda: self._report_use(device))

    def _report_use(self, device: str) -> None:
        version, node = self.disks[device].current, self.nodes[device]
        if not version or not node._alive:
            return
        kind = self.kind_of(device, version)
        failure = "" if self.loads(device, version) else "no such operator"
        node.report(LocalEvent(Usage("l", version, UNHEALTHY_IN_USE.get(kind, Health(predictions=99)), failure)))

    def start(self, name: str) -> None:
        super().start(name)
        if name in DEVICES:
            self.use(name)

    def kill(self, name: str) -> None:
        super().kill(name)
        if name in self._installing:
            self._installing[name].close()

    def ask(self, message: Message) -> None:
        """Send an operator's request, if the coordinator is running."""
        node = self.nodes[CLOUD]
        if node._alive:
            node.report(Received(OPERATOR, Epoch(1, bytes(8)), message))

    def steer(self, action: Any) -> None:
        self._tickets += 1
        self.ask(Steer(f"s-{self._tickets}", "l", action))

    def rollout(
        self, version: int, *, stages: tuple[float, ...] = STAGES, rules: HealthRules = RULES, undo: bool = True
    ) -> None:
        """Roll a version out; the coordinator already has its payload."""
        known = self.machine.state.lines.get("l")
        blobs = [f"{what} {version} ".encode() * 3000 for what in ("graph", "card")]
        for data in blobs:
            self.stores[CLOUD].blobs.put(data, ref_of(data).digest)
        graph, card = (ref_of(data) for data in blobs)
        goods = Goods(BlobRef(graph.digest, graph.size), BlobRef(card.digest, card.size))
        serial = known.back.read.serial if known else 0
        forward = Order(FLEET, "l", serial + 1, version, goods)
        serves = known.serves.read if known else None
        served = (serves.version, serves.goods) if serves else (0, None)
        back = Order(FLEET, "l", serial + 2, *served, rollback=True)
        self.ask(Rollout(f"t-{version}", sign(forward, SIGNER), sign(back, SIGNER), graph, card, stages, rules, undo))
        lines = self.machine.state.lines
        self.world.run(lambda: "l" in lines and self.line.forward.read.version == version, self.world.now + 1)
        assert self.line.forward.read.version == version

    @property
    def machine(self) -> Coordinator:
        machine = self.nodes[CLOUD].node.machine
        assert isinstance(machine, Coordinator)
        return machine

    @property
    def line(self) -> LineState:
        return self.machine.state.lines["l"]

    def agent(self, device: str) -> Agent:
        machine = self.nodes[device].node.machine
        assert isinstance(machine, Agent)
        return machine

    def settle(self, limit: float = 3000.0) -> None:
        """Run until the rollout is over and every device has finished the current order."""
        self.world.run(
            lambda: self.line.over and all(self.line.ended(device) for device in self.line.members),
            self.world.now + limit,
        )
        end = self.world.now + USES[-1] + 20
        self.world.run(lambda: False, end)
        line = self.line
        assert line.over, (line.status, line.detail)
        assert set(line.members) == set(DEVICES) or line.status == "rolled-back"

    def check(self) -> None:
        """Check that all devices agree with the line's status, with their disks, and with the coordinator's records."""
        line = self.line
        for device in DEVICES:
            wanted = line.payload_for(device).read
            mine, disk = self.agent(device).state.lines.get("l"), self.disks[device]
            version = mine.serving.version if mine and mine.serving else 0
            assert version == disk.current, f"{device} reports {version} and serves {disk.current}"
            if device not in line.members:
                assert wanted.goods is None  # connected devices receive the fleet's release
                assert version == 0
                continue
            assert mine is not None
            received = line.reports[device]
            assert (received.serial, received.version, received.state) == (mine.order.serial, version, mine.state), (
                device
            )
            assert mine.order.serial == wanted.serial
            if mine.state in ("serving", "withdrawn"):
                assert version == wanted.version, device
            assert self.orders[device] == sorted(set(self.orders[device])), "an order was obeyed twice, or late"
            assert len(set(self.ended[device])) == len(self.ended[device]), "an order ended twice in one way"

    def _coordinator(self, broker: MemoryBroker) -> Node:
        link = MemoryLink(broker)
        machine = Coordinator(CLOUD, fleet=FLEET)
        return self._node(
            machine, {"edge": link, "cloud": link}, lambda store: InlineWorkers(lambda it: read_roster(it, store.blobs))
        )

    def _agent(self, name: str, data: Any, broker: MemoryBroker) -> Node:
        offer = Offer("1", "simulated", "onnxruntime", 1, 0, ("sgd",), "simulated", (), ABILITIES)
        agent = Agent(name, offer, releases=ReleaseMachine(FLEET, SIGNER.public))

        def workers(store: Store) -> Installing:
            self._installing[name] = Installing(self, name, store.blobs)
            return self._installing[name]

        node = self._node(agent, {"edge": MemoryLink(broker)}, workers)
        node.on_record(lambda record: self._noted(name, agent, record))
        return node

    def _noted(self, name: str, agent: Agent, record: Any) -> None:
        if isinstance(record, ReleaseOrdered):
            self.orders[name].append(record.order.serial)
        elif isinstance(record, ReleaseEnded):
            self.ended[name].append((agent.state.lines["l"].order.serial, record.state))


@cache
def _served() -> tuple[dict[str, Store], dict[str, DeviceDisk]]:
    fleet = ReleaseFleet()
    fleet.rollout(1, stages=(1.0,), rules=HealthRules(soak=0.0))
    fleet.settle()
    assert fleet.line.status == "done"
    return fleet.stores, dict(fleet.disks)


def serving(faults: Faults | None = None) -> ReleaseFleet:
    """Create a fleet in which all devices serve version 1."""
    stores, disks = _served()
    fleet = ReleaseFleet(faults, deepcopy(stores))
    fleet.disks.update(deepcopy(disks))
    fleet.world.run(lambda: fleet.machine.sites.count() == len(DEVICES), fleet.world.now + 100)
    return fleet
