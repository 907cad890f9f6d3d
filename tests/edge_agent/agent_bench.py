"""An agent without training, compared after each step with a twin that replays its journal."""

from __future__ import annotations

from typing import Any

import msgspec

from edge_agent.agent import Agent
from edge_agent.training.messages import Trained
from sojourn.node.machine import Append, Pulled, Received, StartWork, WorkDone
from sojourn.protocol.messages import Visit
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer, VisitId
from sojourn.store.blobs import ref_of
from tests.sojourn.protocol.examples import TASK
from tests.sojourn.store.replays import replayed, without_steps

EDGE, EPOCH = Address("edge", "e"), Epoch(1, bytes(8))
OFFER = Offer("1", "m", "r", 2, 0, ("sgd",), "npz")
KIT, MODEL, RESULT, MEMORY = (ref_of(name.encode(), "float32") for name in ("kit", "model", "result", "memory"))


def visit_id(attempt=(1, 1), job="job", round_=1, tour=0, hop=0) -> VisitId:
    return VisitId(job, round_, tour, hop, attempt)


def visit(attempt=(1, 1), model=MODEL, **where) -> Visit:
    return Visit(visit_id(attempt, **where), KIT, {"model": model}, TASK, 7, 60.0)


def trained(memory=()) -> Trained:
    return Trained({"model": RESULT}, 5, {"loss": 0.5}, None, {"h": MEMORY} if memory else {})


class Bench:
    """An agent that records its journal, and compares itself with a replayed twin after each step."""

    def __init__(self, offer=OFFER, **kwargs) -> None:
        self.offer, self.kwargs = offer, kwargs
        self.agent = Agent("d", offer, **kwargs)
        self.records: list[bytes] = []
        self.work = "none yet"

    def handle(self, event, now=0.0) -> list[Any]:
        effects = self.agent.handle(event, now)
        self.note(effects)
        return without_steps(effects)

    def note(self, effects) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.records.append(msgspec.msgpack.encode(effect.record))
            elif isinstance(effect, StartWork):
                self.work = effect.key
        assert self.replayed().snapshot() == self.agent.snapshot()

    def replayed(self, cut=0) -> Agent:
        """Return a twin from the journal: a snapshot after `cut` records, then the remaining records."""
        return replayed(Agent("d", self.offer, **self.kwargs), self.records, cut)

    def ask(self, message, now=0.0, sender=EDGE) -> list[Any]:
        return self.handle(Received(sender, EPOCH, message), now)

    def take(self, message: Visit, now=0.0) -> None:
        """Send an order, and deliver its blobs."""
        self.ask(message, now)
        self.handle(Pulled(KIT.digest), now)
        self.handle(Pulled(message.vectors["model"].digest), now)

    def finish(self, now=0.0, **how) -> list[Any]:
        return self.handle(WorkDone(self.work, trained(**how)), now)
