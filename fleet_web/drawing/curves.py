"""Line charts over rounds, time or bytes, in a palette that colour-blind people can distinguish."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coordinator.results.plots import is_logarithmic
from fleet_web.drawing.markup import name_of
from sojourn.markup import Markup, tag
from sojourn.protocol.metric_names import SHARES, significant

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """A range of values and the pixels it covers: `first` is the position of `low`, `last` that of `high`."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value, clamped to the range."""
        low, high, at = (self._of(each) for each in (self.low, self.high, min(max(value, self.low), self.high)))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.first + share * (self.last - self.first), 2)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, limit: int = 5, *, whole: bool = False) -> list[float]:
        """Return at most `limit` round numbers inside the range."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers][:: max(1, math.ceil(len(powers) / limit))]
        return _round_numbers(self.low, self.high, limit, whole=whole)


def _round_numbers(low: float, high: float, limit: int, *, whole: bool) -> list[float]:
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / limit))
    step = next(step * power for step in STEPS if span / (step * power) <= limit)
    step = max(1.0, math.ceil(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(at * step, 12) for at in range(first, first + limit + 2) if at * step <= high + 1e-9 * span]


def value_scale(name: str, values: Iterable[float], first: float, last: float) -> Scale:
    """Return the scale of a metric or an arrangement measure: shares from 0 to 1, others over their range.

    Metrics that span several orders of magnitude get a logarithmic scale; arrangement measures never do.
    """
    known = [value for value in values if math.isfinite(value)]
    if name in SHARES or not known:
        return Scale(0.0, 1.0, first, last)
    low, high = min(known), max(known)
    if is_logarithmic(name, known):
        return Scale(low, high, first, last, log=True)
    if low >= 0 and high <= 1:
        return Scale(0.0, 1.0 if high > 0.5 else high or 1.0, first, last)
    return Scale(min(0.0, low) if low > -high else low, high if high > low else low + 1, first, last)


def across_scale(values: Iterable[float], first: float, last: float) -> Scale:
    """Return the scale of rounds, seconds or megabytes."""
    known = [value for value in values if math.isfinite(value)]
    high = max(known, default=1.0)
    low = min(0.0, min(known, default=0.0))
    return Scale(low, high if high > low else low + 1.0, first, last)


def tick_text(name: str, value: float) -> str:
    """Format the label of an axis tick."""
    if name in SHARES:
        return f"{100 * value:.0f} %"
    return significant(value)


WIDTH, HEIGHT = 360.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 10.0, 38.0
KINDS = 8
"""Number of distinct curve styles; the style sheet has a colour and a dash pattern for each."""
MAX_POINTS = 400
"""Maximum number of points drawn per curve; a chart is about this many pixels wide."""
MAX_MARKERS = 24
"""Curves with more points than this have a marker only at the last point."""


@dataclass(frozen=True)
class Curve:
    """A named line with its points and its style number. A hidden curve is not drawn but keeps its style."""

    name: str
    across: Sequence[float]
    values: Sequence[float]
    look: int = 0
    hidden: bool = False

    @property
    def points(self) -> list[tuple[float, float]]:
        """The finite points, thinned out to at most `MAX_POINTS`."""
        there = zip(self.across, self.values, strict=False)
        known = [(x, y) for x, y in there if math.isfinite(x) and math.isfinite(y)]
        step = math.ceil(len(known) / MAX_POINTS) if known else 1
        return known if step == 1 else [*known[:-1:step], known[-1]]


def chart(curves: Sequence[Curve], metric: str, words: str, across: str, *, whole: bool = False) -> Markup:
    """Draw a chart of a metric; `words` is its text alternative. whole: label only whole numbers on the x axis."""
    shown = [curve for curve in curves if not curve.hidden and curve.points]
    every = [point for curve in shown for point in curve.points]
    x = across_scale((at for at, _ in every), LEFT, WIDTH - RIGHT)
    y = value_scale(metric, (value for _, value in every), HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x, y, metric, whole=whole), *(_line(curve, x, y) for curve in shown)]
    if not every:
        parts.append(tag("text", "no measurements yet", x=WIDTH / 2, y=HEIGHT / 2, text_anchor="middle"))
    parts.append(tag("text", across, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 4, text_anchor="middle", class_="axis"))
    return tag(
        "svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=words, class_="chart",
        focusable="false",
    )  # fmt: skip


def _grid(x: Scale, y: Scale, metric: str, *, whole: bool) -> list[Markup]:
    parts = []
    for value in y.ticks():
        at = y.place(value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", tick_text(metric, value), x=LEFT - 6, y=at + 4, text_anchor="end"))
    for value in x.ticks(whole=whole):
        at = x.place(value)
        parts.append(tag("line", x1=at, x2=at, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4, class_="grid"))
        parts.append(tag("text", f"{value:g}", x=at, y=HEIGHT - BOTTOM + 16, text_anchor="middle"))
    return parts


def _line(curve: Curve, x: Scale, y: Scale) -> Markup:
    """Draw a line and its markers; `data-key` keeps the element across updates, so that only its path changes."""
    points = [(x.place(at), y.place(value)) for at, value in curve.points]
    path = "M" + "L".join(f"{across:g} {up:g}" for across, up in points)
    marked = points if len(points) <= MAX_MARKERS else points[-1:]
    look = curve.look % KINDS
    marks = [mark(look, across, up) for across, up in marked]
    line = tag("path", d=path, class_="line")
    return tag("g", line, *marks, class_=f"look-{look}", data_key=f"curve-{curve.look}")


def mark(look: int, x: float, y: float) -> Markup:
    """Draw the marker of a style; the shapes differ so that curves are distinguishable without colour."""
    forms = (
        "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z",
        "M-2.7 -2.7H2.7V2.7H-2.7Z",
        "M0 -3.6L3.4 2.6H-3.4Z",
        "M0 -3.9L3.9 0L0 3.9L-3.9 0Z",
        "M0 3.6L3.4 -2.6H-3.4Z",
        "M-1 -3.5H1V-1H3.5V1H1V3.5H-1V1H-3.5V-1H-1Z",
        "M-3.4 -3.4L3.4 3.4M-3.4 3.4L3.4 -3.4",
        "M-3.5 -1.2H3.5V1.2H-3.5Z",
    )
    return tag("path", d=forms[look % KINDS], transform=f"translate({x:g} {y:g})", class_="mark")


def key(curves: Sequence[Curve], *, act: str = "") -> Markup:
    """Draw the legend. With `act`, each entry is a button that shows or hides its curve."""
    return tag("ul", *(tag("li", _entry(curve, act)) for curve in curves), class_="key")


def _entry(curve: Curve, act: str) -> Markup:
    look = curve.look % KINDS
    line = tag("path", d="M1 7H27", class_="line")
    sample = tag("svg", line, mark(look, 14, 7), viewBox="0 0 28 14", aria_hidden="true", class_=f"look-{look} sample")
    if not act:
        return tag("span", sample, name_of(curve.name))
    pressed = "false" if curve.hidden else "true"
    return tag(
        "button", sample, name_of(curve.name), type="button", aria_pressed=pressed, data_act=f"{act}:{curve.look}"
    )
