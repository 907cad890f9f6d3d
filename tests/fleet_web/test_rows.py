"""Devices, releases and what happened, as rows: states, order, filters, and nothing that a browser obeys."""

from __future__ import annotations

import asyncio

from coordinator.console import fleet_tables
from fleet_web.pages import fleet_rows, happenings, release_rows, visit_rows
from fleet_web.pages.fleet_rows import FleetChoice
from fleet_web.source import Sources, in_address
from fleet_web.table import Cell, Row, _plain
from fleet_web.words import address
from sojourn.protocol.fleet_messages import DeviceNow
from sojourn.protocol.wire import VisitId
from tests.fleet_web.told_source import HOSTILE, NOW, ToldSource, device, line, training


def test_what_a_device_does_in_a_word_and_why() -> None:
    found = [device(), training(), device("a", here=False), device("b", last=None)]
    assert [fleet_rows.state_of(it) for it in found] == ["declining", "training", "gone", "here"]
    assert [fleet_rows.state_text(it, NOW) for it in found] == [
        "declines: hot: 81 °C",
        "training digits round 4, 50 %",
        "gone for 2 min",
        "here for 2 min",
    ]
    assert fleet_rows.offers_text(device()) == "4 threads, 4.0 GB"
    assert fleet_rows.offers_text(training()) == "1 thread, 1.0 GB"
    assert fleet_rows.offers_text(device(doing=DeviceNow())) == "-"
    assert fleet_rows.serves(device()) == Cell("digits 2")


def test_search_filter_and_sort() -> None:
    devices = [device(f"pi-{number}", visits=number, machine=f"board {number % 2}") for number in (1, 2, 10)]
    devices.append(training("pi-3"))

    def names(**how) -> list[str]:
        return [it.device for it in fleet_rows.chosen(devices, FleetChoice(**how))]

    assert names() == ["pi-1", "pi-2", "pi-3", "pi-10"]
    assert names(down=True) == ["pi-10", "pi-3", "pi-2", "pi-1"]
    assert names(sort="visits", down=True)[:2] == ["pi-3", "pi-10"]
    assert names(state="training") == ["pi-3"]
    assert names(search="0 BOARD") == ["pi-2", "pi-10"]
    assert names(search="digits 2") == ["pi-1", "pi-2", "pi-10"]
    assert names(site="elsewhere") == []
    assert names(sort="nonsense") == names()
    for column in fleet_rows.COLUMNS:
        assert len(names(sort=column.key)) == 4


def test_a_notice_is_shown_with_the_device() -> None:
    cell = fleet_rows.row(device(last=None, notice="two agents use the name 'pi-1'"), NOW, {}).cells[1]
    assert cell == Cell("here for 2 min. two agents use the name 'pi-1'", tone="bad")
    assert ("notice", "x") in fleet_tables.device_lines(device(notice="x"), NOW)
    assert fleet_tables.notice_lines([device("b", notice="x"), device("a"), device("c", notice="y")]) == [
        "b: x",
        "c: y",
    ]


def test_a_row_leads_to_its_device_and_job_and_names_the_source() -> None:
    cells = fleet_rows.row(device("pi-1"), NOW, {"of": "a folder"}).cells
    assert cells[0] == Cell("pi-1", "/device/pi-1?of=a%20folder")
    assert cells[-1].href == "/job/digits?of=a%20folder"
    assert address("device", "../<x>\"'", of="a&b") == "/device/..%2F%3Cx%3E%22%27?of=a%26b"


def test_a_cell_is_one_line_of_plain_text_and_not_long() -> None:
    (cell,) = _plain(Row("k", (Cell(HOSTILE, tone="bad"),)))["cells"]
    assert len(cell["text"]) <= 400
    assert not any(letter in cell["text"] for letter in "\x00\x1b\u202e\n")
    assert cell["tone"] == "bad"


def test_visits_and_their_bytes() -> None:
    source = ToldSource()
    visits = asyncio.run(source.visits())
    means = asyncio.run(visit_rows.mean_bytes(source, visits, 5))
    assert means == {("digits", 3): 10_000.0}
    row = visit_rows.visit_row(visits[0], 10_000.0, {})
    assert [cell.text for cell in row.cells[1:]] == [
        "digits round 3, tour 1 hop 2", "declined", "-", "-", "1.5 s", "-", "hall", "hot: 81 °C",
    ]  # fmt: skip


def test_the_page_and_the_log_number_a_visit_alike() -> None:
    note = asyncio.run(ToldSource().visits())[0]
    number = VisitId(note.job, note.round, note.tour, note.hop, (1, 1))
    _, shown, *_ = visit_rows.visit_row(note, None, {}).cells
    happening = happenings._visit(note)
    assert str(number) == "digits round 3 tour 1 hop 2"
    assert shown.text.replace(",", "") == str(number)
    assert number.about().fields["visit"] == "digits/3/1/2"
    assert "tour 1 hop 2" in happening.what


def test_rollouts_and_their_rules_in_words() -> None:
    view = line()
    assert [cell.text for cell in release_rows.line_row(view, {}).cells] == [
        "digits", "2", "rolled-back", "1 of 2 (10 % of the fleet)", "digits 1", "1 failed, 1 serving", "accuracy fell",
    ]  # fmt: skip
    ill, well = (release_rows.device_row(it, {}).cells for it in view.devices)
    assert [cell.text for cell in ill[3:]] == ["failed", "0.20 ms", "90.0 % (-5.0)", "7", "0", "accuracy fell"]
    assert (ill[3].tone, well[3].tone) == ("bad", "good")
    rules = dict(release_rows.rule_pairs(view))
    assert rules["may be less accurate"] == "by 2 points; another main figure by 10 %"
    assert rules["turned"].endswith("digits 2 rolled-back, accuracy fell")


def test_the_log_has_all_roles_the_newest_first_and_can_be_searched() -> None:
    found = asyncio.run(happenings.happenings(ToldSource("hot")))
    assert [it.at for it in found] == sorted((it.at for it in found), reverse=True)
    assert {it.kind for it in found} == {"device", "failed visit", "round", "job", "release", "operator"}
    assert {it.kind for it in happenings.chosen(found, "visit", "")} == {"failed visit"}
    assert {it.kind for it in happenings.chosen(found, "", "ROLLED-back hot")} == {"release"}
    rows = happenings.rows(found, {})
    assert len({row.key for row in rows}) == len(rows)  # two visits that are alike have a row each
    assert rows[0].cells[2].href == "/job/digits"


def test_sources_by_name() -> None:
    source = ToldSource()
    sources = Sources([source])
    assert sources.named(None) is source is sources.first
    assert in_address(source) == {}
