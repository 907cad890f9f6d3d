"""A simulated fleet: all roles as they are, devices that train with an engine, and what happened, written down."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.console.following import JobProgress
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.work import CoordinatorWorker
from coordinator.records import DevicesEstimated, RoundClosed, RoundFailed
from coordinator.results.folder import EndedVisit
from coordinator.rounds.kit_cache import KitCache
from coordinator.state import with_figures
from edge_agent.agent import Agent
from edge_agent.training.objectives import NAMES
from fleet_sim.world.counted_link import CountedLink
from fleet_sim.world.engine_training import EngineTraining
from fleet_sim.world.measuring import MeasuringBeside
from fleet_sim.world.memory_fleet import CLOUD, MemoryFleet
from fleet_sim.world.sleepers import Sleepers, may_sleep
from fleet_sim.world.world import SimulatedNode
from hierarchy.edge.exemplar_view import ExemplarViews
from hierarchy.edge.records import VisitKept, VisitMissed
from sojourn import __version__
from sojourn.model.graphs import Graphs
from sojourn.node.machine import Received, Send
from sojourn.protocol.abilities import ABILITIES
from sojourn.protocol.data_summary import CONSENTS
from sojourn.protocol.messages import Inspect, Jobs
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleet_sim.engines import Engine
    from fleet_sim.world.engine_training import Lost, Seconds
    from fleet_sim.world.worker_starts import WorkerStarts
    from sojourn.data.source import DataSettings
    from sojourn.links.memory import MemoryBroker
    from sojourn.node.node import Node
    from sojourn.node.workers import Workers
    from sojourn.profile import LinkProfile
    from sojourn.protocol.job_messages import Continue
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import RoundReport
    from sojourn.store.blobs import BlobStore
    from sojourn.store.journal import Store

OPERATOR = Address("cloud", "operator")
OFFER = Offer(__version__, "simulated", "onnxruntime", 1, 0, NAMES, "simulated", CONSENTS, ABILITIES)
"""Of every device: whose data is simulated has agreed to all that can be asked."""


class VirtualFleet(MemoryFleet):
    """A fleet whose devices train with an engine. `visited` is called with every visit, when its round is closed."""

    def __init__(  # noqa: PLR0913  # what a fleet is made of
        self,
        sites: Mapping[str, tuple[str, ...]],
        engine: Engine,
        seconds: Seconds,
        worker_starts: WorkerStarts,
        visited: Callable[[EndedVisit], None],
        *,
        one_broker: bool = False,
        lost: Lost = lambda _device, _visit: False,
        links: Mapping[str, LinkProfile] | None = None,
        clock: float = 0.0,
        stores: Mapping[str, Store] | None = None,
        make: Callable[[Kit, int], Graphs] = Graphs,
        tell: Callable[[str], None] = lambda _text: None,
        handing: bool = True,
        asleep: bool = True,
        objectives: tuple[str, ...] = (),
    ) -> None:
        """With `clock` and `stores` it goes on where another one stopped; `make` makes the graphs of its tests.

        `objectives` are custom ones that every device offers in addition to the built-in ones.

        `tell` is told what compiling is at. Without `handing` every model goes through the whole protocol, chunk by
        chunk. Without `asleep` every device's node is made at once, and stays.
        """
        self._engine = engine
        self._link_profiles = links or {}
        self._seconds = seconds
        self._visited = visited
        self._held: list[EndedVisit] = []
        """The visits of the round under way: the coordinator judges them when it closes."""
        self._lost = lost
        self._make, self._tell = make, tell
        self._offer = msgspec.structs.replace(OFFER, objectives=(*NAMES, *objectives))
        self.worker_starts = worker_starts
        self.links: dict[str, CountedLink] = {}
        """Of the devices that are awake."""
        self.sleepers = Sleepers(self, self._offer, self._link_profiles) if asleep else None
        devices: dict[str, Any] = dict.fromkeys(device for reached in sites.values() for device in reached)
        views = ExemplarViews(make)
        super().__init__(
            devices, sites, one_broker=one_broker, clock=clock, stores=stores, views=views, handing=handing
        )

    def _start_devices(self, names: tuple[str, ...]) -> None:
        """Let the devices of a site sleep, but for those that were at work when the fleet stopped."""
        if self.sleepers is None:
            super()._start_devices(names)
            return
        self.broker_of(names[0]).unheard = self.sleepers.wake_by
        busy = [name for name in names if name in self.stores and not may_sleep(self.stores[name])]
        self.sleepers.start(sorted(set(names).difference(busy)) if busy else names)
        for name in busy:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a node, or start it again; a device that has nothing to do sleeps."""
        if self.sleepers and name in self.sleepers:
            self.sleepers.start([name])
            return
        super().start(name)
        if self.sleepers and name in self._home:
            self.sleepers.woke(name)

    def kill(self, name: str) -> None:
        """End a node as kill -9 does."""
        if self.sleepers and name in self.sleepers:
            self.sleepers.kill(name)
        else:
            super().kill(name)

    def _woken(self, name: str) -> SimulatedNode | None:
        if self.sleepers:
            self.sleepers.wake(name)
        return self.nodes.get(name)

    def make(self, name: str, counted: tuple[int, int]) -> SimulatedNode:
        """The node of a device that wakes; its link goes on counting."""
        node = SimulatedNode(self.world, self._build(name))
        came, went = counted
        self.links[name].moved(went, came)
        return node

    def course(self, name: str, before: tuple[RoundReport, ...] = ()) -> JobProgress:
        """How a job stands, as an operator sees it."""
        machine = self.nodes[CLOUD].node.machine
        request = Received(OPERATOR, Epoch(0, bytes(8)), Inspect("view", name, len(before)))
        (answer,) = machine.handle(request, self.world.now)
        assert isinstance(answer, Send)  # noqa: S101
        assert isinstance(answer.message, Jobs)  # noqa: S101
        (view,) = answer.message.jobs
        history = (*before, *self.told(name, len(before)))
        if len(history) > view.round:  # the newest one was tested just now, and is no record yet
            view = msgspec.structs.replace(view, round=len(history), accuracy=history[-1].accuracy)
        return JobProgress(view, history)

    def told(self, name: str, since: int) -> list[RoundReport]:
        """The rounds of a job from one on that can be told with their figures, as soon as these are there."""
        state = self.job(name)
        rounds = state.history[since : state.told_rounds]
        newest = len(state.history)
        if since < newest > state.told_rounds and (found := self._measuring.found(name, newest)):
            rounds.append(with_figures(state.history[-1], found))
        return rounds

    def go_on(self, message: Continue) -> str | None:
        """Have a job go on, as an operator does; returns why it does not."""
        before = self.job(message.job).continued
        self.ask(message)
        if self.job(message.job).continued != before:
            return None
        entries = reversed(self.coordinator().state.audit.entries)
        return next((it.detail for it in entries if it.ticket == message.ticket), "the coordinator refused it")

    def coordinator(self) -> Coordinator:
        """The coordinator's machine."""
        machine = self.nodes[CLOUD].node.machine
        assert isinstance(machine, Coordinator)  # noqa: S101
        return machine

    @property
    def held(self) -> int:
        """How many visits have ended in the round under way."""
        return len(self._held)

    def settle(self) -> None:
        """Take down what is still being tested of models: nobody will close another round, or somebody looks now."""
        if self._measuring.settle():
            jobs = self.coordinator().state.jobs.values()
            self.world.run(lambda: not any(state.unmeasured for state in jobs), self.world.now)

    def close(self) -> None:
        """End what runs beside the simulation; the visits of a round that was not closed are passed on as they are."""
        self._measuring.close()
        for visit in self._held:
            self._visited(visit)
        self._held.clear()

    def _cloud_workers(self, blobs: BlobStore) -> Workers:
        worker = CoordinatorWorker(blobs, kits=KitCache(), make=self._make, tell=self._tell, views=self.exemplar_views)
        self._measuring = MeasuringBeside(worker)
        return self._measuring

    def _edge(self, name: str, site: MemoryBroker, cloud: MemoryBroker) -> Node:
        node = super()._edge(name, site, cloud)
        node.on_record(lambda record: self._saw(name, record))
        return node

    def _coordinator(self, broker: MemoryBroker) -> Node:
        node = super()._coordinator(broker)
        node.on_record(self._judged)
        return node

    def _judged(self, record: Any) -> None:
        """A round or an estimation has ended: pass its visits on, with what the coordinator made of them."""
        if not isinstance(record, RoundClosed | RoundFailed | DevicesEstimated):
            return
        verdicts = {(it.tour, it.hop, it.device): it for it in record.visited or () if it.status != "lost"}
        for visit in self._held:
            report, tour = visit.report, int(visit.tour.rpartition("/")[2])
            verdict = verdicts.get((tour, report.hop, report.device)) if report.status == "done" else None
            if verdict is not None:
                report = msgspec.structs.replace(report, status=verdict.status, reason=verdict.reason)
            self._visited(dataclasses.replace(visit, report=report))
        self._held.clear()

    def _saw(self, site: str, record: Any) -> None:
        if isinstance(record, VisitKept | VisitMissed):
            device = record.report.device
            asleep = self.sleepers and device in self.sleepers
            down, up = self.sleepers.taken(device) if self.sleepers and asleep else self.links[device].taken()
            self._held.append(EndedVisit(self.world.now, site, record.key, record.report, down, up))

    def _agent(self, name: str, data: DataSettings, broker: MemoryBroker) -> Node:
        del data  # the engine has it
        self.links[name] = link = CountedLink(broker, self._link_profiles.get(name))
        return self._node(
            Agent(name, self._offer),
            {"edge": link},
            lambda store: EngineTraining(
                self.world, name, self._engine, store.blobs, self._seconds, self._lost, self.worker_starts
            ),
        )
