"""Images of tours: the devices of a tour form a ring, and the model moves around it hop by hop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby

from fleet_web.drawing.markup import LABEL, name_of
from fleet_web.story.tour_history import WORDS, RoundTravel, Travel, TravelHop, plain_reason
from sojourn.logs import ordinal
from sojourn.markup import Markup, joined, tag
from sojourn.text import clean

Link = Callable[[str], Markup]

SIZE, MIDDLE, RADIUS = 200.0, 100.0, 67.0
ORBIT = 24.0
"""Distance of the model from the ring, so that it covers no device."""
MAX_TOURS = 24
"""Maximum number of tours per page."""
CACHED = 512
"""Maximum number of cached cards, over all pages."""
MAX_NODES = 160
"""Maximum number of devices drawn on one ring; a longer tour is sampled evenly."""
MAX_LISTED, LISTED_IF_MORE = 40, 20
"""A ring with more hops than the first number lists only the second number of hops below it."""
RANKS = ("lost", "refused", "declined", "here", "waiting")
"""Sort order of devices by state in a long list."""
REASON = 160
GLYPHS = {
    "done": "M-4 0L-1 3.4L4.4 -3.4",
    "declined": "M-4 0H4",
    "lost": "M-3.4 -3.4L3.4 3.4M-3.4 3.4L3.4 -3.4",
    "refused": "M0 -4.4V1M0 3.2V4.4",
    "here": "M0 -4L4 0L0 4L-4 0Z",
    "skipped": "M-4 2.4Q0 -5 4 2.4",
}
"""Symbols inside a device's marker; a waiting device shows its hop number instead."""
SIGNS = {
    "waiting": "○", "here": "◆", "done": "✓", "declined": "⊖", "lost": "✕", "refused": "!", "skipped": "↷",
}  # fmt: skip
"""The same symbols in a line of text."""


def cards(travel: RoundTravel, link: Link, page: int = 0) -> list[Markup]:
    """Return a card per tour of a round, or a card per site if each model visits only one device.

    link: returns a device name as a link to its page.
    """
    part = slice(page * MAX_TOURS, (page + 1) * MAX_TOURS)
    if travel.side_by_side:
        by_site = groupby(sorted(travel.tours, key=lambda it: it.site), key=lambda it: it.site)
        return [_site_card(site, list(tours), link) for site, tours in by_site][part]
    return [_tour_card(tour, link) for tour in travel.tours[part]]


def pages(travel: RoundTravel) -> int:
    """Return the number of pages of a round's tours."""
    count = len({tour.site for tour in travel.tours}) if travel.side_by_side else len(travel.tours)
    return max(1, math.ceil(count / MAX_TOURS))


def legend() -> Markup:
    """Return the legend of the markers."""
    entries = [tag("li", _sample(state), WORDS[state]) for state in ("here", "waiting", "done", "declined", "lost")]
    spare = tag("li", _sample("done", spare=True), "a spare device took over")
    return tag("ul", *entries, tag("li", _sample("refused"), WORDS["refused"]), spare, class_="key")


def _sample(state: str, *, spare: bool = False) -> Markup:
    mark = _mark(state, "", 9.0, spare=spare)
    return tag("svg", mark, viewBox="-13 -13 26 26", aria_hidden="true", class_="sample small")


# --- one tour


@lru_cache(CACHED)
def _tour_card(tour: Travel, link: Link) -> Markup:
    """Return a tour's card, cached because most tours are unchanged since the last update."""
    title = tag("h3", f"Tour {ordinal(tour.number)} ", tag("span", "at ", name_of(tour.site), class_="dim"))
    state = tag("p", _standing(tour), class_="standing")
    ring = _ring(tour.hops, at=tour.at, share=tour.share, words=tour_words(tour), middle=_middle(tour), travels=True)
    return tag("article", title, state, ring, _hops(tour.hops, link), class_="tour", data_key=f"tour-{tour.number}")


def _middle(tour: Travel) -> tuple[str, str]:
    done = sum(hop.state == "done" for hop in tour.hops)
    return f"{done}/{len(tour.hops)}", "visits done"


def _standing(tour: Travel) -> Markup:
    at = tour.at
    if tour.done:
        return joined(["home", f", {tour.lost} failed" if tour.lost else ""])
    if at is None:
        return joined(["starting" if not tour.over else "between two hops"])
    if tour.merges:
        return joined([f"trained in parallel, merged {tour.merges} times"])
    spare = "the spare device " if tour.hops[at].spare else ""
    done = f", {100 * tour.share:.0f} % of the visit done" if tour.steps else ""
    return joined([f"hop {ordinal(at)}: ", spare, name_of(tour.hops[at].device), f" has the model{done}"])


def tour_words(tour: Travel) -> str:
    """Describe a tour in one sentence, as the text alternative of its image."""
    failed = Counter(it.state for hop in tour.hops for it in hop.tries if it.state not in {"done", "here"})
    spares = sum(hop.spare for hop in tour.hops)
    at = tour.at
    parts = [f"{tour.over} of {len(tour.hops)} hops done"]
    parts += [f"{clean(tour.hops[at].device, LABEL)} has the model"] if at is not None else []
    parts += [f"{count} {WORDS[state]}" for state, count in failed.items()]
    parts += [f"{spares} {'spare device' if spares == 1 else 'spare devices'} took over"] if spares else []
    return f"Tour {ordinal(tour.number)} at {clean(tour.site, LABEL)}: {', '.join(parts)}."


# --- the tours of a site whose models each visit one device


def _site_card(site: str, tours: Sequence[Travel], link: Link) -> Markup:
    hops = [hop for tour in tours for hop in tour.hops]
    if len(hops) > MAX_LISTED:  # short lists keep the order of the hops
        hops.sort(key=lambda hop: RANKS.index(hop.mark) if hop.mark in RANKS else len(RANKS))
    done, here, failed = (sum(hop.state == state for hop in hops) for state in ("done", "here", "skipped"))
    now = f", {here} in training" if here else ""
    summary = f"{done:,} of {len(hops):,} visits done{now}, {failed:,} failed"
    words = f"Site {clean(site, LABEL)}: {summary}."
    title = tag("h3", "Site ", name_of(site))
    ring = _ring(hops, at=None, share=0.0, words=words, middle=(f"{done}/{len(hops)}", "visits done"), travels=False)
    standing = tag("p", summary, class_="standing")
    return tag("article", title, standing, ring, _hops(hops, link), class_="tour", data_key=site)


# --- parts of a card


def _ring(
    hops: Sequence[TravelHop], *, at: int | None, share: float, words: str, middle: tuple[str, str], travels: bool
) -> Markup:
    step = max(1.0, len(hops) / MAX_NODES)
    drawn = hops if step == 1.0 else [hops[int(at * step)] for at in range(MAX_NODES)]
    count = len(drawn)
    size = 12.0 if count <= 12 else 9.0 if count <= 20 else max(2.5, 150.0 / count)
    parts = [tag("circle", cx=MIDDLE, cy=MIDDLE, r=RADIUS, class_="track")]
    if travels and at is not None and at > 0:
        parts.append(tag("path", d=_arc(at / count), class_="travelled", data_key="travelled"))
    for place, hop in enumerate(drawn):
        x, y = _on_ring(place / count, RADIUS)
        number = str(place + 1) if travels else ""
        mark = _mark(hop.mark, number, size, spare=hop.spare, share=share if place == at else 0.0)
        parts.append(tag("g", mark, transform=f"translate({x:.1f} {y:.1f})", data_key=f"hop-{place}"))
    if travels:
        parts.append(_model(at, count))
    parts += [
        tag("text", middle[0], x=MIDDLE, y=MIDDLE + 4, class_="middle" if len(middle[0]) < 7 else "middle long"),
        tag("text", middle[1], x=MIDDLE, y=MIDDLE + 22, class_="below"),
    ]
    return tag("svg", *parts, viewBox=f"0 0 {SIZE:g} {SIZE:g}", role="img", aria_label=words, class_="ring")


def _model(at: int | None, count: int) -> Markup:
    """Draw the model; it rotates around the centre of the ring, so that it moves along the ring."""
    turn = 360.0 * (at or 0) / max(count, 1)
    body = tag("path", d="M0 -7L7 0L0 7L-7 0Z", transform=f"translate({MIDDLE:g} {MIDDLE - RADIUS - ORBIT:g})")
    gone = "model" if at is not None else "model gone"
    return tag("g", body, class_=gone, style=f"transform:rotate({turn:.1f}deg)", data_key="model")


def _mark(state: str, number: str, size: float, *, spare: bool, share: float = 0.0) -> Markup:
    """Draw a device on a ring: shape, symbol and colour all show its state."""
    parts = [tag("circle", r=size, class_="node")]
    if spare:
        parts.append(tag("circle", r=size + 3.5, class_="spare"))
    if share:
        around = 2 * math.pi * (size + 2.5)
        parts.append(
            tag("circle", r=size + 2.5, class_="visit", stroke_dasharray=f"{share * around:.1f} {around:.1f}",
                transform="rotate(-90)")
        )  # fmt: skip
    if size >= 5 and state == "waiting":
        parts.append(tag("text", number, y=4, class_="number"))
    elif size >= 5:
        parts.append(tag("path", d=GLYPHS[state], class_="glyph"))
    return tag("g", *parts, class_=f"hop {state}")


def _on_ring(share: float, radius: float) -> tuple[float, float]:
    angle = 2 * math.pi * share - math.pi / 2
    return MIDDLE + radius * math.cos(angle), MIDDLE + radius * math.sin(angle)


def _arc(share: float) -> str:
    x, y = _on_ring(share, RADIUS)
    return f"M{MIDDLE:g} {MIDDLE - RADIUS:g}A{RADIUS:g} {RADIUS:g} 0 {int(share > 0.5)} 1 {x:.1f} {y:.1f}"


def _hops(hops: Sequence[TravelHop], link: Link) -> Markup:
    """List every hop in words, with its state and the reason of each failure."""
    named = hops if len(hops) <= MAX_LISTED else hops[:LISTED_IF_MORE]
    items = [_hop(place, hop, link) for place, hop in enumerate(named)]
    if len(hops) > len(named):
        items.append(tag("li", f"and {len(hops) - len(named):,} more", class_="dim", data_key="more"))
    return tag("ol", *items, class_="hops")


def _hop(place: int, hop: TravelHop, link: Link) -> Markup:
    mark = hop.mark
    sign = tag("span", SIGNS[mark], aria_hidden="true", class_="sign")
    words = tag("span", f" {_hop_words(hop)}", class_="dim")
    return tag("li", sign, link(hop.device), words, class_=mark, data_key=f"hop-{place}")


def _hop_words(hop: TravelHop) -> str:
    """Describe a hop: its state, the devices tried before, and why they failed."""
    last = hop.tries[-1] if hop.tries else None
    state = WORDS[hop.mark] + (_why(last.reason) if last else "")
    spare = ", a spare" if hop.spare else ""
    return "; ".join([f"{state}{spare}", *_before(hop)])


def _before(hop: TravelHop) -> Iterable[str]:
    for it in hop.tries[:-1]:
        yield f"earlier: {clean(it.device, LABEL)} {WORDS[it.state]}{_why(it.reason)}"


def _why(reason: str) -> str:
    """Return a failure's reason after a colon, without repeating that the visit failed."""
    return f": {clean(plain_reason(reason), REASON)}" if reason else ""
