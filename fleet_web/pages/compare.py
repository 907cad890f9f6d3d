"""*Compare*: several jobs or simulations in one chart."""

from __future__ import annotations

from coordinator.results.run_description import capital
from fleet_web.drawing.curves import Curve, chart, key
from fleet_web.drawing.job_sections import course_words, placed
from fleet_web.drawing.markup import name_of, table
from fleet_web.elements import Words
from fleet_web.page_updates import Patched, add_style, follow
from fleet_web.pages.job import by_controls
from fleet_web.sources.source import LIVE, Source, Sources
from fleet_web.story.comparison import MAX_RUNS, RunComparison, compared
from fleet_web.story.job_story import ACROSS, Across, JobStory
from sojourn.errors import SojournError
from sojourn.markup import Markup, joined, tag
from sojourn.protocol.metric_names import called
from sojourn.text import clean

MAX_CHOICES = 300
LONGEST_TARGET = 60


async def compare_page(sources: Sources) -> None:
    """Show a comparison of the chosen runs."""
    add_style()
    ComparePage(sources)


class ComparePage:
    """The state of one open page: the compared runs, the x axis and the hidden curves."""

    def __init__(self, sources: Sources) -> None:
        self._sources = list(sources)
        self._choices: dict[str, tuple[Source, str]] = {}
        """The available runs, by displayed name."""
        self._chosen: list[str] | None = None
        self._stories: dict[str, JobStory] = {}
        self._hidden: set[str] = set()
        self._by: Across = "round"
        self._target = ""
        Words("h2", "Runs to compare")
        self._choose = Patched(self._act)
        Words("h2", "Curves")
        self._controls, self._curves = Patched(self._act), Patched(self._act)
        Words("h2", "Results")
        self._target_field, self._table = Patched(self._act), Patched()
        for source in self._sources:
            follow(source, ("jobs",), self.refresh)

    async def refresh(self) -> None:
        """Load the list of runs, and what is new in the chosen ones."""
        found: dict[str, tuple[Source, str]] = {}
        for source in self._sources:
            for view in (await source.jobs())[:MAX_CHOICES]:
                found[view.job if source.name == LIVE else source.name] = source, view.job
        self._choices = found
        if self._chosen is None:
            self._chosen = list(found)[: min(MAX_RUNS, 4)]
        self._chosen = [name for name in self._chosen if name in found]
        for name in self._chosen:
            source, job = found[name]
            self._stories[name] = JobStory(await source.job(job))
        self._show()

    def _show(self) -> None:
        chosen = self._chosen or []
        self._choose.markup = self._boxes(chosen)
        self._controls.markup = by_controls(self._by)
        self._target_field.markup = self._target_markup()
        try:
            comparison = compared({name: self._stories[name] for name in chosen if name in self._stories})
        except SojournError as error:
            self._curves.markup = tag("p", capital(clean(str(error), 1000)), class_="gap", role="alert")
            self._table.markup = Markup()
            return
        self._curves.markup = self._drawn(comparison)
        self._table.markup = self._compared_table(comparison)

    def _boxes(self, chosen: list[str]) -> Markup:
        boxes = [
            tag("li", tag(
                "label", tag("input", type="checkbox", data_act=f"choose:{at}", checked=name in chosen), name_of(name)
            ), data_key=f"choice-{at}")
            for at, name in enumerate(self._choices)
        ]  # fmt: skip
        if not boxes:
            return tag("p", "No jobs yet.", class_="dim")
        return tag("ul", *boxes, class_="choose", aria_label="Available runs")

    def _drawn(self, comparison: RunComparison) -> Markup:
        longest = max((story.clocks[-1] for story in comparison.runs.values()), default=0.0)
        charts = [self._chart(comparison, metric, longest) for metric in comparison.metrics]
        if not charts:
            return tag("p", "No metrics were measured for these models.", class_="dim")
        legend = key(self._curves_of(comparison, comparison.metrics[0], longest)[0], act="hide")
        return joined([legend, tag("div", *charts, class_="charts")])

    def _chart(self, comparison: RunComparison, metric: str, longest: float) -> Markup:
        curves, words = self._curves_of(comparison, metric, longest)
        shown = [f"{name}: {course_words(story, metric)}" for name, story in comparison.runs.items()]
        picture = chart(curves, metric, " ".join(shown), words, whole=self._by == "round")
        return tag("figure", tag("figcaption", capital(called(metric))), picture, data_key=metric)

    def _curves_of(self, comparison: RunComparison, metric: str, longest: float) -> tuple[list[Curve], str]:
        curves, below = [], ACROSS[self._by]
        for look, (name, story) in enumerate(comparison.runs.items()):
            across, below = placed(story, self._by, longest)
            curves.append(Curve(name, across, story.course(metric), look, name in self._hidden))
        return curves, below

    def _target_markup(self) -> Markup:
        field = tag("input", type="text", data_act="target", value=self._target, placeholder="90 %", size=14)
        return tag("div", tag("label", "Target ", field), class_="controls")

    def _compared_table(self, comparison: RunComparison) -> Markup:
        try:
            goal, why = comparison.goal(self._target), ""
        except SojournError as error:
            goal, why = None, str(error)
        rows = comparison.rows(goal)
        shown = [(name_of(row["run"]), *list(row.values())[1:]) for row in rows]
        caption = "Results per run" + (f", and the cost to reach {goal}" if goal else "")
        parts = [tag("p", clean(why, 500), class_="gap", role="alert")] if why else []
        return joined([*parts, table(list(rows[0]), shown, caption, numbers=range(2, len(rows[0])))])

    async def _act(self, name: str, value: str) -> None:
        match name:
            case "choose":
                await self._choose_run(value)
            case "hide":
                shown = self._chosen or []
                if value.isdigit() and int(value) < len(shown):
                    self._hidden ^= {shown[int(value)]}
            case "by":
                self._by = next((each for each in ACROSS if each == value), "round")
            case "target":
                self._target = clean(value, LONGEST_TARGET)
        self._show()

    async def _choose_run(self, value: str) -> None:
        number, _, on = value.partition(":")
        names = list(self._choices)
        if not number.isdigit() or int(number) >= len(names):
            return
        name = names[int(number)]
        others = [each for each in self._chosen or [] if each != name]
        self._chosen = [*others, name] if on == "true" else others
        if on == "true":
            source, job = self._choices[name]
            self._stories[name] = JobStory(await source.job(job))
