"""An edge server without real training; a twin replayed from its journal is compared after each step."""

from __future__ import annotations

from typing import Any

import msgspec

from hierarchy.edge.gate import Passed
from hierarchy.edge.server import EdgeServer
from sojourn.node.machine import Append, Pulled, Received, StartWork, WorkDone
from sojourn.parts import Gate, TourPolicy
from sojourn.protocol.messages import Birth, Death, Tour, TourAccepted, TourCancel, Visited
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, TourId, VisitId
from sojourn.store.blobs import ref_of
from tests.sojourn.protocol.examples import TASK
from tests.sojourn.store.replays import replayed, without_steps

CLOUD, EPOCH = Address("cloud", "c"), Epoch(1, bytes(8))
KIT, MODEL = (ref_of(name.encode(), "float32") for name in ("kit", "model"))
PRESENCES: list[Birth | Death] = [Birth(), Death()]
DISMISSALS: list[type[TourCancel | TourAccepted]] = [TourCancel, TourAccepted]


def device(name: str) -> Address:
    return Address("device", name)


def result(name: str, encoding="float32"):
    return ref_of(name.ljust(MODEL.size, ".")[: MODEL.size].encode(), encoding)


def tour_id(attempt=1, number=0, round_=1) -> TourId:
    return TourId("job", round_, number, attempt)


def tour(hops=("a", "b"), spares=(), attempt=1, number=0, round_=1, encoding="float32", **policy) -> Tour:
    task = msgspec.structs.replace(TASK, encoding=encoding)
    name, leads = tour_id(attempt, number, round_), TourPolicy(**policy)
    return Tour(name, KIT, {"model": MODEL}, hops, spares, task, 5, leads, Gate(), (1.0,))


def visit_id(hop=0, attempt=(1, 1), number=0) -> VisitId:
    return VisitId("job", 1, number, hop, attempt)


class Bench:
    """An edge server whose records are all kept, and whose replayed twin is compared after each step."""

    def __init__(self) -> None:
        self.edge = EdgeServer("e", "c")
        self.records: list[bytes] = []
        self.work = "none yet"

    def handle(self, event, now=0.0):
        effects = self.edge.handle(event, now)
        for effect in effects:
            if isinstance(effect, Append):
                self.records.append(msgspec.msgpack.encode(effect.record))
            elif isinstance(effect, StartWork):
                self.work = effect.key
        assert self.replayed().snapshot() == self.edge.snapshot()
        return without_steps(effects)

    def replayed(self, cut=0) -> EdgeServer:
        return replayed(EdgeServer("e", "c"), self.records, cut)

    def receive(self, sender, message, now=0.0):
        return self.handle(Received(sender, EPOCH, message), now)

    def take(self, message: Tour, now=0.0):
        """Take a tour and start it."""
        self.receive(CLOUD, message, now)
        self.handle(Pulled(KIT.digest), now)
        return self.handle(Pulled(MODEL.digest), now)

    def visited(self, name: str, where: VisitId, now=0.0, encoding="float32"):
        """Report a device's result and let it be fetched."""
        ref = result(name, encoding)
        self.receive(device(name), Visited(where, {"model": ref}, 5, {}), now)
        return self.handle(Pulled(ref.digest), now)

    def passes(self, name: str, now=0.0):
        return self.handle(WorkDone(self.work, Passed({"model": result(name)}, {"model": result(name)}, 1.0)), now)


def records(effects) -> list[Any]:
    return [effect.record for effect in effects if isinstance(effect, Append)]
