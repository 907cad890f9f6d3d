"""Devices, releases and events as rows: states, order, filters, and escaping."""

from __future__ import annotations

import asyncio

from coordinator.console import fleet_tables
from fleet_web.elements import Cell, Row, _plain, address
from fleet_web.pages import device as visit_rows
from fleet_web.pages import fleet, log, releases
from fleet_web.pages.fleet import FleetChoice
from fleet_web.sources.source import Sources, in_address
from sojourn.protocol.operator_messages import DeviceNow
from sojourn.protocol.wire import VisitId
from tests.fleet_web.fake_source import HOSTILE, NOW, FakeSource, device, line, training


def test_device_state_is_described_with_its_reason() -> None:
    found = [device(), training(), device("a", online=False), device("b", last=None)]
    assert [fleet.state_of(it) for it in found] == ["declining", "training", "offline", "online"]
    assert [fleet.state_text(it, NOW) for it in found] == [
        "declines: hot: 81 °C",
        "training digits round 4, 50 %",
        "offline for 2 min",
        "online for 2 min",
    ]
    assert fleet.offers_text(device()) == "4 threads, 4.0 GB"
    assert fleet.offers_text(training()) == "1 thread, 1.0 GB"
    assert fleet.offers_text(device(doing=DeviceNow())) == "-"
    assert fleet.serves(device()) == Cell("digits 2")


def test_devices_can_be_searched_filtered_and_sorted() -> None:
    devices = [device(f"pi-{number}", visits=number, machine=f"board {number % 2}") for number in (1, 2, 10)]
    devices.append(training("pi-3"))

    def names(**how) -> list[str]:
        return [it.device for it in fleet.chosen(devices, FleetChoice(**how))]

    assert names() == ["pi-1", "pi-2", "pi-3", "pi-10"]
    assert names(down=True) == ["pi-10", "pi-3", "pi-2", "pi-1"]
    assert names(sort="visits", down=True)[:2] == ["pi-3", "pi-10"]
    assert names(state="training") == ["pi-3"]
    assert names(search="0 BOARD") == ["pi-2", "pi-10"]
    assert names(search="digits 2") == ["pi-1", "pi-2", "pi-10"]
    assert names(site="elsewhere") == []
    assert names(sort="nonsense") == names()
    for column in fleet.COLUMNS:
        assert len(names(sort=column.key)) == 4


def test_notice_is_shown_with_the_device() -> None:
    cell = fleet.row(device(last=None, notice="two agents use the name 'pi-1'"), NOW, {}).cells[1]
    assert cell == Cell("online for 2 min. two agents use the name 'pi-1'", tone="bad")
    assert ("notice", "x") in fleet_tables.device_lines(device(notice="x"), NOW)
    assert fleet_tables.notice_lines([device("b", notice="x"), device("a"), device("c", notice="y")]) == [
        "b: x",
        "c: y",
    ]


def test_row_links_to_its_device_job_and_source() -> None:
    cells = fleet.row(device("pi-1"), NOW, {"of": "a folder"}).cells
    assert cells[0] == Cell("pi-1", "/device/pi-1?of=a%20folder")
    assert cells[-1].href == "/job/digits?of=a%20folder"
    assert address("device", "../<x>\"'", of="a&b") == "/device/..%2F%3Cx%3E%22%27?of=a%26b"


def test_cell_is_one_short_line_of_plain_text() -> None:
    (cell,) = _plain(Row("k", (Cell(HOSTILE, tone="bad"),)))["cells"]
    assert len(cell["text"]) <= 400
    assert not any(letter in cell["text"] for letter in "\x00\x1b\u202e\n")
    assert cell["tone"] == "bad"


def test_visit_rows_show_the_mean_bytes() -> None:
    source = FakeSource()
    visits = asyncio.run(source.visits())
    means = asyncio.run(visit_rows.mean_bytes(source, visits, 5))
    assert means == {("digits", 3): 10_000.0}
    row = visit_rows.visit_row(visits[0], 10_000.0, {})
    assert [cell.text for cell in row.cells[1:]] == [
        "digits round 3, tour 1 hop 2", "declined", "-", "-", "1.5 s", "-", "hall", "hot: 81 °C",
    ]  # fmt: skip


def test_page_and_log_number_a_visit_alike() -> None:
    note = asyncio.run(FakeSource().visits())[0]
    number = VisitId(note.job, note.round, note.tour, note.hop, (1, 1))
    _, shown, *_ = visit_rows.visit_row(note, None, {}).cells
    happening = log._visit(note)
    assert str(number) == "digits round 3 tour 1 hop 2"
    assert shown.text.replace(",", "") == str(number)
    assert number.about().fields["visit"] == "digits/3/1/2"
    assert "tour 1 hop 2" in happening.what


def test_rollouts_and_their_rules_are_described_in_words() -> None:
    view = line()
    assert [cell.text for cell in releases.line_row(view, {}).cells] == [
        "digits", "2", "rolled-back", "1 of 2 (10 % of the fleet)", "digits 1", "1 failed, 1 serving", "accuracy fell",
    ]  # fmt: skip
    unhealthy, well = (releases.device_row(it, {}).cells for it in view.devices)
    assert [cell.text for cell in unhealthy[3:]] == ["failed", "0.20 ms", "90.0 % (-5.0)", "7", "0", "accuracy fell"]
    assert (unhealthy[3].tone, well[3].tone) == ("bad", "good")
    rules = dict(releases.rule_pairs(view))
    assert rules["accuracy loss allowed"] == "2 points; for another main metric, 10 %"
    assert rules["history"].endswith("digits 2 rolled-back, accuracy fell")


def test_event_log_covers_all_roles_newest_first() -> None:
    found = asyncio.run(log.events(FakeSource("hot")))
    assert [it.at for it in found] == sorted((it.at for it in found), reverse=True)
    assert {it.kind for it in found} == {"device", "failed visit", "round", "job", "release", "operator"}
    assert {it.kind for it in log.chosen(found, "visit", "")} == {"failed visit"}
    assert {it.kind for it in log.chosen(found, "", "ROLLED-back hot")} == {"release"}
    rows = log.rows(found, {})
    assert len({row.key for row in rows}) == len(rows)  # two identical visits have a row each
    assert rows[0].cells[2].href == "/job/digits"


def test_sources_are_found_by_name() -> None:
    source = FakeSource()
    sources = Sources([source])
    assert sources.named(None) is source is sources.first
    assert in_address(source) == {}
