"""The durable state of an agent: its visits, releases and mandates, and the records that change them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from sojourn.protocol.limits import Moment
from sojourn.protocol.mandates import SignedMandate
from sojourn.protocol.messages import Visit, Visited
from sojourn.protocol.release import ENDS, Goods, Health, Order, ReleaseState
from sojourn.protocol.wire import Ref, VisitId

MANDATES_KEPT = 64
"""Maximum number of jobs whose mandates are stored; expired ones are removed first, and without any expired one no new
mandate is taken."""


class MandateTaken(msgspec.Struct, frozen=True, tag="mandate-taken/1"):
    """A mandate was checked and replaces the job's earlier one. `by`: the operator whose key signed it."""

    job: str
    serial: int
    by: str
    mandate: SignedMandate
    until: Moment
    at: Moment


class MandateEnded(msgspec.Struct, frozen=True, tag="mandate-ended/1"):
    """The mandates of a job up to this serial have ended; with `forget`, the job's memory is deleted, too."""

    job: str
    serial: int
    why: str
    until: Moment
    """When the mandate would have expired."""
    at: Moment
    forget: bool = False


class ClockSeen(msgspec.Struct, frozen=True, tag="clock-seen/1"):
    """The system clock has shown this time; with `corrected`, the owner states that later times were wrong."""

    at: Moment
    corrected: bool = False


MandateRecord = MandateTaken | MandateEnded | ClockSeen


class HeldMandate(msgspec.Struct):
    """The newest mandate of a job: in force while `ended` is empty.

    signed: None if only its withdrawal was received. until: its expiry. visits: the number of results sent under it.
    """

    serial: int
    until: Moment
    by: str = ""
    signed: SignedMandate | None = None
    taken: Moment = 0.0
    visits: int = 0
    ended: str = ""
    ended_at: Moment = 0.0


class MandateBook(msgspec.Struct):
    """The mandates of a device by job, and the latest time that its clock has shown."""

    held: dict[str, HeldMandate] = {}
    seen: Moment = 0.0

    def apply(self, record: MandateRecord) -> None:
        """Apply one record."""
        match record:
            case ClockSeen():
                self.seen = record.at if record.corrected else max(self.seen, record.at)
            case MandateTaken():
                self.held.pop(record.job, None)
                self.held[record.job] = HeldMandate(record.serial, record.until, record.by, record.mandate, record.at)
                self.seen = max(self.seen, record.at)
                self._make_room()
            case MandateEnded():
                known = self.held.get(record.job)
                if known is None:
                    known = self.held[record.job] = HeldMandate(record.serial, record.until)
                known.serial, known.until = max(known.serial, record.serial), max(known.until, record.until)
                known.ended, known.ended_at = record.why, record.at
                self.seen = max(self.seen, record.at)
                self._make_room()

    def is_full(self, now: float) -> bool:
        """Whether no mandate of another job can be stored."""
        return len(self.held) >= MANDATES_KEPT and not self._expired(now)

    def _expired(self, now: float) -> list[str]:
        """Return the jobs whose ended mandates have also expired: without a record they are still refused."""
        return [job for job, it in self.held.items() if it.ended and it.until <= now]

    def _make_room(self) -> None:
        for job in self._expired(self.seen)[: max(0, len(self.held) - MANDATES_KEPT)]:
            del self.held[job]


Key = str
"""A visit without its attempt: job, round, tour, hop."""
RESULTS_KEPT = 32
"""Maximum number of stored results that no edge server has accepted, and of fences; the oldest is removed first."""
MAX_MEMORIES = 16
"""Maximum number of jobs with objective memory; the one that changed longest ago is removed first."""


class VisitTaken(msgspec.Struct, frozen=True, tag="visit-taken/1"):
    """A visit was accepted for work."""

    source: str
    order: Visit = msgspec.field(name="visit")


class VisitTrained(msgspec.Struct, frozen=True, tag="visit-trained/1"):
    """A visit was trained; its result waits to be accepted."""

    key: Key
    answer: Visited
    memory: dict[str, Ref]


class VisitEnded(msgspec.Struct, frozen=True, tag="visit-ended/1"):
    """A visit is over: accepted, or dropped."""

    key: Key
    accepted: bool


class ReleaseOrdered(msgspec.Struct, frozen=True, tag="release-ordered/1"):
    """A release order was taken: it is trusted, and newer than any before it."""

    source: str
    order: Order


class ReleaseEnded(msgspec.Struct, frozen=True, tag="release-ended/1"):
    """The outcome of a line's newest order, or of the release that it installed."""

    line: str
    state: ReleaseState
    detail: str
    health: Health | None


Record = VisitTaken | VisitTrained | VisitEnded | ReleaseOrdered | ReleaseEnded | MandateRecord


class HeldVisit(msgspec.Struct):
    """A visit that is active, or whose result waits to be accepted."""

    source: str
    order: Visit = msgspec.field(name="visit")
    answer: Visited | None = None
    memory: dict[str, Ref] = {}


class Memory(msgspec.Struct):
    """The memory of a job's objective, and the number of accepted visits that contributed to it."""

    vectors: dict[str, Ref] = {}
    visits: int = 0


class ServedRelease(msgspec.Struct, frozen=True):
    """A version of a model line that this device serves."""

    version: int
    goods: Goods


class ReleaseLine(msgspec.Struct):
    """A model line: its newest order with its outcome, the served release, and the previous one."""

    source: str
    order: Order
    state: ReleaseState = "fetching"
    detail: str = ""
    health: Health | None = None
    serving: ServedRelease | None = None
    previous: ServedRelease | None = None
    unsure: bool = False
    """Whether the release on the disk may differ from `serving`, because installation was interrupted."""

    @property
    def serves_as_ordered(self) -> bool:
        """Whether the served release is the ordered one."""
        goods = self.order.goods
        return goods is not None and self.serving == ServedRelease(self.order.version, goods)

    def end(self, record: ReleaseEnded) -> None:
        """Record the outcome of the order."""
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
    mandates: MandateBook = msgspec.field(default_factory=MandateBook)

    def apply(self, record: Record) -> None:
        """Apply one record."""
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
                if signed := self.mandates.held.get(held.order.id.job):
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

    def reserve_newer_attempts(self) -> None:
        """Handle missing records: keep only the newest untrained visit, and check every served release."""
        for key in [key for key, held in self.held.items() if held.answer is None][:-1]:
            self.apply(VisitEnded(key, accepted=False))
        for line in self.lines.values():
            line.unsure = True

    def drop_missing_blobs(self, missing: AbstractSet[bytes]) -> list[str]:
        """Drop the results whose vectors are missing: if an edge server asks again, the visit is trained again."""
        gone = {key: it for key, it in self.held.items() if it.answer and missing & _digests(it.answer)}
        for key in gone:
            del self.held[key]
        again = "is lost; the visit is trained again if an edge server asks for it"
        return [f"the result of visit {held.order.id} {again}" for held in gone.values()]

    def _mandate(self, record: MandateRecord) -> None:
        self.mandates.apply(record)
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
        """Return the unanswered results that would change a job's memory when accepted."""
        return [key for key, held in self.held.items() if held.order.id.job == job and held.memory]

    def _remember(self, held: HeldVisit) -> None:
        job = held.order.id.job
        # The training process reports how many visits its memory included: 0 if the memory was lost.
        earlier = int(held.answer.metrics.get("remembered", 0)) if held.answer else 0
        self.memory.pop(job, None)
        self.memory[job] = Memory(held.memory, earlier + 1)
        while len(self.memory) > MAX_MEMORIES:
            del self.memory[next(iter(self.memory))]

    def fence(self, key: Key) -> tuple[int, int]:
        """Return the newest known attempt of a visit: only a later one is new."""
        held = self.held.get(key)
        return held.order.id.attempt if held else self.fences.get(key, (-1, -1))

    def live(self) -> set[bytes]:
        """Return the digests of the blobs that this state refers to."""
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
    """Return the key of a visit: its name without the attempt."""
    return f"{visit.job}/{visit.round}/{visit.tour}/{visit.hop}"


def supersedes(new: VisitId, old: VisitId) -> bool:
    """Whether `new` replaces `old`: it is of a later round, or a later attempt within the same tour."""
    same_tour = (new.job, new.round, new.tour) == (old.job, old.round, old.tour)
    return (new.job == old.job and new.round > old.round) or (same_tour and new.attempt > old.attempt)


def work_key(visit: VisitId) -> str:
    """Return the name of the work that trains a visit: its name with the attempt."""
    return f"{visit.job}/{visit.round}/{visit.tour}/{visit.hop}/{visit.attempt[0]}.{visit.attempt[1]}"
