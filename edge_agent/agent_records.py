"""What an agent must not forget: its durable state, and the records that change it."""

from __future__ import annotations

import msgspec

from sojourn.messages import Visit, Visited
from sojourn.wire import Ref, VisitId

Key = str
"""A visit without its attempt: job, round, tour, hop."""
KEPT = 32
"""Results that nobody fetches, and fences of rounds gone by, are kept up to this number."""


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


class AgentState(msgspec.Struct):
    """The durable state of an agent."""

    held: dict[Key, Held] = {}
    fences: dict[Key, tuple[int, int]] = {}
    memory: dict[str, dict[str, Ref]] = {}
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
                    self.memory[held.visit.visit.job] = held.memory

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
            kept += memory.values()
        return {ref.digest for ref in kept}


def key_of(visit: VisitId) -> Key:
    """The visit without its attempt."""
    return f"{visit.job}/{visit.round}/{visit.tour}/{visit.hop}"
