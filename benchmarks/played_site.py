"""A site with thousands of simulated devices: real messages to a real coordinator, without training."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from benchmarks.bare_machine import BareMachine
from sojourn.links.mqtt import MqttLink
from sojourn.node.driver import Driver
from sojourn.node.machine import Received, Send, StoreBlob
from sojourn.node.node import Node
from sojourn.node.workers import InlineWorkers
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Roster, RosterAsk, Tour, Toured, TourProgress
from sojourn.protocol.task import ABILITIES, OF_MODELS
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Member, Offer, VisitReport
from sojourn.store.blobs import ref_of
from sojourn.store.journal import FolderStore

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from sojourn.links.settings import BrokerSettings
    from sojourn.node.machine import Effect

CLOUD = Address("cloud", "cloud")
OFFER = Offer("0.9.0", "Raspberry Pi 4", "onnxruntime", 4, 4_000_000_000, ("sgd", "prox"), "60 samples", (), ABILITIES)
SAMPLES, SECONDS = 60, 1.5


class PlayedSite(BareMachine):
    """An edge server that reports these devices and successful visits; every tenth device declines."""

    def __init__(self, name: str, devices: int) -> None:
        super().__init__(Address("edge", name), CLOUD)
        epoch = Epoch(1, b"benchmrk")
        self._members = tuple(Member(f"device-{number}", epoch, OFFER) for number in range(1, devices + 1))

    def handle(self, event: Any, _now: float) -> list[Effect]:
        match event:
            case Received(message=RosterAsk()):
                data = pack_blob(self._members)
                ref = ref_of(data)
                self._live.add(ref.digest)
                return [StoreBlob(ref.digest, data), Send(CLOUD, Roster(1, ref, OF_MODELS))]
            case Received(message=Tour() as tour):
                return self._tour(tour)
        return []

    def _tour(self, tour: Tour) -> list[Effect]:
        effects: list[Effect] = []
        reports = []
        for hop, device in enumerate(tour.hops):
            effects.append(Send(CLOUD, TourProgress(tour.id, hop, len(tour.hops), device, 1, 2, 0, 0)))
            unhealthy = int(device.partition("-")[2]) % 10 == 0
            status, reason = ("declined", "hot: 81 °C; works again below 70 °C") if unhealthy else ("done", "")
            metrics = {} if unhealthy else {"loss": 0.5, "steps": 2.0}
            reports.append(
                VisitReport(device, hop, status, reason, 0 if unhealthy else SAMPLES, 0.0, metrics, None, SECONDS)
            )
        data = pack_blob(reports)
        ref = ref_of(data)
        self._live.add(ref.digest)
        done = SAMPLES * sum(it.status == "done" for it in reports)
        toured = Toured(tour.id, {"model": tour.vectors["model"]}, done, ref, 10_000)
        return [*effects, StoreBlob(ref.digest, data), Send(CLOUD, toured)]


class RunningSite:
    """A simulated site on a thread of this process."""

    def __init__(self, broker: BrokerSettings, fleet: str, name: str, devices: int, folder: Path) -> None:
        store = FolderStore(folder)
        link = MqttLink(broker, name)
        node = Node(fleet, PlayedSite(name, devices), store, {"cloud": link}, InlineWorkers(lambda work: work))
        self._driver = Driver(node)
        self._thread = threading.Thread(target=self._driver.run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._driver.stop()
        self._thread.join()
