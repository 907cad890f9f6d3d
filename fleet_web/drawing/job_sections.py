"""The parts of a job's page, each from the job's story to markup."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coordinator.console.job_tables import times_line
from coordinator.console.time_left import describe_time_left, rounds_done
from coordinator.results.measures import MEANING, MEASURES
from coordinator.results.tallies import names
from coordinator.results.task_figures import figure_in, figure_shown
from coordinator.results.what_was_run import capital
from fleet_web.drawing.curves import Curve, chart, key
from fleet_web.drawing.job_list import failed as failed_job
from fleet_web.drawing.job_list import tone
from fleet_web.drawing.markup import Markup, joined, table, tag
from fleet_web.drawing.participation import bars, participation_words
from fleet_web.drawing.scales import time_unit
from fleet_web.story.job_story import ACROSS
from fleet_web.times import RUN_CLOCK
from sojourn.figures import clock_of
from sojourn.protocol.figure_names import called
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.results.tallies import Loss
    from fleet_web.story.job_story import Across, JobStory
    from fleet_web.story.visit_book import DeviceShare

    Link = Callable[[str], Markup]

MOST_ROUNDS = 200
"""Rows of the table of rounds: the newest."""
MOST_DEVICES = 50
"""Rows of each table of devices."""
MOST_LINES = 40
REASON = 400


def tiles(story: JobStory) -> Markup:
    """How the job stands, at a glance."""
    view, history, task = story.view, story.history, story.task
    facts = {"status": view.status, "round": f"{view.round} of {view.rounds}"}
    if history:
        best = task.best(history)
        facts[f"{called(task.main)} now"] = task.text(history[-1])
        if story.figures:
            facts[f"best, round {best.round}"] = task.text(best)
        failed, done = sum(it.lost for it in history), sum(it.visits for it in history)
        facts["visits failed"] = f"{failed:,} of {failed + done:,}"
        if flags := sum(it.flagged or 0 for it in history):
            facts["visits that the gate would have refused"] = f"{flags:,} of {done:,}"
        facts["over MQTT"] = f"{story.megabytes:,.1f} MB"
        facts["time"] = clock_of(view.times.took if view.times and view.times.took else story.clocks[-1])
    if left := describe_time_left(story.left):
        facts["time left"] = left.removesuffix(" left")
    facts["devices"] = f"{view.devices:,}"
    tones = {"status": tone(view.status) if failed_job(view) else None}
    shown = [
        tag("div", tag("dt", name), tag("dd", value, class_=tones.get(name)), data_key=f"tile-{at}")
        for at, (name, value) in enumerate(facts.items())
    ]
    return joined([_lead(story), _meter(story), tag("dl", *shown, class_="tiles")])


def _lead(story: JobStory) -> Markup:
    view = story.view
    what = f"{view.strategy}, {view.model}"
    detail = clean(view.detail, 1000)
    dated = view.times and view.times.submitted is not None and view.times.submitted >= RUN_CLOCK
    parts = [detail if detail and not dated else f"{what}. {detail}".strip(), times_line(view) if dated else ""]
    words = " ".join(part for part in parts if part)
    return tag("p", words, class_="lead bad" if failed_job(view) else "lead")


def _meter(story: JobStory) -> Markup:
    """How much of the job is done."""
    view = story.view
    share = min(1.0, rounds_done(story.progress) / view.rounds) if view.rounds else 0.0
    return tag(
        "div", tag("span", style=f"width:{100 * share:.1f}%"), class_="meter failed" if failed_job(view) else "meter",
        role="progressbar",
        aria_label="Rounds done", aria_valuemin=0, aria_valuemax=100, aria_valuenow=round(100 * share),
    )  # fmt: skip


# --- courses


def course(story: JobStory, by: Across) -> Markup:
    """Every figure of the task, by rounds, time or bytes."""
    if not story.history:
        return tag("p", "No round is finished yet.", class_="dim")
    charts = [_course(story, figure, by) for figure in story.figures]
    if not charts:
        return tag("p", "How good the models are was not measured.", class_="dim")
    return tag("div", *charts, class_="charts")


def _course(story: JobStory, figure: str, by: Across) -> Markup:
    values = story.course(figure)
    across, words = placed(story, by)
    curve = Curve(called(figure), across, values)
    picture = chart([curve], figure, course_words(story, figure), words, whole=by == "round")
    return tag("figure", tag("figcaption", capital(called(figure))), picture, data_key=figure)


def placed(story: JobStory, by: Across, longest: float | None = None) -> tuple[list[float], str]:
    """Where each round stands, and what stands below the axis; times in the unit of the longest."""
    across = story.across(by)
    if by != "time":
        return across, ACROSS[by]
    per, unit = time_unit(max(across, default=0.0) if longest is None else longest)
    return [each / per for each in across], unit


def course_words(story: JobStory, figure: str) -> str:
    """What the picture of a figure shows, in a sentence."""
    known = [(it.round, value) for it, value in zip(story.history, story.course(figure), strict=True)
             if math.isfinite(value)]  # fmt: skip
    if not known:
        return f"{capital(called(figure))} was not measured."
    (first, begin), (last, end) = known[0], known[-1]
    text = f"{capital(called(figure))}: {figure_shown(figure, begin)} after round {first}"
    return f"{text}, {figure_shown(figure, end)} after round {last}." if last != first else f"{text}."


def arrangement(story: JobStory) -> Markup | None:
    """How well the devices were arranged; None where nobody measured it."""
    if not story.measures:
        return None
    shares = [name for name in story.measures if name != "covered"]
    curves = [Curve(MEASURES[name], story.across("round"), story.course(name), at) for at, name in enumerate(shares)]
    words = "; ".join(_measure_words(story, name) for name in story.measures)
    picture = chart(curves, "share", f"Measures of each round's arrangement. {words}.", "round", whole=True)
    told = [part for name in story.measures for part in (tag("dt", MEASURES[name]), tag("dd", _meaning(story, name)))]
    drawn = tag("div", tag("figure", picture, key(curves)), class_="charts")
    return tag("div", drawn, tag("dl", *told, class_="meanings"), class_="beside")


def _measure_words(story: JobStory, name: str) -> str:
    known = [value for value in story.course(name) if math.isfinite(value)]
    return f"{MEASURES[name]} {sum(known) / len(known):.3f} on average, {known[-1]:.3f} in the newest round"


def _meaning(story: JobStory, name: str) -> str:
    return f"{_measure_words(story, name).removeprefix(MEASURES[name] + ' ')}. {capital(MEANING[name])}"


# --- devices


def participation(shares: Sequence[DeviceShare], link: Link, *, partly: bool) -> Markup:
    """Who was visited how often, and who never, and why."""
    if not any(it.done or it.failed for it in shares):
        return tag("p", "No round is finished, or its visits are not known.", class_="dim")
    visited, never = [it for it in shares if it.done], [it for it in shares if not it.done]
    parts: list[Markup] = [tag("p", participation_words(shares))]
    if partly:
        parts.append(tag("p", "Only the newest visits are told; older ones are not counted here.", class_="gap"))
    tables: list[Markup] = []
    if visited:
        rest = f", the first {MOST_DEVICES} of {len(visited):,}" if len(visited) > MOST_DEVICES else ""
        rows = [(link(it.device), it.site, f"{it.done:,}", f"{it.failed:,}", clean(it.why, REASON)) for it in visited]
        columns = ("device", "site", "visits", "failed", "newest reason for a failure")
        tables.append(table(columns, rows[:MOST_DEVICES], f"Devices by visits{rest}", numbers=(2, 3)))
    if never:
        rest = f", the first {MOST_DEVICES} of {len(never):,}" if len(never) > MOST_DEVICES else ""
        others = [(link(it.device), it.site, f"{it.failed:,}", clean(it.why, REASON)) for it in never[:MOST_DEVICES]]
        tables.append(
            table(("device", "site", "failed", "why"), others, f"Never visited with success{rest}", numbers=(2,))
        )
    return joined([*parts, bars(shares), _swatches(), tag("div", *tables, class_="beside")])


def _swatches() -> Markup:
    entries = (("well", "visits that were done"), ("badly", "visits that failed, on top"))
    return tag(
        "ul", *(tag("li", tag("span", class_=f"swatch {kind}", aria_hidden="true"), words) for kind, words in entries),
        class_="key",
    )  # fmt: skip


def failures(story: JobStory, losses: Sequence[Loss], flagged: Sequence[Loss] = ()) -> Markup:
    """Why visits failed, what the gate would have refused, and what else people should know."""
    parts: list[Markup] = []
    head = ("reason", "visits", "devices")
    for found, what in ((losses, "Visits that failed"), (flagged, "Visits that the gate would have refused")):
        if found:
            rows = [(clean(it.why, REASON), f"{it.visits:,}", clean(names(list(it.devices)), REASON)) for it in found]
            parts.append(table(head, rows[:MOST_LINES], f"{what}, the most frequent reason first", numbers=(1,)))
    lines = [clean(line, REASON) for line in story.happened()]
    if lines:
        items = [tag("li", line) for line in lines[:MOST_LINES]]
        rest = [tag("li", f"and {len(lines) - MOST_LINES} more")] if len(lines) > MOST_LINES else []
        parts.append(tag("ul", *items, *rest, class_="lines"))
    if parts:
        return joined(parts)
    lost = sum(it.lost for it in story.history)
    words = f"{lost:,} failed visits, whose reasons are not known." if lost else "No visit of a finished round failed."
    return tag("p", words, class_="dim")


# --- rounds


def rounds(story: JobStory) -> Markup:
    """A row for each round, the newest first."""
    if not story.history:
        return tag("p", "No round is finished yet.", class_="dim")
    figures, measures = story.figures, story.measures
    head = [
        "round", *map(called, figures), "tours", "visits", "failed", "MB", "took", "at",
        *(MEASURES[name] for name in measures),
    ]  # fmt: skip
    lines = [
        (
            str(it.round),
            *(figure_shown(name, figure_in(it, name)) for name in figures),
            f"{it.tours:,}",
            f"{it.visits:,}",
            f"{it.lost:,}",
            f"{it.traffic / 1e6:,.2f}",
            clock_of(it.seconds),
            clock_of(clock),
            *(_measure(it.quality.get(name, math.nan)) for name in measures),
        )
        for it, clock in zip(story.history[-MOST_ROUNDS:], story.clocks[-MOST_ROUNDS:], strict=True)
    ]
    left_out = len(story.history) - len(lines)
    caption = "Rounds, the newest first" + (f"; the first {left_out:,} are left out" if left_out else "")
    return table(head, reversed(lines), caption, numbers=range(1, len(head)))


def _measure(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
