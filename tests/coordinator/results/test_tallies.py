"""Tests of the totals of visits for each site and device."""

from __future__ import annotations

import pytest

from coordinator.results.folder import COLUMNS, VISITS, ResultFolder
from coordinator.results.visit_totals import DEVICES, SITES, describe_losses, write_tallies

VISIT = {"status": "done", "reason": "", "samples": "5", "norm": "0", "loss": "", "hop": "0"}
SEEN = [
    {"clock": "10", "site": "a", "tour": "job/1/0", "device": "d1", "seconds": "4", "down": "100", "up": "50"},
    {"clock": "15", "site": "a", "tour": "job/1/0", "device": "d2", "seconds": "5", "down": "200", "up": "50"},
    {"clock": "12", "site": "b", "tour": "job/1/1", "device": "d3", "seconds": "2", "down": "7", "up": "8"},
    {
        "clock": "40",
        "site": "a",
        "tour": "job/2/0",
        "device": "d1",
        "seconds": "6",
        "down": "1",
        "up": "2",
        "status": "declined",
    },
]


@pytest.fixture
def results(tmp_path) -> ResultFolder:
    folder = ResultFolder(tmp_path)
    columns = COLUMNS[VISITS]
    folder.table(VISITS, columns, [[{**VISIT, **row}[column] for column in columns] for row in SEEN])
    samples, profiles = {"d1": 5, "d2": 6, "d3": 7, "d4": 8}, dict.fromkeys(("d1", "d2", "d3", "d4"), "pi")
    write_tallies(folder, samples, profiles, ["a", "b", "c"])
    return folder


def test_device_is_busy_in_its_visits_and_idle_one_is_listed(results) -> None:
    rows = {row["device"]: row for row in results.rows(DEVICES)}
    assert rows["d1"] == {
        "device": "d1",
        "profile": "pi",
        "samples": "5",
        "visits": "1",
        "lost": "1",
        "seconds": "10.0",
        "down": "101",
        "up": "52",
    }
    assert (rows["d4"]["visits"], rows["d4"]["seconds"], rows["d4"]["samples"]) == ("0", "0.0", "8")


def test_site_is_busy_from_first_to_last_visit_of_a_round(results) -> None:
    rows = {row["site"]: row for row in results.rows(SITES)}
    assert rows["a"] == {
        "site": "a",
        "devices": "2",
        "rounds": "2",
        "visits": "2",
        "lost": "1",
        "seconds": "15.0",
        "down": "301",
        "up": "102",
    }
    assert float(rows["b"]["seconds"]) == 2.0
    assert rows["c"]["visits"] == "0"


def lost(device: str, reason: str, status: str = "declined") -> dict[str, str]:
    return {"device": device, "status": status, "reason": reason}


def test_lost_visits_are_described_in_one_sentence() -> None:
    visits = [
        lost("device-1", "failed: dropped out"),
        lost("device-2", "data: device-2 has no samples"),
        lost("device-3", "data: device-3 has no samples"),
        lost("device-3", "", "lost"),
        *(lost(f"device-{at}", f"the loss went from 0.1 to 0.{at}", "refused") for at in range(4, 9)),
        lost("device-1", "", "done"),
    ]
    assert describe_losses(visits) == (
        "9 of 10 visits were lost: 5 refused, for instance: the loss went from 0.1 to 0.4 (5 devices); "
        "2 declined: it has no samples (device-2, device-3); 1 declined: dropped out (device-1); 1 lost (device-3)."
    )
    assert describe_losses(visits[-1:]) == ""


def test_flagged_visits_are_described_in_another_sentence() -> None:
    why = "would have been refused by the coordinator, because the loss went from 0.1 to 0.{at}"
    flags = [lost(f"device-{at}", why.format(at=at), "done") for at in (2, 3)]
    own = lost("device-4", "data: would have been refused by me", "done")
    assert describe_losses([*flags, own]) == (
        "The gate would have refused 2 of 3 visits: 2 would have been refused, for instance: by the coordinator, "
        "because the loss went from 0.1 to 0.2 (device-2, device-3)."
    )
