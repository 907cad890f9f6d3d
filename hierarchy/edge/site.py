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
    from hierarchy.edge.running import RunningTour, RunningVisit
    from sojourn.node.machine import Effect
    from sojourn.protocol.topics import Address

VisitKey = tuple[Key, int]
"""A visit: its tour and its hop."""
WorkOwner = tuple[Key, int | None]
"""A visit, or a tour itself."""


class Site:
    """The tours of a site, what is under way for each of them, and which device is taken by which visit."""

    def __init__(self, name: str, cloud: Address) -> None:
        self.name, self.cloud = name, cloud
        self.state = EdgeState()
        self.outbox = Outbox()
        self.running: dict[Key, RunningTour] = {}
        """The volatile side of each tour in the state."""
        self.at: dict[str, VisitKey] = {}
        """The visit that a device was asked for, or was asked for before a restart."""
        self.waiting: dict[str, dict[VisitKey, None]] = {}
        """By device, the visits that wait until it is free, in the order in which they came."""
        self.fetches: Fetches[WorkOwner] = Fetches()
        self.alarm: Alarm[WorkOwner] = Alarm()
        self._works: dict[str, WorkOwner] = {}
        """For whom each piece of work is done, by the work's key."""

    def visit(self, where: VisitKey) -> RunningVisit | None:
        """A visit whose device was asked; None before and after."""
        key, hop = where
        running = self.running.get(key)
        return running.visits.get(hop) if running else None

    def tour(self, key: Key) -> tuple[TourState, RunningTour]:
        """A tour that is here: its durable and its volatile side."""
        return self.state.tours[key], self.running[key]

    def write(self, record: Record, *, sync: bool = False, blobs: tuple[bytes, ...] = ()) -> Append:
        """Change the durable state; the record must be in the journal before anything else leaves."""
        self.state.apply(record)
        return Append(record, sync=sync, blobs=blobs)

    def do(self, who: WorkOwner, number: int, work: Any) -> list[Effect]:
        """Have work done for a visit or a tour, under a key of its own, so that what comes late is nobody's."""
        key, _ = who
        word = f"{key}/{self.state.tours[key].order.id.attempt}.{number} {type(work).__name__}"
        self._busy(who).working = word
        self._works[word] = who
        return [Do(word, work)]

    def undo(self, who: WorkOwner) -> list[Effect]:
        """The work for a visit or a tour, if there is any, is no longer wanted."""
        busy = self._busy(who)
        word, busy.working = busy.working, None
        if word is None:
            return []
        del self._works[word]
        return [Undo(word)]

    def worked(self, word: str) -> WorkOwner | None:
        """Whose work has ended; None if it is no longer wanted."""
        who = self._works.pop(word, None)
        if who is not None:
            self._busy(who).working = None
        return who

    def live(self) -> set[bytes]:
        """The blobs that a tour, or a result on its way, refers to."""
        live: set[bytes] = set()
        for tour in self.state.tours.values():
            live |= tour.live()
        for running in self.running.values():
            live |= running.live()
        return live

    def _busy(self, who: WorkOwner) -> RunningTour | RunningVisit:
        key, hop = who
        return self.running[key] if hop is None else self.running[key].visits[hop]
