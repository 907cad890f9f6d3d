"""A simulated fleet: the real roles, devices that train with an engine, and a record of all visits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from coordinator.console.job_progress import JobProgress
from coordinator.job_state import with_metrics
from coordinator.machine.work import CoordinatorWorker
from coordinator.records import DevicesEstimated, RoundClosed, RoundFailed, RoundMeasured
from coordinator.results.folder import EndedVisit
from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.preparing import KitCache
from coordinator.rounds.results import CloseRound
from edge_agent.agent import Agent
from edge_agent.training.messages import Train, Warm, Warmed
from edge_agent.training.objectives import NAMES
from fleet_sim.engines import Engine, Outcome
from fleet_sim.world.hibernation import HibernatedDevices, may_hibernate
from fleet_sim.world.memory_fleet import OFFER, OPERATOR, MemoryFleet
from fleet_sim.world.timing import WorkerStarts
from fleet_sim.world.transfer import CountedLink
from fleet_sim.world.world import SimulatedNode, World
from hierarchy.edge.records import VisitKept, VisitMissed
from sojourn.data.source import DataSettings
from sojourn.links.memory import MemoryBroker
from sojourn.model.exemplar_view import ExemplarViews
from sojourn.model.graphs import Graphs
from sojourn.node.machine import Received, Send, WorkDone, WorkEvent, WorkFailed, WorkProgress
from sojourn.node.node import Node
from sojourn.node.workers import InlineWorkers, Workers, attempt
from sojourn.profile import LinkProfile
from sojourn.protocol.operator_messages import Continue, Inspect, Jobs
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Epoch, RoundReport
from sojourn.store.blobs import BlobStore
from sojourn.store.journal import Store

Seconds = Callable[[str, Train, BlobStore], float]
"""Returns how long a device needs for a visit."""
Lost = Callable[[str, str], bool]
"""Returns whether a device drops out of a visit."""
Report = Callable[[WorkEvent], None]

SIGNS = 4
"""Number of heartbeats that a visit sends during a lease."""


class EngineTraining:
    """Starts visits on an engine in parallel to the simulation, and reports each at its simulated end."""

    def __init__(
        self,
        world: World,
        device: str,
        engine: Engine,
        blobs: BlobStore,
        seconds: Seconds,
        lost: Lost,
        worker_starts: WorkerStarts,
    ) -> None:
        self._world = world
        self._device = device
        self._engine = engine
        self._blobs = blobs
        self._seconds = seconds
        self._lost = lost
        self._worker_starts = worker_starts
        self._wanted: dict[str, object] = {}

    def start(self, key: str, work: Warm | Train, report: Callable[[WorkEvent], None]) -> None:
        """Start a visit; its outcome is awaited only at its simulated end."""
        wait = self._worker_starts.wait(self._device, self._world.now)
        if isinstance(work, Warm):
            self._world.later(wait, lambda: report(WorkDone(key, Warmed(0))))
            return
        self._wanted[key] = mark = object()
        takes = wait + self._seconds(self._device, work, self._blobs)
        self._worker_starts.use(self._device, self._world.now + takes)
        future = None if self._lost(self._device, key) else self._engine.start(self._device, key, work, self._blobs)

        def report_if_wanted(event: Callable[[], WorkEvent]) -> None:
            if self._wanted.get(key) is mark:
                report(event())

        pause = work.visit.lease / SIGNS
        for sign in range(1, int(takes // pause) + 1):
            progress = WorkProgress(key, sign, sign + 1)
            self._world.later(sign * pause, lambda progress=progress: report_if_wanted(lambda: progress))  # type: ignore[misc]
        self._world.later(takes, lambda: report_if_wanted(lambda: self._outcome(key, future)))

    def _outcome(self, key: str, future: Future[Outcome] | None) -> WorkDone | WorkFailed:
        del self._wanted[key]
        if future is None:
            return WorkFailed(key, "failed", "dropped out")
        outcome = future.result()
        for digest, content in outcome.blobs.items():
            self._blobs.put(content, digest)
        return outcome.event

    def stop(self, key: str) -> None:
        """Cancel this visit's reports."""
        self._wanted.pop(key, None)

    def close(self) -> None:
        """Cancel all reports."""
        self._wanted.clear()


class ConcurrentMeasuring:
    """Runs all work immediately, except evaluations of rounds' models, which run on a thread in parallel.

    An evaluation is reported right before the next round is closed, not when its result is available. Therefore the
    fleet's clock and the order of its records are the same in every run.
    """

    def __init__(self, perform: Callable[[Any], Any]) -> None:
        self._perform = perform
        self._at_once = InlineWorkers(perform)
        self._thread = ThreadPoolExecutor(1, "measure")
        self._tests: dict[str, tuple[MeasureRound, Future[WorkDone | WorkFailed], Report]] = {}
        """Unreported evaluations, by their keys."""

    def start(self, key: str, work: Any, report: Report) -> None:
        """Start an evaluation, or do another piece of work."""
        if isinstance(work, MeasureRound):
            self._tests[key] = work, self._thread.submit(attempt, key, work, self._perform), report
            return
        if isinstance(work, CloseRound) and work.state.phase == "train":
            self.settle()
        self._at_once.start(key, work, report)

    def settle(self) -> bool:
        """Wait for all pending evaluations and report them; return whether there were any."""
        tests, self._tests = self._tests, {}
        for _, future, report in tests.values():
            report(future.result())
        return bool(tests)

    def found(self, job: str, number: int) -> RoundMeasured | None:
        """Return the result of a round's evaluation if it is finished and not reported yet."""
        for work, future, _ in self._tests.values():
            if (work.job, work.round) == (job, number) and future.done():
                event = future.result()
                found: RoundMeasured | None = event.outcome if isinstance(event, WorkDone) else None
                return found
        return None

    def stop(self, key: str) -> None:
        """Cancel the report of an evaluation."""
        self._tests.pop(key, None)

    def close(self) -> None:
        """Stop the thread after its current work."""
        self._tests.clear()
        self._thread.shutdown(cancel_futures=True)


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
        direct: bool = True,
        hibernating: bool = True,
        objectives: tuple[str, ...] = (),
    ) -> None:
        """`clock` and `stores` resume an earlier fleet; `make` creates the graphs of its evaluations.

        `objectives` are custom ones that every device offers in addition to the built-in ones.

        `notify` receives the progress of compiling. Without `direct`, every model goes through the whole protocol,
        chunk by chunk. Without `hibernating`, every device's node is created at once and never hibernates.
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
        super().__init__(devices, sites, one_broker=one_broker, clock=clock, stores=stores, views=views, direct=direct)

    def _start_devices(self, names: tuple[str, ...]) -> None:
        """Hibernate the devices of a site, except those that were working when the fleet stopped."""
        if self.hibernated is None:
            super()._start_devices(names)
            return
        self.broker_of(names[0]).on_unmatched = self.hibernated.wake_by
        busy = [name for name in names if name in self.stores and not may_hibernate(self.stores[name])]
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
        request = Received(OPERATOR, Epoch(0, bytes(8)), Inspect("view", name, len(before)))
        (answer,) = self.coordinator().handle(request, self.world.now)
        assert isinstance(answer, Send)  # noqa: S101
        assert isinstance(answer.message, Jobs)  # noqa: S101
        (view,) = answer.message.jobs
        history = (*before, *self.evaluated_rounds(name, len(before)))
        if len(history) > view.round:  # the newest round was tested just now, and has no record yet
            view = msgspec.structs.replace(view, round=len(history), accuracy=history[-1].accuracy)
        return JobProgress(view, history)

    def evaluated_rounds(self, name: str, since: int) -> list[RoundReport]:
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
