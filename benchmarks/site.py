"""A site for measurements: a real broker and a real edge server, with a minimal coordinator that only sends tours."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import msgspec

from benchmarks.bare_machine import BareMachine
from hierarchy.edge.gate import perform
from hierarchy.edge.records import Record
from hierarchy.edge.server import EdgeServer
from sojourn.brokers.local_broker import start_broker
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import LocalBroker
from sojourn.model import vectors
from sojourn.node.driver import Driver
from sojourn.node.machine import Pull, Pulled, Received, Send
from sojourn.node.node import Node
from sojourn.node.workers import InlineWorkers, ThreadWorkers
from sojourn.parts import Gate, Sgd, TourPolicy, Training
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Roster, RosterSeen, Tour, TourAccepted, Toured, TourSigning
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Task, TourId
from sojourn.store.blobs import ref_of
from sojourn.store.journal import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from sojourn.node.machine import Effect
    from sojourn.parts import Encoding
    from sojourn.protocol.mandates import SignedMandate

FLEET, EDGE, CLOUD = "benchmark", Address("edge", "edge"), Address("cloud", "cloud")
CLASSES = tuple(str(digit) for digit in range(10))
TIMEOUT = 120.0


class Lead(msgspec.Struct, frozen=True):
    """Request that the coordinator sends a tour."""

    tour: Tour


class TourGiver(BareMachine):
    """A minimal coordinator: sends tours to its edge server and accepts their results."""

    def __init__(self) -> None:
        super().__init__(CLOUD, EDGE)
        self.toured: queue.SimpleQueue[Toured] = queue.SimpleQueue()
        self._ended: Toured | None = None

    def handle(self, event: Any, _now: float) -> list[Effect]:
        match event:
            case Lead():
                self._live |= {event.tour.kit.digest, *(ref.digest for ref in event.tour.vectors.values())}
                return [Send(EDGE, event.tour)]
            case Received(message=Roster() as message):
                return [Send(EDGE, RosterSeen(message.revision))]
            case Received(message=Toured() as message):
                self._ended = message
                self._live.add(message.vectors["model"].digest)
                return [Pull(message.vectors["model"], EDGE)]
            case Pulled() if self._ended:
                ended, self._ended = self._ended, None
                self.toured.put(ended)
                return [Send(EDGE, TourAccepted(ended.tour))]
        return []


class Journal(FolderStore):
    """A store that calls `written` with each record when it is on the disk."""

    def __init__(self, folder: Path, written: Callable[[Any], object]) -> None:
        super().__init__(folder)
        self._written = written

    def append(self, record: bytes, *, sync: bool) -> None:
        super().append(record, sync=sync)
        self._written(msgspec.msgpack.decode(record, type=Record))


class MeasuredSite:
    """A broker, an edge server and a coordinator, the latter two on threads of this process."""

    def __init__(self, folder: Path, written: Callable[[Any], object] = lambda _record: None) -> None:
        self.folder = folder
        self.broker = start_broker(LocalBroker(kind="mosquitto"), folder / "broker")
        self.server = EdgeServer(EDGE.name, CLOUD.name)
        self.coordinator = TourGiver()
        journal, cloud = Journal(folder / "edge", written), FolderStore(folder / "cloud")
        link = MqttLink(self.broker.settings, EDGE.name)
        workers = ThreadWorkers(lambda work: perform(work, journal.blobs))
        above = MqttLink(self.broker.settings, CLOUD.name)
        self._edge = Driver(Node(FLEET, self.server, journal, {"device": link, "cloud": link}, workers))
        self._cloud = Driver(Node(FLEET, self.coordinator, cloud, {"edge": above}, InlineWorkers(lambda work: work)))
        self.blobs = cloud.blobs
        self._threads = [threading.Thread(target=driver.run) for driver in (self._edge, self._cloud)]
        for thread in self._threads:
            thread.start()
        self._tours = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for driver in (self._cloud, self._edge):
            driver.stop()
        for thread in self._threads:
            thread.join()
        self.broker.stop()

    def await_devices(self, count: int) -> None:
        """Wait until N devices have announced themselves."""
        deadline = time.monotonic() + TIMEOUT
        while len(self.server.roster.members) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {len(self.server.roster.members)} of {count} devices came")
            time.sleep(0.05)

    def lead(
        self,
        model: CompiledModel,
        vector: NDArray[np.float32],
        hops: list[str],
        *,
        encoding: Encoding = "float32",
        training: Training = Training(),  # noqa: B008  # frozen
        threads: int | None = 1,
        mandate: SignedMandate | None = None,
        keys: dict[str, bytes] | None = None,
    ) -> Callable[[], Toured]:
        """Send a tour; the returned value waits for its end. `keys` are those of devices that sign."""
        self._tours += 1
        kit = ref_of(model.packed)
        self.blobs.put(model.packed, kit.digest)
        tour = Tour(
            TourId("benchmark", self._tours, 0, 0),
            kit,
            {"model": vectors.save(self.blobs, vector, encoding, model.kit.model)},
            tuple(hops),
            (),
            Task("train", training, Sgd(), encoding, threads),
            self._tours,
            TourPolicy(),
            Gate(norm_factor=None),
            (),
            signing=TourSigning(mandate, keys or {}) if mandate or keys else None,
        )
        self._cloud.call(lambda now: self._cloud.node.inject(Lead(tour), now))  # type: ignore[arg-type]
        return lambda: self.coordinator.toured.get(timeout=TIMEOUT)


class CompiledModel:
    """Return a compiled built-in model."""

    def __init__(self, name: str, shape: tuple[int, ...], **options: Any) -> None:
        # Not at the top: the measured processes import this module, too, and need no torch.
        from coordinator.compiling import compile_kit  # noqa: PLC0415
        from coordinator.models import build  # noqa: PLC0415

        spec = InputSpec(shape)
        module = build(name, spec, len(CLASSES), options, seed=1)
        compiled = compile_kit(module, spec, CLASSES, mean=None, std=None, seed=1)
        self.kit, self.initial = compiled.kit, compiled.initial
        self.packed = pack_blob(self.kit)
