"""The sections of a job's page: metrics, curves, arrangement, participation, failures and rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from coordinator.console.job_progress import describe_time_left, rounds_done
from coordinator.console.job_status import times_line
from coordinator.results.job_metrics import MEANING, MEASURES, metric_in, metric_shown
from coordinator.results.plots import time_unit
from coordinator.results.run_description import capital
from coordinator.results.visit_totals import Loss, names
from fleet_web.drawing.curves import Curve, Scale, chart, key
from fleet_web.drawing.job_list import failed as failed_job
from fleet_web.drawing.job_list import tone
from fleet_web.drawing.markup import RUN_CLOCK, table
from fleet_web.story.job_story import ACROSS, Across, DeviceShare, JobStory
from sojourn.markup import Markup, joined, tag
from sojourn.protocol.metric_names import called
from sojourn.text import clean, clock_of

Link = Callable[[str], Markup]

WIDTH, HEIGHT = 720.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 10.0, 12.0, 40.0
MAX_BARS = 300
"""Maximum number of bars; with more devices, each bar shows the mean of several neighbours."""


def bars(shares: Sequence[DeviceShare]) -> Markup:
    """Draw a bar per device: visits done, and failed visits on top."""
    groups = _groups(shares)
    high = max((done + failed for done, failed in groups), default=1.0) or 1.0
    y = Scale(0.0, high, HEIGHT - BOTTOM, TOP)
    width = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    parts = []
    for value in y.ticks(whole=True):
        at = y.place(value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", f"{value:g}", x=LEFT - 6, y=at + 4, text_anchor="end"))
    well = [_bar(at, 0.0, done, y, width) for at, (done, _) in enumerate(groups)]
    badly = [_bar(at, done, done + failed, y, width) for at, (done, failed) in enumerate(groups) if failed]
    parts += [tag("path", d="".join(well), class_="bar well"), tag("path", d="".join(badly), class_="bar badly")]
    parts.append(
        tag("text", "devices, most visited first", x=(LEFT + WIDTH) / 2, y=HEIGHT - 8, text_anchor="middle")
    )  # fmt: skip
    words = participation_words(shares)
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=words, class_="chart wide")


def participation_words(shares: Sequence[DeviceShare]) -> str:
    """Describe the participation chart in one sentence."""
    if not shares:
        return "No devices are known."
    never = sum(not it.done for it in shares)
    done = sum(it.done for it in shares)
    failed = sum(it.failed for it in shares)
    most = shares[0]
    text = f"{len(shares):,} devices completed {done:,} visits; {failed:,} visits failed"
    text += f"; at most {most.done:,} per device" if most.done else ""
    return f"{text}; {never:,} {'device' if never == 1 else 'devices'} never completed a visit."


def _groups(shares: Sequence[DeviceShare]) -> list[tuple[float, float]]:
    """Return done and failed visits per bar: of one device, or the mean of a group of devices."""
    step = max(1, math.ceil(len(shares) / MAX_BARS))
    groups = [shares[at : at + step] for at in range(0, len(shares), step)]
    return [
        (sum(it.done for it in group) / len(group), sum(it.failed for it in group) / len(group)) for group in groups
    ]


def _bar(at: int, low: float, high: float, y: Scale, width: float) -> str:
    gap = 0.15 * width if width > 3 else 0.0
    left, wide = LEFT + at * width + gap / 2, width - gap
    bottom, top = y.place(low), y.place(high)
    return f"M{left:.1f} {bottom:g}V{top:g}h{wide:.2f}V{bottom:g}Z"


MAX_ROUNDS = 200
"""Maximum number of rows in the table of rounds; the newest are shown."""
MAX_DEVICES = 50
"""Maximum number of rows in each table of devices."""
MAX_LINES = 40
REASON = 400


def tiles(story: JobStory) -> Markup:
    """Return an overview of the job's state."""
    view, history, task = story.view, story.history, story.task
    facts = {"status": view.status, "round": f"{view.round} of {view.rounds}"}
    if history:
        best = task.best(history)
        facts[f"{called(task.main)} now"] = task.text(history[-1])
        if story.metrics:
            facts[f"best (round {best.round})"] = task.text(best)
        failed, done = sum(it.lost for it in history), sum(it.visits for it in history)
        facts["failed visits"] = f"{failed:,} of {failed + done:,}"
        if flags := sum(it.flagged for it in history):
            facts["visits the gate would have refused"] = f"{flags:,} of {done:,}"
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
    """Draw a progress bar of the job."""
    view = story.view
    share = min(1.0, rounds_done(story.progress) / view.rounds) if view.rounds else 0.0
    return tag(
        "div", tag("span", style=f"width:{100 * share:.1f}%"), class_="meter failed" if failed_job(view) else "meter",
        role="progressbar",
        aria_label="Rounds completed", aria_valuemin=0, aria_valuemax=100, aria_valuenow=round(100 * share),
    )  # fmt: skip


# --- curves


def course(story: JobStory, by: Across) -> Markup:
    """Draw a chart for every metric of the task, by rounds, time or bytes."""
    if not story.history:
        return tag("p", "No round has finished yet.", class_="dim")
    charts = [_course(story, metric, by) for metric in story.metrics]
    if not charts:
        return tag("p", "No metrics were measured.", class_="dim")
    return tag("div", *charts, class_="charts")


def _course(story: JobStory, metric: str, by: Across) -> Markup:
    values = story.course(metric)
    across, words = placed(story, by)
    curve = Curve(called(metric), across, values)
    picture = chart([curve], metric, course_words(story, metric), words, whole=by == "round")
    return tag("figure", tag("figcaption", capital(called(metric))), picture, data_key=metric)


def placed(story: JobStory, by: Across, longest: float | None = None) -> tuple[list[float], str]:
    """Return the x position of each round and the axis label; times use the unit of the longest."""
    across = story.across(by)
    if by != "time":
        return across, ACROSS[by]
    per, unit = time_unit(max(across, default=0.0) if longest is None else longest)
    return [each / per for each in across], unit


def course_words(story: JobStory, metric: str) -> str:
    """Describe the chart of a metric in one sentence."""
    known = [(it.round, value) for it, value in zip(story.history, story.course(metric), strict=True)
             if math.isfinite(value)]  # fmt: skip
    if not known:
        return f"{capital(called(metric))} was not measured."
    (first, begin), (last, end) = known[0], known[-1]
    text = f"{capital(called(metric))}: {metric_shown(metric, begin)} after round {first}"
    return f"{text}, {metric_shown(metric, end)} after round {last}." if last != first else f"{text}."


def arrangement(story: JobStory) -> Markup | None:
    """Return measures of the arrangement; None if they were not measured."""
    if not story.measures:
        return None
    shares = [name for name in story.measures if name != "covered"]
    curves = [Curve(MEASURES[name], story.across("round"), story.course(name), at) for at, name in enumerate(shares)]
    words = "; ".join(_measure_words(story, name) for name in story.measures)
    picture = chart(curves, "share", f"Arrangement measures of each round. {words}.", "round", whole=True)
    meanings = [
        part for name in story.measures for part in (tag("dt", MEASURES[name]), tag("dd", _meaning(story, name)))
    ]
    drawn = tag("div", tag("figure", picture, key(curves)), class_="charts")
    return tag("div", drawn, tag("dl", *meanings, class_="meanings"), class_="columns")


def _measure_words(story: JobStory, name: str) -> str:
    known = [value for value in story.course(name) if math.isfinite(value)]
    return f"{MEASURES[name]} {sum(known) / len(known):.3f} on average, {known[-1]:.3f} in the newest round"


def _meaning(story: JobStory, name: str) -> str:
    return f"{_measure_words(story, name).removeprefix(MEASURES[name] + ' ')}. {capital(MEANING[name])}"


# --- devices


def participation(shares: Sequence[DeviceShare], link: Link, *, partly: bool) -> Markup:
    """Return how often each device was visited, and why some devices never were."""
    if not any(it.done or it.failed for it in shares):
        return tag("p", "No round has finished, or its visits are unknown.", class_="dim")
    visited, never = [it for it in shares if it.done], [it for it in shares if not it.done]
    parts: list[Markup] = [tag("p", participation_words(shares))]
    if partly:
        parts.append(tag("p", "Only the newest visits are available; older ones are not counted here.", class_="gap"))
    tables: list[Markup] = []
    if visited:
        rest = f", the first {MAX_DEVICES} of {len(visited):,}" if len(visited) > MAX_DEVICES else ""
        rows = [(link(it.device), it.site, f"{it.done:,}", f"{it.failed:,}", clean(it.why, REASON)) for it in visited]
        columns = ("device", "site", "visits", "failed", "last failure reason")
        tables.append(table(columns, rows[:MAX_DEVICES], f"Devices by visits{rest}", numbers=(2, 3)))
    if never:
        rest = f", the first {MAX_DEVICES} of {len(never):,}" if len(never) > MAX_DEVICES else ""
        others = [(link(it.device), it.site, f"{it.failed:,}", clean(it.why, REASON)) for it in never[:MAX_DEVICES]]
        tables.append(
            table(("device", "site", "failed", "why"), others, f"Devices without a completed visit{rest}", numbers=(2,))
        )
    return joined([*parts, bars(shares), _swatches(), tag("div", *tables, class_="columns")])


def _swatches() -> Markup:
    entries = (("well", "visits completed"), ("badly", "visits failed (stacked)"))
    return tag(
        "ul", *(tag("li", tag("span", class_=f"swatch {kind}", aria_hidden="true"), words) for kind, words in entries),
        class_="key",
    )  # fmt: skip


def failures(story: JobStory, losses: Sequence[Loss], flagged: Sequence[Loss] = ()) -> Markup:
    """Return why visits failed, which visits the gate would have refused, and other notices."""
    parts: list[Markup] = []
    head = ("reason", "visits", "devices")
    for found, what in ((losses, "Failed visits"), (flagged, "Visits the gate would have refused")):
        if found:
            rows = [
                (clean(it.description, REASON), f"{it.visits:,}", clean(names(list(it.devices)), REASON))
                for it in found
            ]
            parts.append(table(head, rows[:MAX_LINES], f"{what} by reason, most frequent first", numbers=(1,)))
    lines = [clean(line, REASON) for line in story.notices()]
    if lines:
        items = [tag("li", line) for line in lines[:MAX_LINES]]
        rest = [tag("li", f"and {len(lines) - MAX_LINES} more")] if len(lines) > MAX_LINES else []
        parts.append(tag("ul", *items, *rest, class_="lines"))
    if parts:
        return joined(parts)
    lost = sum(it.lost for it in story.history)
    words = f"{lost:,} failed visits with unknown reasons." if lost else "No failed visits in finished rounds."
    return tag("p", words, class_="dim")


# --- rounds


def rounds(story: JobStory) -> Markup:
    """Return a table of the rounds, newest first."""
    if not story.history:
        return tag("p", "No round has finished yet.", class_="dim")
    metrics, measures = story.metrics, story.measures
    head = [
        "round", *map(called, metrics), "tours", "visits", "failed", "MB", "took", "at",
        *(MEASURES[name] for name in measures),
    ]  # fmt: skip
    lines = [
        (
            str(it.round),
            *(metric_shown(name, metric_in(it, name)) for name in metrics),
            f"{it.tours:,}",
            f"{it.visits:,}",
            f"{it.lost:,}",
            f"{it.traffic / 1e6:,.2f}",
            clock_of(it.seconds),
            clock_of(clock),
            *(_measure(it.quality.get(name, math.nan)) for name in measures),
        )
        for it, clock in zip(story.history[-MAX_ROUNDS:], story.clocks[-MAX_ROUNDS:], strict=True)
    ]
    left_out = len(story.history) - len(lines)
    caption = "Rounds, newest first" + (f"; the first {left_out:,} are not shown" if left_out else "")
    return table(head, reversed(lines), caption, numbers=range(1, len(head)))


def _measure(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
