"""An agent on a bench: nothing is trained, and a twin made of its journal is compared after each step."""

from __future__ import annotations

from typing import Any

import msgspec

from edge_agent.agent import Agent
from edge_agent.training.work import Trained
from sojourn.node.machine import Append, Did, Do, Pulled, Received
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
    """An agent whose every record is kept, and whose replayed twin is compared after each step."""

    def __init__(self, offer=OFFER, **kwargs) -> None:
        self.offer, self.kwargs = offer, kwargs
        self.agent = Agent("d", offer, **kwargs)
        self.records: list[bytes] = []
        self.work = "none yet"

    def tell(self, event, now=0.0) -> list[Any]:
        effects = self.agent.handle(event, now)
        self.note(effects)
        return without_steps(effects)

    def note(self, effects) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.records.append(msgspec.msgpack.encode(effect.record))
            elif isinstance(effect, Do):
                self.work = effect.key
        assert self.replayed().snapshot() == self.agent.snapshot()

    def replayed(self, cut=0) -> Agent:
        """A twin from the journal: a snapshot after `cut` records, then the others."""
        return replayed(Agent("d", self.offer, **self.kwargs), self.records, cut)

    def ask(self, message, now=0.0, sender=EDGE) -> list[Any]:
        return self.tell(Received(sender, EPOCH, message), now)

    def take(self, message: Visit, now=0.0) -> None:
        """Take a visit and have it under way."""
        self.ask(message, now)
        self.tell(Pulled(KIT.digest), now)
        self.tell(Pulled(message.vectors["model"].digest), now)

    def finish(self, now=0.0, **how) -> list[Any]:
        return self.tell(Did(self.work, trained(**how)), now)
