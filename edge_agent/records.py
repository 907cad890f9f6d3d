"""What an agent must not forget: its durable state, and the records that change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edge_agent.mandate_records import MandateBook, MandateEnded, MandateRecord
from sojourn.protocol.messages import Visit, Visited
from sojourn.protocol.release import ENDS, Goods, Health, Order, ReleaseState
from sojourn.protocol.wire import Ref, VisitId

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

Key = str
"""A visit without its attempt: job, round, tour, hop."""
RESULTS_KEPT = 32
"""At most this many results that nobody fetches, and fences of past rounds, are kept; the oldest goes first."""
REMEMBERED = 16
"""The memories of at most this many jobs are kept; the one that changed longest ago goes first."""


class VisitTaken(msgspec.Struct, frozen=True, tag="visit-taken/1"):
    """A visit was accepted for work."""

    source: str
    order: Visit = msgspec.field(name="visit")


class VisitTrained(msgspec.Struct, frozen=True, tag="visit-trained/1"):
    """A visit is trained; its result waits to be accepted."""

    key: Key
    answer: Visited
    memory: dict[str, Ref]


class VisitEnded(msgspec.Struct, frozen=True, tag="visit-ended/1"):
    """A visit is over: accepted, or dropped."""

    key: Key
    accepted: bool


class ReleaseOrdered(msgspec.Struct, frozen=True, tag="release-ordered/1"):
    """An order was taken: trusted, and newer than any before it."""

    source: str
    order: Order


class ReleaseEnded(msgspec.Struct, frozen=True, tag="release-ended/1"):
    """What became of a line's newest order, or later of what it made the device serve."""

    line: str
    state: ReleaseState
    detail: str
    health: Health | None


Record = VisitTaken | VisitTrained | VisitEnded | ReleaseOrdered | ReleaseEnded | MandateRecord


class HeldVisit(msgspec.Struct):
    """A visit that is under way, or whose result waits."""

    source: str
    order: Visit = msgspec.field(name="visit")
    answer: Visited | None = None
    memory: dict[str, Ref] = {}


class Memory(msgspec.Struct):
    """What is kept for a job's objective, and how many accepted visits have gone into it."""

    vectors: dict[str, Ref] = {}
    visits: int = 0


class ServedRelease(msgspec.Struct, frozen=True):
    """A version of a model line that programs on this device are given."""

    version: int
    goods: Goods


class ReleaseLine(msgspec.Struct):
    """A model line: its newest order and what became of it, what is served, and what was served before that."""

    source: str
    order: Order
    state: ReleaseState = "fetching"
    detail: str = ""
    health: Health | None = None
    serving: ServedRelease | None = None
    previous: ServedRelease | None = None
    unsure: bool = False
    """Whether something else may be on the disk than `serving` says: work on it was begun whose end is not known."""

    @property
    def serves_as_ordered(self) -> bool:
        """Whether what is served is exactly what the order asks for."""
        goods = self.order.goods
        return goods is not None and self.serving == ServedRelease(self.order.version, goods)

    def end(self, record: ReleaseEnded) -> None:
        """Take down what became of the order."""
        self.state, self.detail, self.health = record.state, record.detail, record.health
        if record.state == "fell-back":
            self.serving, self.previous, self.unsure = self.previous, None, True
            return
        goods = self.order.goods
        if record.state == "serving" and goods:
            new: ServedRelease | None = ServedRelease(self.order.version, goods)
        elif record.state == "withdrawn":
            new = None
        else:
            return
        if new is None or self.serving is None or new.goods != self.serving.goods:
            self.previous = self.serving
        self.serving, self.unsure = new, False


class AgentState(msgspec.Struct):
    """The durable state of an agent."""

    held: dict[Key, HeldVisit] = {}
    fences: dict[Key, tuple[int, int]] = {}
    memory: dict[str, Memory] = {}
    kits: list[Ref] = []
    lines: dict[str, ReleaseLine] = {}
    mandate_book: MandateBook | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="mandates")
    """Unset where there was never one."""

    @property
    def mandates(self) -> MandateBook:
        """What is known of mandates."""
        return MandateBook() if isinstance(self.mandate_book, msgspec.UnsetType) else self.mandate_book

    def apply(self, record: Record) -> None:
        """Change by one record."""
        match record:
            case ReleaseOrdered():
                self._order(record)
            case ReleaseEnded():
                self.lines[record.line].end(record)
            case VisitTaken():
                self.held[key_of(record.order.id)] = HeldVisit(record.source, record.order)
                self.kits = [record.order.kit, *(kit for kit in self.kits if kit != record.order.kit)][:2]
            case VisitTrained():
                held = self.held[record.key]
                held.answer, held.memory = record.answer, record.memory
                if self.mandate_book and (signed := self.mandate_book.held.get(held.order.id.job)):
                    signed.visits += 1
            case VisitEnded():
                held = self.held.pop(record.key)
                self.fences.pop(record.key, None)
                self.fences[record.key] = held.order.id.attempt
                while len(self.fences) > RESULTS_KEPT:
                    del self.fences[next(iter(self.fences))]
                if record.accepted and held.memory:
                    self._remember(held)
            case _:
                self._mandate(record)

    def mend(self) -> None:
        """Records are missing: of untrained visits only the newest is worked on, and what is served is looked at."""
        for key in [key for key, held in self.held.items() if held.answer is None][:-1]:
            self.apply(VisitEnded(key, accepted=False))
        for line in self.lines.values():
            line.unsure = True

    def do_without(self, missing: AbstractSet[bytes]) -> list[str]:
        """Drop the results whose vectors are gone: who waits for one asks again, and then it is trained again."""
        gone = {key: it for key, it in self.held.items() if it.answer and missing & _digests(it.answer)}
        for key in gone:
            del self.held[key]
        again = "is gone; it is trained again if it is asked for"
        return [f"the result of the visit {held.order.id} {again}" for held in gone.values()]

    def _mandate(self, record: MandateRecord) -> None:
        self.mandate_book = self.mandates
        self.mandate_book.apply(record)
        if isinstance(record, MandateEnded) and record.forget:
            self.memory.pop(record.job, None)
            self.kits = []

    def _order(self, record: ReleaseOrdered) -> None:
        known = self.lines.get(record.order.line)
        new = ReleaseLine(record.source, record.order)
        if known:
            new.serving, new.previous, new.health = known.serving, known.previous, known.health
            new.unsure = known.state not in ("serving", "withdrawn")
        self.lines[record.order.line] = new

    def unanswered(self, job: str) -> list[Key]:
        """The results that would change what is remembered for a job, if they were accepted."""
        return [key for key, held in self.held.items() if held.order.id.job == job and held.memory]

    def _remember(self, held: HeldVisit) -> None:
        job = held.order.id.job
        # The training process says what it could use: a memory that it found lost began anew.
        earlier = int(held.answer.metrics.get("remembered", 0)) if held.answer else 0
        self.memory.pop(job, None)
        self.memory[job] = Memory(held.memory, earlier + 1)
        while len(self.memory) > REMEMBERED:
            del self.memory[next(iter(self.memory))]

    def fence(self, key: Key) -> tuple[int, int]:
        """The newest attempt of a visit that came here: only a later one is new."""
        held = self.held.get(key)
        return held.order.id.attempt if held else self.fences.get(key, (-1, -1))

    def live(self) -> set[bytes]:
        """The blobs that this state refers to."""
        kept = [*self.kits]
        for held in self.held.values():
            kept += [held.order.kit, *held.order.vectors.values(), *held.memory.values()]
            kept += held.answer.vectors.values() if held.answer else ()
        for memory in self.memory.values():
            kept += memory.vectors.values()
        ordered = [line.order.goods for line in self.lines.values() if line.state not in ENDS and line.order.goods]
        goods = {digest for it in ordered for digest in (it.graph.digest, it.card.digest)}
        return {ref.digest for ref in kept} | goods


def _digests(answer: Visited) -> set[bytes]:
    return {ref.digest for ref in answer.vectors.values()}


def key_of(visit: VisitId) -> Key:
    """The visit without its attempt."""
    return f"{visit.job}/{visit.round}/{visit.tour}/{visit.hop}"


def supersedes(new: VisitId, old: VisitId) -> bool:
    """Whether the job has moved on from the old visit: to a later round, or within the tour to a later attempt."""
    same_tour = (new.job, new.round, new.tour) == (old.job, old.round, old.tour)
    return (new.job == old.job and new.round > old.round) or (same_tour and new.attempt > old.attempt)


def work_key(visit: VisitId) -> str:
    """The visit with its attempt: the name of the work that trains it."""
    return f"{visit.job}/{visit.round}/{visit.tour}/{visit.hop}/{visit.attempt[0]}.{visit.attempt[1]}"
