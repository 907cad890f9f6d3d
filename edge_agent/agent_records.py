"""What an agent must not forget: its durable state, and the records that change it."""

from __future__ import annotations

import msgspec

from sojourn.messages import Visit, Visited
from sojourn.wire import Ref, VisitId

Key = str
"""A visit without its attempt: job, round, tour, hop."""
KEPT = 32
"""Results that nobody fetches, and fences of rounds gone by, are kept up to this number."""
REMEMBERED = 16
"""So many jobs' memories are kept: those that changed last."""


class VisitTaken(msgspec.Struct, frozen=True, tag="visit-taken/1"):
    """A visit was accepted for work."""

    source: str
    visit: Visit


class VisitTrained(msgspec.Struct, frozen=True, tag="visit-trained/1"):
    """A visit is trained; its result waits to be accepted."""

    key: Key
    answer: Visited
    memory: dict[str, Ref]


class VisitEnded(msgspec.Struct, frozen=True, tag="visit-ended/1"):
    """A visit is over: accepted, or dropped."""

    key: Key
    accepted: bool


class Held(msgspec.Struct):
    """A visit that is under way, or whose result waits."""

    source: str
    visit: Visit
    answer: Visited | None = None
    memory: dict[str, Ref] = {}


class Memory(msgspec.Struct):
    """What is kept for a job's objective, and how many accepted visits have gone into it."""

    vectors: dict[str, Ref] = {}
    visits: int = 0


class AgentState(msgspec.Struct):
    """The durable state of an agent."""

    held: dict[Key, Held] = {}
    fences: dict[Key, tuple[int, int]] = {}
    memory: dict[str, Memory] = {}
    kits: list[Ref] = []

    def apply(self, record: VisitTaken | VisitTrained | VisitEnded) -> None:
        """Change by one record."""
        match record:
            case VisitTaken():
                self.held[key_of(record.visit.visit)] = Held(record.source, record.visit)
                self.kits = [record.visit.kit, *(kit for kit in self.kits if kit != record.visit.kit)][:2]
            case VisitTrained():
                held = self.held[record.key]
                held.answer, held.memory = record.answer, record.memory
            case VisitEnded():
                held = self.held.pop(record.key)
                self.fences.pop(record.key, None)
                self.fences[record.key] = held.visit.visit.attempt
                while len(self.fences) > KEPT:
                    del self.fences[next(iter(self.fences))]
                if record.accepted and held.memory:
                    self._remember(held)

    def unsettled(self, job: str) -> list[Key]:
        """The results that would change what is remembered for a job, if they were accepted."""
        return [key for key, held in self.held.items() if held.visit.visit.job == job and held.memory]

    def _remember(self, held: Held) -> None:
        job = held.visit.visit.job
        # The training process says what it could use: a memory that it found lost began anew.
        earlier = int(held.answer.metrics.get("remembered", 0)) if held.answer else 0
        self.memory.pop(job, None)
        self.memory[job] = Memory(held.memory, earlier + 1)
        while len(self.memory) > REMEMBERED:
            del self.memory[next(iter(self.memory))]

    def fence(self, key: Key) -> tuple[int, int]:
        """The newest attempt of a visit that came here: only a later one is new."""
        held = self.held.get(key)
        return held.visit.visit.attempt if held else self.fences.get(key, (-1, -1))

    def live(self) -> set[bytes]:
        """The blobs that this state refers to."""
        kept = [*self.kits]
        for held in self.held.values():
            kept += [held.visit.kit, *held.visit.vectors.values(), *held.memory.values()]
            kept += held.answer.vectors.values() if held.answer else ()
        for memory in self.memory.values():
            kept += memory.vectors.values()
        return {ref.digest for ref in kept}


def key_of(visit: VisitId) -> Key:
    """The visit without its attempt."""
    return f"{visit.job}/{visit.round}/{visit.tour}/{visit.hop}"


def supersedes(new: VisitId, old: VisitId) -> bool:
    """Whether the job has moved on from the old visit: to a later round, or within the tour to a later attempt."""
    same_tour = (new.job, new.round, new.tour) == (old.job, old.round, old.tour)
    return (new.job == old.job and new.round > old.round) or (same_tour and new.attempt > old.attempt)


def work_key(visit: VisitId) -> str:
    """The visit with its attempt, as its training is called."""
    return f"{visit.job}/{visit.round}/{visit.tour}/{visit.hop}/{visit.attempt[0]}.{visit.attempt[1]}"
