"""The tours of a round in the live view: where each model is, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from sojourn.protocol.wire import TourView

MOST_TOURS = 10
BAR = 12
"""Columns of a visit's bar."""
ARROW = " → "


def tour_lines(tours: tuple[TourView, ...], width: int) -> Text:
    """A line for each tour. All widths are known, so these are lines and no table: that is drawn in half the time."""
    site = min(16, max(4, *(len(tour.site) for tour in tours)))
    hop = max(5, *(len(_hop(tour)) for tour in tours))
    room = max(5, width - site - hop - BAR - 6)
    lines = [Text(f"{'site':{site}}  {'route':{room}}  {'hop':>{hop}}  this visit", "dim")]
    shown = sorted(tours, key=lambda tour: tour.done)[:MOST_TOURS]
    for tour in shown:
        name, way = Text(tour.site), route(tour, room)
        name.truncate(site, overflow="ellipsis", pad=True)
        way.truncate(room, overflow="ellipsis", pad=True)
        lines.append(Text.assemble(name, "  ", way, f"  {_hop(tour):>{hop}}  ", _visit(tour)))
    if len(tours) > len(shown):
        lines.append(Text(f"{'':{site}}  and {len(tours) - len(shown)} more tours", "dim"))
    text = Text("\n").join(lines)
    text.no_wrap, text.overflow = True, "crop"
    return text


def _hop(tour: TourView) -> str:
    return f"{min(tour.hop + (not tour.done), len(tour.hops))}/{len(tour.hops)}"


def _visit(tour: TourView) -> Text:
    if tour.done:
        return Text("arrived", "green")
    done = BAR * min(tour.step, tour.steps) // max(tour.steps, 1)
    return Text.assemble(("━" * done, "bar.complete"), ("━" * (BAR - done), "bar.back"))


def route(tour: TourView, room: int) -> Text:
    """The way of the model, with the device that it is at; a long way is cut so that the device stays in sight."""
    devices = list(tour.hops)
    if tour.device and tour.hop < len(devices):
        devices[tour.hop] = tour.device  # a spare may stand in
    first = 0
    while first < tour.hop and first < len(devices) - 1 and len(ARROW.join(devices[first : tour.hop + 2])) + 4 > room:
        first += 1
    text = Text("…" + ARROW if first else "")
    for at, device in enumerate(devices[first:], first):
        style = "dim" if at < tour.hop else "bold reverse cyan" if at == tour.hop and tour.device else ""
        text.append(ARROW if at > first else "", "dim").append(device, style)
    return text
