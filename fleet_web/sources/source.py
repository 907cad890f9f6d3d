"""The interface of the pages' data sources: a running coordinator, or a folder of results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from sojourn.errors import UserError
from sojourn.protocol.operator_messages import FleetChange, FleetDevice, VisitNote
from sojourn.protocol.operators import AuditEntry
from sojourn.protocol.release import BlobRef, Card, LineView
from sojourn.protocol.wire import JobView

if TYPE_CHECKING:
    from coordinator.console.job_progress import JobProgress

Topic = Literal["fleet", "jobs", "releases", "audit"]
TOPICS: tuple[Topic, ...] = ("fleet", "jobs", "releases", "audit")
LIVE = "live"
"""The name of the coordinator as a source."""


class Reach(NamedTuple):
    """Whether a source is reachable; if not, why not and since when (seconds since 1970)."""

    reachable: bool
    why: str = ""
    since: float | None = None


class Source(Protocol):
    """Returns the data that the pages show. Data that is unavailable raises a `SojournError` with a remedy.

    Every text of a peer is already cleaned (`sojourn.text.cleaned`) and is plain text, never HTML.
    """

    @property
    def name(self) -> str:
        """The name in addresses and on pages: `live`, or the folder's name."""

    def reach(self) -> Reach:
        """Return whether the source is currently reachable, without a request."""

    def mark(self, topic: Topic) -> int:
        """Return a number that increases when data of a topic changes, without a request; it may be called often.

        It also changes when the source becomes unreachable or reachable.
        """

    def now(self) -> float:
        """Return the current time of the clock that the source's timestamps use, in seconds since 1970."""

    async def devices(self) -> Sequence[FleetDevice]:
        """Return every known device by name."""

    async def device(self, name: str) -> FleetDevice:
        """Return one device with its full offer."""

    async def visits(self, device: str | None = None, job: str | None = None, last: int = 200) -> Sequence[VisitNote]:
        """Return the last visits, newest first."""

    async def changes(self, device: str | None = None, last: int = 200) -> Sequence[FleetChange]:
        """Return the last connection events, newest first."""

    async def jobs(self) -> Sequence[JobView]:
        """Return all jobs without their history, newest first."""

    async def job(self, name: str) -> JobProgress:
        """Return one job with its whole history and its current tours."""

    async def lines(self) -> Sequence[LineView]:
        """Return all model lines without their devices."""

    async def line(self, name: str) -> LineView:
        """Return one model line with its devices."""

    async def card(self, line: str, version: int) -> tuple[Card, BlobRef]:
        """Return the card of a release, and the graph it describes."""

    async def acts(self, last: int = 200) -> Sequence[AuditEntry]:
        """Return the last operator actions, newest first."""


def in_address(source: Source) -> dict[str, str]:
    """Return the query parameters that name a source; none for the coordinator."""
    return {} if source.name == LIVE else {"of": source.name}


class Sources:
    """All sources of this process by name: at most one coordinator, and any number of folders."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._by_name = {each.name: each for each in sources}

    def __iter__(self) -> Iterator[Source]:
        return iter(self._by_name.values())

    @property
    def first(self) -> Source:
        """The coordinator, or the first folder if there is none."""
        return next(iter(self._by_name.values()))

    def named(self, name: str | None) -> Source:
        """Return the source with that name; the first one if no name is given."""
        if name is None:
            return self.first
        if name not in self._by_name:
            raise UserError(f"there is no source {name!r}: {', '.join(self._by_name)}")
        return self._by_name[name]
