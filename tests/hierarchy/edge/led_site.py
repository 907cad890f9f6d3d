"""One site on brokers in memory: a real edge server and real agents, led by a minimal coordinator.

Training is a shift of the model that depends on the device and the seed, so a test can compute every visit itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.agent import Agent
from edge_agent.records import VisitTrained
from edge_agent.training.messages import Train, Trained, Warm, Warmed
from fleet_sim.world.world import SimulatedNode, World
from hierarchy.edge.gate import perform
from hierarchy.edge.records import VisitKept, VisitMissed
from hierarchy.edge.server import EdgeServer
from sojourn.links.memory import Faults, MemoryLink
from sojourn.model import vectors
from sojourn.node.machine import Pull, Pulled, Received, Send, TimerFired, WorkDone, WorkFailed
from sojourn.node.node import Node
from sojourn.node.pending import Outbox
from sojourn.node.workers import InlineWorkers
from sojourn.parts import Gate, TourPolicy
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Roster, RosterSeen, Tour, TourAccepted, Toured, TourProgress
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Offer, TourId
from sojourn.store.blobs import ref_of
from sojourn.store.journal import MemoryStore
from tests.sojourn.protocol.examples import TASK, kit_without_graphs
from tests.there import there

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sojourn.links.link import Link
    from sojourn.protocol.topics import Role
    from sojourn.store.blobs import BlobStore

EDGE, CLOUD = Address("edge", "site"), Address("cloud", "cloud")
SPEC = ModelSpec((TensorSpec("w", (40, 5)), TensorSpec("b", (5,))))
KIT = kit_without_graphs(SPEC, InputSpec((5,)))
SAMPLES = {"dev-0": 30, "dev-1": 50, "dev-2": 7, "dev-3": 20}
DEVICES = tuple(SAMPLES)
SEED = 5
SECONDS = 2.0
"""Virtual seconds that a visit takes."""
START: NDArray[np.float32] = (np.arange(SPEC.size, dtype=np.float32) - 100) / np.float32(7)


def shift(device: str, seed: int) -> NDArray[np.float32]:
    """Return what a visit adds to the model: a function of the device and the seed."""
    draw = np.random.default_rng([seed, DEVICES.index(device)])
    return draw.normal(0, 0.1, SPEC.size).astype(np.float32)


def extra(device: str, seed: int) -> NDArray[np.float32]:
    """Return the additional vector of a visit."""
    return -3 * shift(device, seed + 1)


class Leader:
    """Sends one tour until it is confirmed, fetches its result, and accepts it."""

    offer = None
    watches = ()
    record_form: Any = None
    remedy = ""
    address = CLOUD

    def __init__(self, tour: Tour) -> None:
        self.toured: Toured | None = None
        self._tour, self._outbox = tour, Outbox()
        self._coming: Toured | None = None
        self._lacking: set[bytes] = set()

    def role_of(self, sender: str):
        return "edge"

    def start(self, now: float):
        return self._outbox.ask("tour", EDGE, self._tour, now)

    def handle(self, event: Any, now: float):
        match event:
            case Received(message=Roster() as message):
                return [Send(EDGE, RosterSeen(message.revision))]
            case Received(message=TourProgress()):
                self._outbox.answered("tour")
            case Received(message=Toured() as message) if self.toured:
                assert message == self.toured
                return [Send(EDGE, TourAccepted(message.tour))]
            case Received(message=Toured() as message):
                needed = [message.reports, *message.vectors.values()]
                self._coming, self._lacking = message, {ref.digest for ref in needed}
                return [Pull(ref, EDGE) for ref in needed]
            case Pulled(digest=digest) if digest in self._lacking:
                self._lacking.discard(digest)
                if not self._lacking:
                    self.toured = there(self._coming)
                    return [Send(EDGE, TourAccepted(self.toured.tour))]
            case TimerFired():
                return self._outbox.due(now)
        return []

    def validation_error(self, record: Any) -> None: ...

    def reserve_newer_attempts(self, boots: int) -> None: ...

    def drop_missing_blobs(self, missing: Any) -> list[str]:
        return []

    def on_traffic(self, peer: Address, traffic: int, now: float, *, sign_of_life: bool) -> None: ...

    def wake_at(self):
        return self._outbox.wake_at()

    def live(self):
        toured = self.toured or self._coming
        came = {toured.reports.digest, *(ref.digest for ref in toured.vectors.values())} if toured else set()
        return came | {self._tour.kit.digest, *(ref.digest for ref in self._tour.vectors.values())}

    def snapshot(self) -> bytes:
        return b""

    def restore(self, snapshot: bytes) -> None: ...

    def apply(self, record: Any) -> None: ...


class Shifting:
    """Trains in virtual time; a device in `fails` declines that number of visits first."""

    def __init__(self, site: LedSite, name: str, blobs: BlobStore) -> None:
        self._site, self._name, self._blobs = site, name, blobs
        self._wanted: dict[str, object] = {}

    def start(self, key: str, work: Warm | Train, report: Callable[[Any], None]) -> None:
        if isinstance(work, Warm):
            report(WorkDone(key, Warmed(1)))
            return
        self._wanted[key] = mark = object()

        def finish() -> None:
            if self._wanted.get(key) is mark:
                report(self._outcome(key, work))

        self._site.world.later(SECONDS + 0.3 * DEVICES.index(self._name), finish)

    def _outcome(self, key: str, work: Train) -> WorkDone | WorkFailed:
        if self._site.fails.get(self._name, 0) > 0:
            self._site.fails[self._name] -= 1
            return WorkFailed(key, "memory", "no memory left")
        visit = work.visit
        before = vectors.load(self._blobs, visit.vectors["model"], SPEC)
        change = shift(self._name, visit.seed)
        whole = visit.task.encoding == "float32"
        model = before + change if whole else (before + change) - before
        sent = {"model": vectors.save(self._blobs, model, visit.task.encoding, SPEC, delta=not whole)}
        for name in visit.task.objective.returns:
            sent[name] = vectors.save(self._blobs, extra(self._name, visit.seed), "float32", SPEC)
        return WorkDone(key, Trained(sent, SAMPLES[self._name], {}, None, {}))

    def stop(self, key: str) -> None:
        self._wanted.pop(key, None)

    def close(self) -> None:
        self._wanted.clear()


class LedSite:
    """Nodes by name, with stores that survive a kill."""

    def __init__(
        self, task: Any, faults: Faults | None = None, fails: dict[str, int] | None = None, **tour: Any
    ) -> None:
        self.world = World()
        self.fails = dict(fails or {})
        self.finished: Counter[tuple[str, int]] = Counter()
        """How often each (device, hop) was trained to the end."""
        self.kept: Counter[int] = Counter()
        self.missed: list[str] = []
        self._stores: dict[str, MemoryStore] = {}
        self._below, self._above = self.world.broker(faults), self.world.broker(faults)
        self.leader = Leader(self._tour(task, **tour))
        self.nodes: dict[str, SimulatedNode] = {}
        for name in (CLOUD.name, EDGE.name, *DEVICES):
            self.start(name)

    def _tour(self, task: Any, hops=DEVICES, policy=None, **more: Any) -> Tour:
        blobs = self._store(CLOUD.name).blobs
        data = pack_blob(KIT)
        kit = ref_of(data)
        blobs.put(data, kit.digest)
        names = ["model", *task.objective.receives]
        given = {name: vectors.save(blobs, START, task.encoding, SPEC) for name in names}
        policy = policy or TourPolicy(lease=2000.0)
        return Tour(
            TourId("job", 1, 0, 1), kit, given, hops, (), task, SEED, policy, Gate(norm_factor=None), (), **more
        )

    def _store(self, name: str) -> MemoryStore:
        return self._stores.setdefault(name, MemoryStore())

    def start(self, name: str) -> None:
        """Start a node, or restart it from its store."""
        store = self._store(name)
        if name == CLOUD.name:
            node = Node("f", self.leader, store, {"edge": MemoryLink(self._above)}, InlineWorkers(lambda work: work))
        elif name == EDGE.name:
            links: dict[Role, Link] = {"device": MemoryLink(self._below), "cloud": MemoryLink(self._above)}
            workers = InlineWorkers(lambda work: perform(work, store.blobs))
            node = Node("f", EdgeServer(EDGE.name, CLOUD.name), store, links, workers)
        else:
            offer = Offer("1", "simulated", "none", 1, 0, ("sgd", "scaffold"), "simulated", (), ABILITIES)
            link = MemoryLink(self._below)
            node = Node("f", Agent(name, offer), store, {"edge": link}, Shifting(self, name, store.blobs))
        self._watch(name, node)
        self.nodes[name] = SimulatedNode(self.world, node)
        self.nodes[name].start()

    def _watch(self, name: str, node: Node) -> None:
        append = node._append

        def seeing(effect: Any) -> None:
            append(effect)
            match effect.record:
                case VisitTrained(answer=answer):
                    self.finished[name, answer.visit.hop] += 1
                case VisitKept(report=report):
                    self.kept[report.hop] += 1
                case VisitMissed(report=report):
                    self.missed.append(report.device)

        pytest.MonkeyPatch().setattr(node, "_append", seeing)

    def kill(self, name: str) -> None:
        """End a node like kill -9."""
        self.nodes[name].kill()

    def after(self, events: int) -> None:
        """Process this number of events."""
        left = iter(range(events))
        self.world.run(lambda: next(left, None) is None)

    def wait(self, seconds: float) -> None:
        """Advance the time."""
        passed: list[bool] = []
        self.world.later(seconds, lambda: passed.append(True))
        self.world.run(lambda: bool(passed))

    def run(self) -> Toured:
        """Advance the time until the tour is over."""
        assert self.world.run(lambda: self.leader.toured is not None, self.world.now + 20_000)
        return there(self.leader.toured)

    def vector(self, name: str = "model") -> NDArray[np.float32]:
        """Return a vector of the tour's result."""
        return vectors.load(self._store(CLOUD.name).blobs, there(self.leader.toured).vectors[name], SPEC)

    @property
    def edge(self) -> EdgeServer:
        """The edge server's machine."""
        machine = self.nodes[EDGE.name].node.machine
        assert isinstance(machine, EdgeServer)
        return machine


def task_of(**changes: Any) -> Any:
    """Return a task like that of the examples, with changes."""
    return msgspec.structs.replace(TASK, **changes)
