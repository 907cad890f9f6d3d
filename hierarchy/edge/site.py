"""What the parts of an edge server share: its durable state, and where everything is just now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hierarchy.edge.records import EdgeState, Key
from sojourn.node.alarm import Alarm
from sojourn.node.fetches import Fetches
from sojourn.node.machine import Append, Do, Undo
from sojourn.node.outbox import Outbox

if TYPE_CHECKING:
    from hierarchy.edge.records import Record, TourState
    from hierarchy.edge.running import Leg, Stay
    from sojourn.node.machine import Effect
    from sojourn.protocol.topics import Address

Where = tuple[Key, int]
"""A visit: its tour and its hop."""
Who = tuple[Key, int | None]
"""A visit, or a tour itself."""


class Site:
    """Tours, their legs, and who is at which device."""

    def __init__(self, cloud: Address) -> None:
        self.cloud = cloud
        self.state = EdgeState()
        self.outbox = Outbox()
        self.legs: dict[Key, Leg] = {}
        self.at: dict[str, Where] = {}
        """Which visit is at which device."""
        self.waiting: dict[str, dict[Where, None]] = {}
        """The visits that are due at a device which another one is at."""
        self.fetches: Fetches[Who] = Fetches()
        self.alarm: Alarm[Who] = Alarm()
        self._works: dict[str, Who] = {}

    def tour(self, key: Key) -> tuple[TourState, Leg]:
        """Both sides of a tour."""
        return self.state.tours[key], self.legs[key]

    def write(self, record: Record, *, sync: bool = False, blobs: tuple[bytes, ...] = ()) -> Append:
        """Change the durable state; the record must be in the journal before anything else leaves."""
        self.state.apply(record)
        return Append(record, sync=sync, blobs=blobs)

    def do(self, who: Who, number: int, work: Any) -> list[Effect]:
        """Have work done, under a key of its own: what comes of it after it was undone is nobody's."""
        key, _ = who
        word = f"{key}/{self.state.tours[key].order.id.attempt}.{number} {type(work).__name__}"
        self._busy(who).working = word
        self._works[word] = who
        return [Do(word, work)]

    def undo(self, who: Who) -> list[Effect]:
        """Work is no longer wanted."""
        busy = self._busy(who)
        word, busy.working = busy.working, None
        if word is None:
            return []
        del self._works[word]
        return [Undo(word)]

    def worked(self, word: str) -> Who | None:
        """Whose work has ended."""
        who = self._works.pop(word, None)
        if who is not None:
            self._busy(who).working = None
        return who

    def live(self) -> set[bytes]:
        """All that a tour or a result on its way refers to."""
        live: set[bytes] = set()
        for tour in self.state.tours.values():
            live |= tour.live()
        for leg in self.legs.values():
            live |= leg.live()
        return live

    def _busy(self, who: Who) -> Leg | Stay:
        key, hop = who
        return self.legs[key] if hop is None else self.legs[key].stays[hop]
