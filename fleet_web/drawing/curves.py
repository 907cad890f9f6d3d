"""Curves over rounds, time or bytes: colours that colour-blind people tell apart, and a pattern and a mark for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet_web.drawing.markup import Markup, name_of, tag
from fleet_web.drawing.scales import across_scale, tick_text, value_scale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleet_web.drawing.scales import Scale

WIDTH, HEIGHT = 360.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 10.0, 38.0
KINDS = 8
"""Curves that look different; the style sheet has a colour and a pattern for each."""
MOST_POINTS = 400
"""Points of a curve: a picture has not many more columns."""
MOST_MARKS = 24
"""Of a curve with more points only the last has a mark."""


@dataclass(frozen=True)
class Curve:
    """A line: its name, its points, and which of the looks it has. hidden: it is left out, and keeps its look."""

    name: str
    across: Sequence[float]
    values: Sequence[float]
    look: int = 0
    hidden: bool = False

    @property
    def points(self) -> list[tuple[float, float]]:
        """What can be drawn; of many points some from the first to the last."""
        there = zip(self.across, self.values, strict=False)
        known = [(x, y) for x, y in there if math.isfinite(x) and math.isfinite(y)]
        step = math.ceil(len(known) / MOST_POINTS) if known else 1
        return known if step == 1 else [*known[:-1:step], known[-1]]


def chart(curves: Sequence[Curve], figure: str, words: str, across: str, *, whole: bool = False) -> Markup:
    """A picture of a figure; `words` says what is to be seen. whole: only whole numbers stand below it."""
    shown = [curve for curve in curves if not curve.hidden and curve.points]
    every = [point for curve in shown for point in curve.points]
    x = across_scale((at for at, _ in every), LEFT, WIDTH - RIGHT)
    y = value_scale(figure, (value for _, value in every), HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x, y, figure, whole=whole), *(_line(curve, x, y) for curve in shown)]
    if not every:
        parts.append(tag("text", "nothing was measured yet", x=WIDTH / 2, y=HEIGHT / 2, text_anchor="middle"))
    parts.append(tag("text", across, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 4, text_anchor="middle", class_="axis"))
    return tag(
        "svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=words, class_="chart",
        focusable="false",
    )  # fmt: skip


def _grid(x: Scale, y: Scale, figure: str, *, whole: bool) -> list[Markup]:
    parts = []
    for value in y.ticks():
        at = y.place(value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", tick_text(figure, value), x=LEFT - 6, y=at + 4, text_anchor="end"))
    for value in x.ticks(whole=whole):
        at = x.place(value)
        parts.append(tag("line", x1=at, x2=at, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4, class_="grid"))
        parts.append(tag("text", f"{value:g}", x=at, y=HEIGHT - BOTTOM + 16, text_anchor="middle"))
    return parts


def _line(curve: Curve, x: Scale, y: Scale) -> Markup:
    """A line and its marks; with `data-key` it is the same element in the next picture, and only its path changes."""
    points = [(x.place(at), y.place(value)) for at, value in curve.points]
    path = "M" + "L".join(f"{across:g} {up:g}" for across, up in points)
    marked = points if len(points) <= MOST_MARKS else points[-1:]
    look = curve.look % KINDS
    marks = [mark(look, across, up) for across, up in marked]
    line = tag("path", d=path, class_="line")
    return tag("g", line, *marks, class_=f"look-{look}", data_key=f"curve-{curve.look}")


def mark(look: int, x: float, y: float) -> Markup:
    """The mark of a look: its form tells it apart where its colour does not."""
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
    """What each look stands for. act: with it each entry is a button that shows or hides its curve."""
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
