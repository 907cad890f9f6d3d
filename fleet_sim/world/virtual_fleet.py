"""A simulated fleet: the real roles, devices that train with an engine, and a record of all visits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.console.job_progress import JobProgress
from coordinator.job_state import with_metrics
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.work import CoordinatorWorker
from coordinator.records import DevicesEstimated, RoundClosed, RoundFailed
from coordinator.results.folder import EndedVisit
from coordinator.rounds.preparing import KitCache
from edge_agent.agent import Agent
from edge_agent.training.objectives import NAMES
from fleet_sim.world.hibernation import HibernatedDevices, may_sleep
from fleet_sim.world.memory_fleet import CLOUD, MemoryFleet
from fleet_sim.world.transfer import CountedLink
from fleet_sim.world.workers import ConcurrentMeasuring, EngineTraining
from fleet_sim.world.world import SimulatedNode
from hierarchy.edge.records import VisitKept, VisitMissed
from sojourn import __version__
from sojourn.model.exemplar_view import ExemplarViews
from sojourn.model.graphs import Graphs
from sojourn.node.machine import Received, Send
from sojourn.protocol.data_summary import CONSENTS
from sojourn.protocol.operator_messages import Inspect, Jobs
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleet_sim.engines import Engine
    from fleet_sim.world.timing import WorkerStarts
    from fleet_sim.world.workers import Lost, Seconds
    from sojourn.data.source import DataSettings
    from sojourn.links.memory import MemoryBroker
    from sojourn.node.node import Node
    from sojourn.node.workers import Workers
    from sojourn.profile import LinkProfile
    from sojourn.protocol.operator_messages import Continue
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import RoundReport
    from sojourn.store.blobs import BlobStore
    from sojourn.store.journal import Store

OPERATOR = Address("cloud", "operator")
OFFER = Offer(__version__, "simulated", "onnxruntime", 1, 0, NAMES, "simulated", CONSENTS, ABILITIES)
"""The offer of every device: simulated devices consent to everything."""


class VirtualFleet(MemoryFleet):
    """A fleet whose devices train with an engine. `visited` is called for every visit once its round is closed."""

    def __init__(  # noqa: PLR0913  # independent parts of a fleet
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
        notify: Callable[[str], None] = lambda _text: None,
        handing: bool = True,
        hibernating: bool = True,
        objectives: tuple[str, ...] = (),
    ) -> None:
        """`clock` and `stores` resume an earlier fleet; `make` creates the graphs of its evaluations.

        `objectives` are custom ones that every device offers in addition to the built-in ones.

        `notify` receives the progress of compiling. Without `handing`, every model goes through the whole protocol,
        chunk
        by chunk. Without `hibernating`, every device's node is created at once and never hibernates.
        """
        self._engine = engine
        self._link_profiles = links or {}
        self._seconds = seconds
        self._visited = visited
        self._held: list[EndedVisit] = []
        """The visits of the current round, held until the coordinator judges them at its end."""
        self._lost = lost
        self._make, self._notify = make, notify
        self._offer = msgspec.structs.replace(OFFER, objectives=(*NAMES, *objectives))
        self.worker_starts = worker_starts
        self.links: dict[str, CountedLink] = {}
        """The links of awake devices."""
        self.hibernated = HibernatedDevices(self, self._offer, self._link_profiles) if hibernating else None
        devices: dict[str, Any] = dict.fromkeys(device for reached in sites.values() for device in reached)
        views = ExemplarViews(make)
        super().__init__(
            devices, sites, one_broker=one_broker, clock=clock, stores=stores, views=views, handing=handing
        )

    def _start_devices(self, names: tuple[str, ...]) -> None:
        """Hibernate the devices of a site, except those that were working when the fleet stopped."""
        if self.hibernated is None:
            super()._start_devices(names)
            return
        self.broker_of(names[0]).on_unmatched = self.hibernated.wake_by
        busy = [name for name in names if name in self.stores and not may_sleep(self.stores[name])]
        self.hibernated.start(sorted(set(names).difference(busy)) if busy else names)
        for name in busy:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a node with the contents of its store; an idle device hibernates."""
        if self.hibernated and name in self.hibernated:
            self.hibernated.start([name])
            return
        super().start(name)
        if self.hibernated and name in self._home:
            self.hibernated.woke(name)

    def kill(self, name: str) -> None:
        """Kill a node as kill -9 does."""
        if self.hibernated and name in self.hibernated:
            self.hibernated.kill(name)
        else:
            super().kill(name)

    def _woken(self, name: str) -> SimulatedNode | None:
        if self.hibernated:
            self.hibernated.wake(name)
        return self.nodes.get(name)

    def make(self, name: str, counted: tuple[int, int]) -> SimulatedNode:
        """Create the node of a waking device; its link continues counting."""
        node = SimulatedNode(self.world, self._build(name))
        came, went = counted
        self.links[name].moved(went, came)
        return node

    def course(self, name: str, before: tuple[RoundReport, ...] = ()) -> JobProgress:
        """Return a job's progress, as an operator sees it."""
        machine = self.nodes[CLOUD].node.machine
        request = Received(OPERATOR, Epoch(0, bytes(8)), Inspect("view", name, len(before)))
        (answer,) = machine.handle(request, self.world.now)
        assert isinstance(answer, Send)  # noqa: S101
        assert isinstance(answer.message, Jobs)  # noqa: S101
        (view,) = answer.message.jobs
        history = (*before, *self.reported(name, len(before)))
        if len(history) > view.round:  # the newest round was tested just now, and has no record yet
            view = msgspec.structs.replace(view, round=len(history), accuracy=history[-1].accuracy)
        return JobProgress(view, history)

    def reported(self, name: str, since: int) -> list[RoundReport]:
        """Return the rounds of a job from a given one whose metrics are available."""
        state = self.job(name)
        rounds = state.history[since : state.visible_rounds]
        newest = len(state.history)
        if since < newest > state.visible_rounds and (found := self._measuring.found(name, newest)):
            rounds.append(with_metrics(state.history[-1], found))
        return rounds

    def continue_job(self, message: Continue) -> str | None:
        """Resume a job as an operator does; return why it cannot be resumed."""
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
        """The number of finished visits in the current round."""
        return len(self._held)

    def settle(self) -> None:
        """Wait for pending evaluations and record them."""
        if self._measuring.settle():
            jobs = self.coordinator().state.jobs.values()
            self.world.run(lambda: not any(state.evaluation_pending for state in jobs), self.world.now)

    def close(self) -> None:
        """Stop background work; pass on the visits of an unfinished round without a verdict."""
        self._measuring.close()
        for visit in self._held:
            self._visited(visit)
        self._held.clear()

    def _cloud_workers(self, blobs: BlobStore) -> Workers:
        worker = CoordinatorWorker(
            blobs, kits=KitCache(), make=self._make, notify=self._notify, views=self.exemplar_views
        )
        self._measuring = ConcurrentMeasuring(worker)
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
        """Pass on the visits of a finished round or estimation with the coordinator's verdicts."""
        if not isinstance(record, RoundClosed | RoundFailed | DevicesEstimated):
            return
        verdicts = {(it.tour, it.hop, it.device): it for it in record.visited if it.status != "lost"}
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
            hibernating = self.hibernated and device in self.hibernated
            down, up = self.hibernated.taken(device) if self.hibernated and hibernating else self.links[device].taken()
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
