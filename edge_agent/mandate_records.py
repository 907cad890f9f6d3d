"""What an agent must not forget of mandates: the records, and the book that they make."""

from __future__ import annotations

import msgspec

from sojourn.protocol.limits import Moment
from sojourn.protocol.mandate import SignedMandate

MANDATES_KEPT = 64
"""Of at most so many jobs mandates are kept; those whose time is over go first, and while there is none, no more are
taken."""


class MandateTaken(msgspec.Struct, frozen=True, tag="mandate-taken/1"):
    """A mandate was checked and holds from now on, instead of the job's earlier ones. `by`: whose key signed it."""

    job: str
    serial: int
    by: str
    mandate: SignedMandate
    until: Moment
    at: Moment


class MandateEnded(msgspec.Struct, frozen=True, tag="mandate-ended/1"):
    """The mandates of a job up to this number hold no longer; with `forget`, nothing is kept for the job either."""

    job: str
    serial: int
    why: str
    until: Moment
    """When it would have ended in any case."""
    at: Moment
    forget: bool = False


class ClockSeen(msgspec.Struct, frozen=True, tag="clock-seen/1"):
    """The clock on the wall has shown this; with `corrected` the owner says that later times were wrong."""

    at: Moment
    corrected: bool = False


MandateRecord = MandateTaken | MandateEnded | ClockSeen


class HeldMandate(msgspec.Struct):
    """The newest mandate of a job: in force while `ended` is empty.

    signed: None where only its end was heard of. until: its own end. visits: how many results were given under it.
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
    """What a device knows of mandates, by job, and the latest time that its clock has shown."""

    held: dict[str, HeldMandate] = {}
    seen: Moment = 0.0

    def apply(self, record: MandateRecord) -> None:
        """Change by one record."""
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
        """Whether no mandate of another job can be kept."""
        return len(self.held) >= MANDATES_KEPT and not self._past(now)

    def _past(self, now: float) -> list[str]:
        """The jobs whose mandates would have ended by now in any case: forgotten, they are refused all the same."""
        return [job for job, it in self.held.items() if it.ended and it.until <= now]

    def _make_room(self) -> None:
        for job in self._past(self.seen)[: max(0, len(self.held) - MANDATES_KEPT)]:
            del self.held[job]
