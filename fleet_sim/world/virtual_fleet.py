"""A simulated fleet: all roles as they are, devices that train with an engine, and what happened, written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.console.following import JobProgress
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.work import CoordinatorWorker
from coordinator.results.folder import EndedVisit
from coordinator.rounds.kit_cache import KitCache
from edge_agent.agent import Agent
from edge_agent.training.objectives import NAMES
from fleet_sim.world.counted_link import CountedLink
from fleet_sim.world.engine_training import EngineTraining
from fleet_sim.world.memory_fleet import CLOUD, MemoryFleet
from hierarchy.edge.exemplar_view import ExemplarViews
from hierarchy.edge.records import VisitKept, VisitMissed
from sojourn import __version__
from sojourn.model.graphs import Graphs
from sojourn.node.machine import Received, Send
from sojourn.protocol.messages import Inspect, Jobs, Refused
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
    from sojourn.profile import LinkProfile
    from sojourn.protocol.job_messages import Continue
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import RoundReport
    from sojourn.store.blobs import BlobStore
    from sojourn.store.journal import Store

OPERATOR = Address("cloud", "operator")


class VirtualFleet(MemoryFleet):
    """A fleet whose devices train with an engine. `visited` is called with every visit that ended."""

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
    ) -> None:
        """With `clock` and `stores` it goes on where another one stopped; `make` makes the graphs of its tests.

        `tell` is told what compiling is at.
        """
        self._engine = engine
        self._link_profiles = links or {}
        self._seconds = seconds
        self._visited = visited
        self._lost = lost
        self._make, self._tell = make, tell
        self.worker_starts = worker_starts
        self._links: dict[str, CountedLink] = {}
        devices: dict[str, Any] = {device: None for reached in sites.values() for device in reached}
        views = ExemplarViews(make)
        super().__init__(devices, sites, one_broker=one_broker, clock=clock, stores=stores, views=views)

    def course(self, name: str, before: tuple[RoundReport, ...] = ()) -> JobProgress:
        """How a job stands, as an operator sees it."""
        machine = self.nodes[CLOUD].node.machine
        request = Received(OPERATOR, Epoch(0, bytes(8)), Inspect("view", name, len(before)))
        (answer,) = machine.handle(request, self.world.now)
        assert isinstance(answer, Send)  # noqa: S101
        assert isinstance(answer.message, Jobs)  # noqa: S101
        (view,) = answer.message.jobs
        return JobProgress(view, (*before, *view.history))

    def go_on(self, message: Continue) -> str | None:
        """Have a job go on, as an operator does; returns why it does not."""
        before = self.job(message.job).continued
        self.ask(message)
        if self.job(message.job).continued != before:
            return None
        # What is refused changes nothing, so that it can be asked again for the reason.
        (answer,) = self.coordinator().handle(Received(OPERATOR, Epoch(0, bytes(8)), message), self.world.now)
        assert isinstance(answer, Send)  # noqa: S101
        return answer.message.reason if isinstance(answer.message, Refused) else None

    def coordinator(self) -> Coordinator:
        """The coordinator's machine."""
        machine = self.nodes[CLOUD].node.machine
        assert isinstance(machine, Coordinator)  # noqa: S101
        return machine

    def _bench(self, blobs: BlobStore) -> CoordinatorWorker:
        return CoordinatorWorker(blobs, kits=KitCache(), make=self._make, tell=self._tell)

    def _edge(self, name: str, site: MemoryBroker, cloud: MemoryBroker) -> Node:
        node = super()._edge(name, site, cloud)
        node.on_record(lambda record: self._saw(name, record))
        return node

    def _saw(self, site: str, record: Any) -> None:
        if isinstance(record, VisitKept | VisitMissed):
            down, up = self._links[record.report.device].taken()
            self._visited(EndedVisit(self.world.now, site, record.key, record.report, down, up))

    def _agent(self, name: str, data: DataSettings, broker: MemoryBroker) -> Node:
        del data  # the engine has it
        # Whose data is simulated has agreed to all that can be asked.
        offer = Offer(__version__, "simulated", "onnxruntime", 1, 0, NAMES, "simulated", ("class-counts",))
        self._links[name] = link = CountedLink(broker, self._link_profiles.get(name))
        return self._node(
            Agent(name, offer),
            {"edge": link},
            lambda store: EngineTraining(
                self.world, name, self._engine, store.blobs, self._seconds, self._lost, self.worker_starts
            ),
        )
