"""Images: their text alternatives, well-formed markup, and escaping of peers' texts."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import fleet_web
from coordinator.results.plots import COLOURS
from fleet_web.drawing import job_sections, tours
from fleet_web.drawing.curves import Curve, Scale, across_scale, chart, key, value_scale
from fleet_web.drawing.job_list import job_rows
from fleet_web.drawing.job_sections import bars, participation_words
from fleet_web.drawing.markup import name_of, table
from fleet_web.story.job_story import DeviceShare
from fleet_web.story.tour_history import HopTry, RoundTravel, Travel, TravelHop
from sojourn.markup import Markup, joined, tag
from tests.fleet_web.test_story import story

EVIL = '</svg><script>alert("x")</script>\u202e<img src=x onerror=alert(1)>\x00' + "y" * 300


def link(device: str) -> Markup:
    return tag("a", name_of(device), href="/device/x")


def hop(device: str, state: str, reason: str = "", planned: str | None = None) -> TravelHop:
    tried = HopTry(device, state, reason, spare=planned is not None)  # type: ignore[arg-type]
    return TravelHop(planned or device, (tried,), over=state != "here")


TOUR = Travel(
    4, "shed", (hop("a", "done"), hop("x", "done", planned="b"), hop("c", "lost", "silent"), hop("d", "here"),
                TravelHop("e")), 3, 4, lost=2,
)  # fmt: skip


def well_formed(markup: Markup) -> ET.Element:
    return ET.fromstring(f"<div>{markup}</div>")  # our own


def test_ring_is_described_in_words():
    words = tours.tour_words(TOUR)
    assert words == "Tour 5 at shed: 3 of 5 hops done, d has the model, 1 lost, 1 spare device took over."
    drawn = well_formed(joined(tours.cards(RoundTravel(1, (TOUR,), under_way=True), link)))
    ring = drawn.find(".//svg")
    assert ring is not None
    assert (ring.get("role"), ring.get("aria-label")) == ("img", words)
    states = [each.get("class") for each in ring.iter("g") if (each.get("class") or "").startswith("hop ")]
    assert states == ["hop done", "hop done", "hop lost", "hop here", "hop waiting"]
    assert "75 % of the visit done" in "".join(drawn.itertext())
    assert "lost: silent" in "".join(drawn.itertext())


def test_model_turns_to_its_hop_and_nothing_else_changes():
    (before,) = tours.cards(RoundTravel(1, (TOUR,)), link)
    assert "transform:rotate(216.0deg)" in before
    moved = replace(TOUR, hops=(*TOUR.hops[:3], hop("d", "done"), hop("e", "here")))
    (after,) = tours.cards(RoundTravel(1, (moved,)), link)
    assert "transform:rotate(288.0deg)" in after
    keys = re.compile(r'data-key="([^"]+)"')
    assert keys.findall(before) == keys.findall(after)


def test_single_device_tours_form_one_ring_per_site():
    travel = RoundTravel(1, tuple(Travel(at, f"s{at % 2}", (hop(f"d{at}", "done"),), done=True) for at in range(4)))
    drawn = well_formed(joined(tours.cards(travel, link)))
    assert len(drawn.findall(".//article")) == 2
    assert "2 of 2 visits done, 0 failed" in "".join(drawn.itertext())


def test_failed_devices_are_first_in_a_ring_of_a_thousand():
    states = ["lost" if at % 10 == 9 else "done" for at in range(1000)]
    travel = RoundTravel(1, tuple(Travel(at, "s", (hop(f"d{at}", state),)) for at, state in enumerate(states)))
    (card,) = tours.cards(travel, link)
    assert card.count('class="hop lost"') == tours.MAX_NODES // 10
    assert card.count('class="hop done"') == tours.MAX_NODES * 9 // 10
    drawn = "".join(well_formed(card).itertext())
    assert "900 of 1,000 visits done, 100 failed" in drawn
    assert "and 980 more" in drawn
    assert drawn.index("d9 lost") < drawn.index("and 980 more")


def test_many_tours_are_paginated():
    travel = RoundTravel(1, tuple(replace(TOUR, number=at) for at in range(60)))
    assert tours.pages(travel) == 3
    assert len(tours.cards(travel, link, 2)) == 12


@pytest.mark.parametrize("make", [
    lambda: joined(tours.cards(RoundTravel(1, (Travel(1, EVIL, (hop(EVIL, "lost", EVIL), hop(EVIL, "here"))),)), link)),
    lambda: joined(tours.cards(RoundTravel(1, (Travel(1, EVIL, (hop(EVIL, "lost", EVIL),)),)), link)),
    lambda: chart([Curve(EVIL, [1, 2], [0.1, 0.2])], "accuracy", EVIL, EVIL),
    lambda: key([Curve(EVIL, [], [])], act="hide"),
    lambda: table([EVIL], [[EVIL]], EVIL),
    lambda: job_sections.participation([DeviceShare(EVIL, EVIL, 1, 2, EVIL)], link, partly=True),
])  # fmt: skip
def test_peer_text_never_becomes_markup(make):
    drawn = make()
    assert "<script" not in drawn
    assert "<img" not in drawn
    assert "onerror=alert(1)>" not in drawn
    well_formed(Markup(drawn.replace("\x00", "")))


@pytest.mark.parametrize("values", [[], [nan], [0.5], [0.5] * 3, [1e38, -1e38], [inf, 1.0], [1e-9, 1e9]])
@pytest.mark.parametrize("metric", ["accuracy", "loss", "vts"])
def test_chart_stays_in_its_frame_for_any_values(values, metric):
    drawn = chart([Curve("it", range(len(values)), values)], metric, "words", "round", whole=True)
    assert "nan" not in drawn
    assert "inf" not in drawn
    well_formed(drawn)


def test_curves_differ_beyond_colour_and_hidden_ones_keep_style():
    curves = [Curve("a", [1, 2], [0.1, 0.2], 0), Curve("b", [1, 2], [0.3, 0.2], 1, hidden=True)]
    drawn = chart(curves, "accuracy", "words", "round")
    assert 'data-key="curve-0"' in drawn
    assert 'data-key="curve-1"' not in drawn
    buttons = well_formed(key(curves, act="hide")).findall(".//button")
    assert [it.get("aria-pressed") for it in buttons] == ["true", "false"]
    assert len({it.find("svg")[1].get("d") for it in buttons}) == 2  # type: ignore[index]


def test_long_curve_is_thinned_and_keeps_its_end():
    curve = Curve("long", range(10_000), [at / 10_000 for at in range(10_000)])
    assert len(curve.points) <= 401
    assert curve.points[-1] == (9999, 0.9999)


def test_ticks_are_round_numbers():
    assert Scale(0, 1, 0, 1).ticks() == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert Scale(0, 3, 0, 1).ticks(whole=True) == [0, 1, 2, 3]
    assert value_scale("loss", [0.001, 100], 0, 1).ticks() == [0.001, 0.01, 0.1, 1, 10, 100][::2]
    assert across_scale([], 0, 1).high == 1.0


def test_participation_of_thousands_stays_compact():
    shares = [DeviceShare(f"d{at}", "s", 3 if at < 5 else 0, at % 2) for at in range(2000)]
    assert len(bars(shares)) < 40_000
    assert participation_words(shares).endswith("1,995 devices never completed a visit.")


def test_job_without_rounds_is_described_as_such():
    empty = story()
    for part in (job_sections.tiles(empty), job_sections.course(empty, "round"), job_sections.rounds(empty)):
        well_formed(part)
    assert job_sections.arrangement(empty) is None
    assert "No round has finished yet" in job_sections.rounds(empty)


def test_running_jobs_are_first_with_their_remaining_time():
    done, runs = story(0.5, status="done").view, story(0.5).view
    drawn = well_formed(job_rows([done, runs], lambda job: f"/job/{job}"))
    rows = ["".join(row.itertext()) for row in drawn.findall(".//tbody/tr")]
    assert "running" in rows[0]
    assert "about 36 s" in rows[0]
    assert "done" in rows[1]


@pytest.mark.parametrize("status", ["failed", "refused"])
def test_failed_job_is_red_and_its_bar_is_not_full(status):
    failed = story(0.5, status=status)
    drawn = job_sections.tiles(failed)
    well_formed(drawn)
    assert f'<dd class="bad">{status}</dd>' in drawn
    assert 'class="lead bad"' in drawn
    assert 'class="meter failed"' in drawn
    assert 'aria-valuenow="20"' in drawn
    assert f'<span class="bad">{status}</span>' in job_rows([failed.view], lambda job: f"/job/{job}")
    done = job_sections.tiles(story(0.5, status="done"))
    assert "bad" not in done
    assert 'class="meter"' in done


def test_page_and_report_draw_in_the_same_colours():
    light = Path(fleet_web.__file__).with_name("pictures.css").read_text().split("}", 1)[0]
    assert tuple(re.findall(r"--c\d: (#[0-9a-f]{6})", light)) == COLOURS
