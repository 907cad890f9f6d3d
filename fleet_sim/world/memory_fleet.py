"""A whole fleet in one process: the real coordinator, edge servers and agents on in-memory brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coordinator.job_state import JobState
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.kept_models import BEST_ONLY
from coordinator.machine.work import CoordinatorWorker
from coordinator.records import ENDED
from coordinator.rounds.preparing import KitCache
from edge_agent.agent import Agent
from edge_agent.training.objectives import NAMES
from edge_agent.training.trainer import InlineTraining, Trainer
from fleet_sim.world.direct_transport import Neighbours
from fleet_sim.world.world import SimulatedNode, World
from hierarchy.edge.gate import VIEWS, perform
from hierarchy.edge.server import EdgeServer
from sojourn import __version__
from sojourn.data.source import DataSettings
from sojourn.links.link import Link
from sojourn.links.memory import Faults, MemoryBroker, MemoryLink
from sojourn.links.settings import OWN_BROKER_PAYLOAD
from sojourn.model.exemplar_view import ExemplarViews
from sojourn.node.machine import Machine, Received
from sojourn.node.node import Node
from sojourn.node.workers import InlineWorkers, Workers
from sojourn.protocol.data_summary import CONSENTS
from sojourn.protocol.operator_messages import Submit
from sojourn.protocol.registry import OperatorRequest
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch, Offer
from sojourn.store.blobs import BlobStore
from sojourn.store.journal import MemoryStore, Store

FLEET = "simulated"
CLOUD = "cloud"
OPERATOR = Address("cloud", "operator")
OFFER = Offer(__version__, "simulated", "onnxruntime", 1, 0, NAMES, "simulated", CONSENTS, ABILITIES)
"""The offer of every device: simulated devices consent to everything."""


class MemoryFleet:
    """All nodes by name, on in-memory brokers; stores outlive nodes, so any node can be killed and started again."""

    def __init__(
        self,
        devices: Mapping[str, DataSettings],
        sites: Mapping[str, tuple[str, ...]],
        faults: Faults | None = None,
        *,
        one_broker: bool = False,
        clock: float = 0.0,
        stores: Mapping[str, Store] | None = None,
        views: ExemplarViews | None = None,
        direct: bool = False,
    ) -> None:
        """`sites` maps each edge server to the devices on its broker; with one broker, every site reaches all.

        `clock` and `stores` resume an earlier fleet. With `direct`, models and packets are passed in memory, and only
        their transfer time is computed; this mode has no fault injection.
        """
        self.world = World()
        self.world.now = clock
        self.nodes: dict[str, SimulatedNode] = {}
        self.stores: dict[str, Store] = dict(stores or {})
        self.exemplar_views = views or VIEWS
        """The exemplars in the format of the gates of all sites."""
        self._neighbours = Neighbours(self.world, self.nodes, self._woken) if direct else None
        self._devices, self._home = devices, dict[str, str]()
        cloud = self.world.broker(faults)
        self.brokers: dict[str, MemoryBroker] = {CLOUD: cloud}
        for site, reached in sites.items():
            self.brokers[site] = cloud if one_broker else self.world.broker(faults)
            self._home.update(dict.fromkeys(reached, site))
        self.start(CLOUD)
        for site, reached in sites.items():
            self.start(site)
            self._start_devices(reached)

    def _start_devices(self, names: tuple[str, ...]) -> None:
        """Start the devices of a site."""
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a node with the contents of its store, if any."""
        self.nodes[name] = SimulatedNode(self.world, self._build(name))
        self.nodes[name].start()

    def _woken(self, name: str) -> SimulatedNode | None:  # noqa: ARG002  # no device hibernates here
        """Wake a hibernated node and return it; None if there is none."""
        return None

    def broker_of(self, device: str) -> MemoryBroker:
        """Return the broker that a device is connected to."""
        return self.brokers[self._home[device]]

    def _build(self, name: str) -> Node:
        """Create a node by its name."""
        if name in self._home:
            return self._agent(name, self._devices[name], self.broker_of(name))
        cloud = self.brokers[CLOUD]
        return self._coordinator(cloud) if name == CLOUD else self._edge(name, self.brokers[name], cloud)

    def kill(self, name: str) -> None:
        """Kill a node as kill -9 does."""
        self.nodes[name].kill()

    def submit(self, text: str) -> None:
        """Submit a job to the coordinator, as an operator does."""
        self.ask(Submit("ticket", text))

    def ask(self, message: OperatorRequest[Any]) -> None:
        """Send a request to the coordinator, as an operator does."""
        node = self.nodes[CLOUD].node
        node.inject(Received(OPERATOR, Epoch(0, bytes(8)), message), self.world.now)

    def job(self, name: str) -> JobState:
        """Return the coordinator's state of a job."""
        return self.coordinator().state.jobs[name]

    def coordinator(self) -> Coordinator:
        """Return the coordinator's machine."""
        machine = self.nodes[CLOUD].node.machine
        assert isinstance(machine, Coordinator)  # noqa: S101
        return machine

    def run(self, name: str, limit: float = 1e5) -> JobState:
        """Advance time until the job has ended, or for this many seconds."""
        nodes = self.nodes
        # Called after each event, of which there may be millions.
        self.world.run(lambda: nodes[CLOUD].node.machine.state.jobs[name].status in ENDED, self.world.now + limit)  # type: ignore[attr-defined]
        return self.job(name)

    @property
    def traffic(self) -> int:
        """Return the payload bytes received by all brokers."""
        return sum(broker.payload for broker in set(self.brokers.values()))

    def _node(self, machine: Machine, links: Mapping[Role, Link], workers: Callable[[Store], Workers]) -> Node:
        store = self.stores.setdefault(machine.address.name, MemoryStore())
        neighbours = self._neighbours
        transport = neighbours.transport(machine.address, links, store.blobs) if neighbours else None
        return Node(FLEET, machine, store, links, workers(store), transport=transport)

    def _coordinator(self, broker: MemoryBroker) -> Node:
        link = MemoryLink(broker, OWN_BROKER_PAYLOAD)
        links: dict[Role, Link] = {"edge": link, "cloud": link}
        machine = Coordinator(CLOUD, keep=BEST_ONLY)
        return self._node(machine, links, lambda store: self._cloud_workers(store.blobs))

    def _cloud_workers(self, blobs: BlobStore) -> Workers:
        return InlineWorkers(CoordinatorWorker(blobs, kits=KitCache()))

    def _edge(self, name: str, site: MemoryBroker, cloud: MemoryBroker) -> Node:
        below = MemoryLink(site, OWN_BROKER_PAYLOAD)
        above = below if site is cloud else MemoryLink(cloud, OWN_BROKER_PAYLOAD)
        links: dict[Role, Link] = {"device": below, "cloud": above}
        return self._node(
            EdgeServer(name, CLOUD),
            links,
            lambda store: InlineWorkers(lambda work: perform(work, store.blobs, self.exemplar_views)),
        )

    def _agent(self, name: str, data: DataSettings, broker: MemoryBroker) -> Node:
        links: dict[Role, Link] = {"edge": MemoryLink(broker, OWN_BROKER_PAYLOAD)}
        return self._node(Agent(name, OFFER), links, lambda store: InlineTraining(Trainer(store.blobs, data)))
