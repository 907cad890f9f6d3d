"""*Job*: tours, curves, devices and rounds of a running or finished job."""

from __future__ import annotations

import time
from dataclasses import dataclass

from nicegui import ui

from coordinator.console.job_progress import TimeLeft
from fleet_web.drawing import job_sections, tours
from fleet_web.drawing.job_list import job_rows
from fleet_web.drawing.markup import name_of
from fleet_web.elements import Words, address
from fleet_web.page_updates import Patched, PatchedGrid, add_style, follow
from fleet_web.sources.folder_source import FolderSource
from fleet_web.sources.source import LIVE, Source, Sources, in_address
from fleet_web.story.job_story import ACROSS, Across, JobStory, VisitBook
from fleet_web.story.tour_history import RoundTravel, length, replayed
from sojourn.markup import Markup, joined, tag


@dataclass(frozen=True)
class DeviceLink:
    """Creates links to the devices of a source; `of` is its name in addresses, empty for the coordinator."""

    of: str

    def __call__(self, device: str) -> Markup:
        """Return the name as a link."""
        return tag("a", name_of(device), href=address("device", device, **({"of": self.of} if self.of else {})))


FIRST_VISITS, FOLDER_VISITS = 3000, 100_000
"""Number of visits loaded when a page opens: from a coordinator, and from a folder."""
NEW_VISITS = 20_000
"""Maximum number of visits of new rounds loaded at once."""
MORE = 20
"""Visits loaded in addition to the rounds' counts, because some planned visits never took place."""
TRIES = 5
"""Number of attempts to load the visits of a round."""
REPLAY, FRAME = 12.0, 0.1
"""Duration of a round's replay, and the time between two of its frames, in seconds."""
NOW = "now"


async def jobs_page(sources: Sources) -> None:
    """Show all jobs of all sources: running, waiting and finished."""
    add_style()
    for source in sources:
        if source.name != LIVE:
            Words("h2", source.name)
        _job_list(source)


def _job_list(source: Source) -> None:
    shown = Patched()

    async def refresh() -> None:
        shown.markup = job_rows(await source.jobs(), lambda job: address("job", job, **in_address(source)))

    follow(source, ("jobs",), refresh)


async def job_page(source: Source, name: str) -> None:
    """Show one job of a source."""
    add_style()
    JobPage(source, name)


class JobPage:
    """The state of one open page of a job: the loaded data and the user's choices."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name
        self._link = DeviceLink(in_address(source).get("of", ""))
        self._time_left = TimeLeft()
        self._book = VisitBook()
        self._asked = -1
        """The newest round whose visits were loaded or could not be loaded; initially -1."""
        self._tries = 0
        self._sites: dict[str, str] = {}
        self._story: JobStory | None = None
        self._shown: tuple[object, ...] | None = None
        """The number of finished rounds and of known events at the last update."""
        self._round: int | None = None
        """The chosen round; None selects the current round, or the newest if none is running."""
        self._by: Across = "round"
        self._page = 0
        self._played: float | None = None
        """The replay position in seconds; None if no replay is running."""
        self._tiles = Patched()
        self._gaps = Patched()
        self._controls, self._words, self._tours = (
            self._section("Tours"),
            Patched(),
            PatchedGrid("tours"),
        )
        self._course_controls, self._course = self._section("Metrics"), Patched()
        self._arranged = Patched()
        self._devices = self._section("Participation")
        self._failures = self._section("Failures")
        self._rounds = self._section("Rounds")
        self._player = ui.timer(FRAME, self._frame, active=False)
        follow(source, ("jobs", "fleet"), self.refresh)

    def _section(self, heading: str) -> Patched:
        Words("h2", heading)
        return Patched(self._act)

    async def refresh(self) -> None:
        """Load new data and update the page."""
        progress = await self._source.job(self._name)
        self._story = JobStory(progress, self._time_left.seconds(progress, time.monotonic()))
        news = await self._read_visits(self._story)
        self._show_now(self._story)
        state = len(progress.history), progress.view.notes
        if news or state != self._shown:
            self._shown = state
            self._show_rounds(self._story)

    async def _read_visits(self, story: JobStory) -> bool:
        """Load the visits of new rounds; return whether there were any, or whether this is the first call."""
        newest = story.history[-1].round if story.history else 0
        if newest == self._asked:
            return False
        if self._asked < 0:
            limit = FOLDER_VISITS if isinstance(self._source, FolderSource) else FIRST_VISITS
            found = await self._source.visits(job=self._name, last=limit)
            self._book = VisitBook(found, complete=len(found) < limit)
            self._sites = {it.device: it.site for it in await self._source.devices()}
        else:
            wanted = MORE + sum(it.visits + it.lost for it in story.history if it.round > self._asked)
            self._book.extend(await self._source.visits(job=self._name, last=min(wanted, NEW_VISITS)))
        # The visits may lag behind the round; in that case, load them again.
        self._tries = 0 if self._book.newest >= newest else self._tries + 1
        self._asked = newest if self._tries in {0, TRIES} else self._book.newest
        return True

    # --- display

    def _show_now(self, story: JobStory) -> None:
        """Update the parts that change during a round; called often."""
        self._tiles.markup = job_sections.tiles(story)
        self._show_tours(story)

    def _show_rounds(self, story: JobStory) -> None:
        """Update the parts that change when a round finishes."""
        gaps = self._source.gaps() if isinstance(self._source, FolderSource) else []
        self._gaps.markup = joined(tag("p", gap, class_="gap") for gap in gaps)
        self._show_course(story)
        self._rounds.markup = job_sections.rounds(story)
        self._failures.markup = job_sections.failures(story, self._book.losses(), self._book.flagged())
        shares = self._book.shares(self._sites)
        self._devices.markup = job_sections.participation(shares, self._link, partly=not self._book.complete)

    def _show_course(self, story: JobStory) -> None:
        self._course_controls.markup = by_controls(self._by)
        self._course.markup = job_sections.course(story, self._by)
        arranged = job_sections.arrangement(story)
        heading = tag("h2", "Arrangement of the devices")
        self._arranged.markup = joined([heading, arranged]) if arranged else Markup()

    def _travel(self, story: JobStory) -> RoundTravel | None:
        """Return the tours to show: of the chosen round, the current round, or the newest round."""
        if self._round is None and story.under_way:
            return story.under_way
        number = self._round if self._round is not None else self._book.newest
        return self._book.travel(number) if number else None

    def _show_tours(self, story: JobStory) -> None:
        travel = self._travel(story)
        self._controls.markup = self._tour_controls(story, travel)
        if travel is None:
            words = "The coordinator is compiling the model." if not story.over else "No visits are known."
            self._words.markup = tag("p", words, class_="dim")
            self._tours.show([])
            return
        if self._played is not None:
            travel = replayed(travel, self._played)
        parts = [tag("p", travel.gap, class_="gap")] if travel.gap else []
        if travel.under_way and self._played is None and story.view.phase == "estimate":
            parts.append(tag("p", "Estimation: each device briefly trains a copy of the model.", class_="dim"))
        self._words.markup = joined([*parts, tours.legend()] if travel.tours else parts)
        self._tours.show(tours.cards(travel, self._link, self._page))

    def _tour_controls(self, story: JobStory, travel: RoundTravel | None) -> Markup:
        numbers, shown, latest = self._book.rounds, travel.round if travel else 0, self._round is None
        now = [tag("option", "in progress", value=NOW, selected=latest)] if story.under_way else []
        past = None if now and latest else shown
        options = [tag("option", str(it), value=str(it), selected=it == past) for it in reversed(numbers)]
        if not now and not options:
            return Markup()
        pages = tours.pages(travel) if travel else 1
        older, newer = _neighbours(numbers, shown)
        parts = [
            tag("label", "Round ", tag("select", *now, *options, data_act="round")),
            _button("Older", f"round:{older}", off=older is None),
            _button("Newer", f"round:{NOW if newer is None else newer}", off=newer is None and (latest or not now)),
        ]
        if travel and not travel.under_way and travel.tours:
            label = "Stop" if self._played is not None else "Replay this round"
            parts.append(_button(label, "replay:"))
        if pages > 1:
            parts += [
                _button("Previous tours", f"page:{self._page - 1}", off=self._page <= 0),
                tag("span", f"{self._page + 1} of {pages}"),
                _button("Next tours", f"page:{self._page + 1}", off=self._page >= pages - 1),
            ]
        return tag("div", *parts, class_="controls", role="group", aria_label="Page of tours")

    # --- user actions

    def _act(self, name: str, value: str) -> None:
        story = self._story
        if story is None:
            return
        match name:
            case "round":
                self._stop()
                self._round = int(value) if value.isascii() and value.isdigit() and len(value) < 16 else None
                self._page = 0
                self._show_tours(story)
            case "page":
                self._page = min(max(0, int(value)), 10_000) if value.isascii() and value.isdigit() else 0
                self._show_tours(story)
            case "by":
                self._by = next((each for each in ACROSS if each == value), "round")
                self._show_course(story)
            case "replay":
                self._replay(story)

    def _replay(self, story: JobStory) -> None:
        if self._played is not None:
            self._stop()
        else:
            self._played = 0.0
            self._player.activate()
        self._show_tours(story)

    def _stop(self) -> None:
        self._played = None
        self._player.deactivate()

    def _frame(self) -> None:
        story = self._story
        travel = self._travel(story) if story else None
        if story is None or travel is None or self._played is None:
            self._stop()
            return
        whole = length(travel)
        self._played += whole * FRAME / REPLAY
        if self._played >= whole:
            self._stop()
        self._show_tours(story)


def by_controls(by: Across) -> Markup:
    """Return the controls that select the x axis."""
    words = {"round": "by round", "time": "by time", "bytes": "by bytes"}
    buttons = [
        tag("button", words[each], type="button", aria_pressed="true" if each == by else "false", data_act=f"by:{each}")
        for each in ACROSS
    ]
    return tag("div", *buttons, class_="controls", role="group", aria_label="X axis of the curves")


def _button(label: str, act: str, *, off: bool = False) -> Markup:
    return tag("button", label, type="button", data_act=act, disabled=off)


def _neighbours(numbers: list[int], shown: int) -> tuple[int | None, int | None]:
    """Return the rounds before and after the shown one, among the known rounds."""
    before = [number for number in numbers if number < shown]
    after = [number for number in numbers if number > shown]
    return (before[-1] if before else None), (after[0] if after else None)
