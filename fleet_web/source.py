"""What the pages ask, whoever answers: a coordinator that runs, or a folder of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from sojourn.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coordinator.console.following import JobProgress
    from sojourn.protocol.audit import AuditEntry
    from sojourn.protocol.fleet_messages import FleetChange, FleetDevice, VisitNote
    from sojourn.protocol.release import Card, LineView, Parcel
    from sojourn.protocol.wire import JobView

Topic = Literal["fleet", "jobs", "releases", "audit"]
TOPICS: tuple[Topic, ...] = ("fleet", "jobs", "releases", "audit")
LIVE = "live"
"""The name of the source that is a coordinator."""


class Reach(NamedTuple):
    """Whether whoever answers is there; if not, why not, and since when (seconds since 1970)."""

    here: bool
    why: str = ""
    since: float | None = None
    slow: str = ""
    """Why news come late, where they do."""


class Source(Protocol):
    """Answers what the pages show. What cannot be answered is a `SojournError` with what to do.

    Every text of a peer in an answer is cleaned already (`sojourn.text.cleaned`), and still only text: never HTML.
    """

    @property
    def name(self) -> str:
        """What it is called in addresses and on pages: `live`, or a folder's name."""

    def reach(self) -> Reach:
        """Whether it can be asked just now; asks nothing."""

    def mark(self, topic: Topic) -> int:
        """A number that rises with each change of what is told about a topic; asks nothing, and may be looked at often.

        It changes as well when whoever answers is gone or back.
        """

    def now(self) -> float:
        """What the clock says by which its times are told, in seconds since 1970."""

    async def devices(self) -> Sequence[FleetDevice]:
        """Every device that was ever seen, by name."""

    async def device(self, name: str) -> FleetDevice:
        """One device with all that it offers."""

    async def visits(self, device: str | None = None, job: str | None = None, last: int = 200) -> Sequence[VisitNote]:
        """The last visits, the newest first."""

    async def changes(self, device: str | None = None, last: int = 200) -> Sequence[FleetChange]:
        """The last comings and goings, the newest first."""

    async def jobs(self) -> Sequence[JobView]:
        """All jobs, without their history; the newest first."""

    async def job(self, name: str) -> JobProgress:
        """One job with its whole history, and its tours as they are now."""

    async def lines(self) -> Sequence[LineView]:
        """All model lines, without their devices."""

    async def line(self, name: str) -> LineView:
        """One model line with its devices."""

    async def card(self, line: str, version: int) -> tuple[Card, Parcel]:
        """The card of a release, and which graph it is about."""

    async def acts(self, last: int = 200) -> Sequence[AuditEntry]:
        """The last acts of operators, the newest first."""


def in_address(source: Source) -> dict[str, str]:
    """What an address says of the source that it is about: nothing, where that is the coordinator."""
    return {} if source.name == LIVE else {"of": source.name}


class Sources:
    """All that this process can show, by name: at most one coordinator, and any number of folders."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._by_name = {each.name: each for each in sources}

    def __iter__(self) -> Iterator[Source]:
        return iter(self._by_name.values())

    @property
    def first(self) -> Source:
        """The coordinator, or else the first folder."""
        return next(iter(self._by_name.values()))

    def named(self, name: str | None) -> Source:
        """The source of that name; without a name the first."""
        if name is None:
            return self.first
        if name not in self._by_name:
            raise UserError(f"there is nothing called {name!r} here: {', '.join(self._by_name)}")
        return self._by_name[name]
