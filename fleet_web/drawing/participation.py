"""Who took part how often, as a picture: a bar for each device, the most visited first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fleet_web.drawing.markup import Markup, tag
from fleet_web.drawing.scales import Scale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleet_web.story.visit_book import DeviceShare

WIDTH, HEIGHT = 720.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 10.0, 12.0, 40.0
MOST_BARS = 300
"""Bars that can be told apart; of more devices each bar stands for several alike."""


def bars(shares: Sequence[DeviceShare]) -> Markup:
    """The picture."""
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
    """What is to be seen, in a sentence."""
    if not shares:
        return "No device is known."
    never = sum(not it.done for it in shares)
    done = sum(it.done for it in shares)
    failed = sum(it.failed for it in shares)
    most = shares[0]
    text = f"{done:,} visits of {len(shares):,} devices were done and {failed:,} failed"
    text += f"; at most {most.done:,} of one device" if most.done else ""
    return f"{text}; {never:,} {'was' if never == 1 else 'were'} never visited with success."


def _groups(shares: Sequence[DeviceShare]) -> list[tuple[float, float]]:
    """Done and failed visits of each bar: of one device, or the mean of as many as share it."""
    step = max(1, math.ceil(len(shares) / MOST_BARS))
    groups = [shares[at : at + step] for at in range(0, len(shares), step)]
    return [
        (sum(it.done for it in group) / len(group), sum(it.failed for it in group) / len(group)) for group in groups
    ]


def _bar(at: int, low: float, high: float, y: Scale, width: float) -> str:
    gap = 0.15 * width if width > 3 else 0.0
    left, wide = LEFT + at * width + gap / 2, width - gap
    bottom, top = y.place(low), y.place(high)
    return f"M{left:.1f} {bottom:g}V{top:g}h{wide:.2f}V{bottom:g}Z"
