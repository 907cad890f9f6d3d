"""*Device*: its state, history and visits."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from coordinator.console.fleet_tables import device_lines
from fleet_web.drawing.markup import RUN_CLOCK, moment
from fleet_web.elements import Cell, Column, Dropdown, Pager, Pairs, Row, TextTable, Words, address, link
from fleet_web.page_updates import follow
from fleet_web.pages.fleet import state_text
from fleet_web.pages.releases import tone
from fleet_web.sources.source import Source, in_address
from sojourn.errors import JobError, SojournError
from sojourn.logs import ordinal
from sojourn.protocol.operator_messages import FleetChange, FleetDevice, VisitNote
from sojourn.protocol.release import LineView
from sojourn.text import clock_of, number

VISIT_COLUMNS = (
    Column("at", "Round finished"),
    Column("job", "Job"),
    Column("status", "Result"),
    Column("samples", "Samples", number=True),
    Column("loss", "Loss", number=True),
    Column("seconds", "Took", number=True),
    Column("bytes", "Bytes (round average)", number=True),
    Column("site", "Site"),
    Column("reason", "Reason"),
)
TONES = {"done": "good", "declined": "warn", "lost": "warn", "refused": "bad"}


def visit_row(it: VisitNote, size: float | None, of: dict[str, str]) -> Row:
    """Return a visit as a row; `of` is the source's name in addresses."""
    what = f"round {it.round}" if it.phase == "train" else "estimation"
    return Row(
        f"{it.job} {it.round} {it.phase} {it.tour} {it.hop} {it.device} {it.at}",
        (
            Cell(moment(it.at)),
            Cell(f"{it.job} {what}, tour {ordinal(it.tour)} hop {ordinal(it.hop)}", address("job", it.job, **of)),
            Cell(it.status, tone=TONES[it.status]),
            Cell(f"{it.samples:,}" if it.samples else "-"),
            Cell(number(it.loss) if it.loss is not None else "-"),
            Cell(clock_of(it.seconds) if it.seconds else "-"),
            Cell(f"{size / 1000:,.1f} kB" if size is not None and it.status == "done" else "-"),
            Cell(it.site),
            Cell(it.reason or "-"),
        ),
    )


def change_row(key: str, it: FleetChange) -> Row:
    """Return a connection event as a row."""
    event = Cell(it.event, tone="good" if it.event == "online" else "warn")
    return Row(key, (Cell(moment(it.at)), event, Cell(it.site)))


async def mean_bytes(source: Source, visits: Sequence[VisitNote], most: int) -> dict[tuple[str, int], float]:
    """Return the mean number of bytes per visit, by job and round; bytes are not counted per visit."""
    found: dict[tuple[str, int], float] = {}
    for job in list(dict.fromkeys(it.job for it in visits if it.phase == "train"))[:most]:
        try:
            history = (await source.job(job)).history
        except SojournError:  # the job was removed, but its visits are still known
            continue
        found |= {(job, it.round): it.traffic / it.visits for it in history if it.visits}
    return found


VISITS = 1000
"""Maximum number of visits in the list."""
CHANGES = 200
MEANS = 5
"""Maximum number of jobs to load for the mean bytes of their rounds."""
_RELEASE_COLUMNS = (
    Column("line", "Model line"),
    Column("serves", "Serves"),
    Column("state", "State"),
    Column("detail", "Detail"),
)
_CHANGE_COLUMNS = (Column("at", "Time"), Column("event", "What"), Column("site", "Site"))
_STATUSES = (("", "all"), ("done", "done"), ("declined", "declined"), ("lost", "lost"), ("refused", "refused"))


class DeviceHistoryView:
    """The state of one open page of a device."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name
        self._status = ""
        self._visits: Sequence[VisitNote] = ()
        self._bytes: dict[tuple[str, int], float] = {}
        self._state = Words("p", "", role="status").classes("lead")
        self._pairs = Pairs()
        Words("h2", "Releases")
        self._releases = TextTable(
            "Releases sent to this device", _RELEASE_COLUMNS, empty="No releases were sent to this device."
        )
        Words("h2", "Visits")
        with ui.element("div").classes("controls"):
            Dropdown("Shown", _STATUSES, self._choose)
        self._table = TextTable("Visits, newest first", VISIT_COLUMNS, empty="No visits are known.")
        self._pager = Pager(self._show_visits)
        Words("h2", "Connections")
        self._changes = TextTable("Connections, newest first", _CHANGE_COLUMNS, empty="No connections are known.")
        follow(source, ("fleet", "releases"), self.refresh)

    async def refresh(self) -> None:
        """Update the page."""
        device = await self._source.device(self._name)
        self._show_device(device)
        await self._show_releases(device)
        self._visits = await self._source.visits(self._name, last=VISITS)
        self._bytes = await mean_bytes(self._source, self._visits, MEANS)
        self._show_visits()
        changes = await self._source.changes(self._name, CHANGES)
        self._changes.show([change_row(str(at), it) for at, it in enumerate(changes)])

    def _show_device(self, device: FleetDevice) -> None:
        now = self._source.now()
        self._state.text = state_text(device, now)
        pairs = [(word or "data", text) for word, text in device_lines(device, now)]
        dated = device.first >= RUN_CLOCK  # a run in a folder has no dates
        self._pairs.show([(word, text) for word, text in pairs if dated or word not in {"state", "first seen"}])

    async def _show_releases(self, device: FleetDevice) -> None:
        """Show the releases that the device serves, and the state of their rollouts."""
        of, given = in_address(self._source), device.doing.releases if device.doing else ()
        rows = [
            Row(
                it.line,
                (
                    Cell(it.line, address("release", it.line, **of)),
                    Cell(f"{it.line} {it.version}" if it.version else "nothing"),
                    Cell(it.state, tone=tone(it.state)),
                    Cell(it.detail),
                ),
            )
            for it in given
        ]
        lines = {it.line for it in given}
        for view in await self._source.lines() if lines else ():
            rows += _turns(view, of) if view.line in lines else []
        self._releases.show(rows)

    def _choose(self, status: str) -> None:
        self._status, self._pager.page = status, 0
        self._show_visits()

    def _show_visits(self) -> None:
        found = [it for it in self._visits if not self._status or it.status == self._status]
        of = in_address(self._source)
        rows = [visit_row(it, self._bytes.get((it.job, it.round)), of) for it in self._pager.cut(found)]
        self._table.show(rows)


def _turns(view: LineView, of: dict[str, str]) -> list[Row]:
    """Return the rollouts of a model line, newest first."""
    turns = view.plan.turns if view.plan else ()
    return [
        Row(
            f"{view.line} {it.at} {it.status}",
            (
                Cell(view.line, address("release", view.line, **of)),
                Cell(f"rollout of {view.line} {it.version}"),
                Cell(f"{it.status}, {moment(it.at)}", tone=tone(it.status)),
                Cell(it.detail),
            ),
        )
        for it in reversed(turns)
    ]


async def device_page(source: Source, name: str) -> None:
    """Show one device of a source."""
    link("All devices", "fleet", **in_address(source))
    try:
        await source.device(name)
    except JobError as error:
        Words("p", str(error), role="alert").classes("bad")
        return
    DeviceHistoryView(source, name)
