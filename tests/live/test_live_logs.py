"""One visit's id through the logs of all roles: real processes, which write JSON, over a real Mosquitto."""

from __future__ import annotations

import json
import re

import pytest

from tests.live.live_fleet import LiveFleet, job_text

JSON = ("--log-format", "json")
DEVICES = ["pi-1", "pi-2", "pi-3", "pi-4"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.setenv("SOJOURN_LOG_FORMAT", "plain")
    running = LiveFleet(tmp_path, {"e1": DEVICES}, own_brokers=False, flags=JSON, cloud_flags=JSON, edge_flags=JSON)
    yield running
    running.stop()


def lines_of(fleet: LiveFleet, name: str) -> list[dict]:
    """All lines of a node's log: each is an object, whatever is said in it."""
    return [json.loads(line) for line in fleet.log(name).splitlines()]


def story(fleet: LiveFleet, visit: str) -> list[dict]:
    """What `grep '"VISIT"' *.log` finds."""
    return [
        json.loads(line) for name in fleet.commands for line in fleet.log(name).splitlines() if f'"{visit}"' in line
    ]


def test_one_id_tells_the_story_of_a_visit(fleet) -> None:
    assert fleet.run(job_text("logged", 1), "logged").status == "done"
    for name in fleet.commands:
        for line in lines_of(fleet, name):
            assert list(line)[:5] == ["time", "level", "role", "node", "message"], line
            assert TIME.fullmatch(line["time"])
            assert line["node"] == name
    kept = [line for line in lines_of(fleet, "e1") if "is kept" in line["message"]]
    line = next(line for line in kept if line["round"] == 1 and not line["visit"].endswith("/0"))
    assert {key: line[key] for key in ("run", "site")} == {"run": "logged", "site": "e1"}
    assert line["visit"].startswith(f"{line['tour']}/")
    assert line["tour"].startswith("logged/1/")
    told = story(fleet, line["visit"])
    expected = [
        ("coordinator", "a visit is planned"),
        ("edge", f"the model goes to {line['device']}"),
        ("agent", "visit logged round 1"),
        ("agent", "it is trained now"),
        ("agent", "is given"),
        ("agent", "has begun"),
        ("agent", "trained logged round 1"),
        ("agent", "its result is offered to e1"),
        ("edge", "has a result"),
        ("edge", "is kept: norm"),
        ("agent", "is accepted"),
        ("coordinator", "visit done"),
    ]
    times = []
    for role, words in expected:
        (found,) = [it for it in told if it["role"] == role and words in it["message"]]
        times.append(found["time"])
    assert times == sorted(times), told  # each role writes its line before it sends what the next one acts on
    assert len(told) == len(expected), told
    runs = [line for line in lines_of(fleet, "cloud") if line.get("run") == "logged"]
    assert [it["round"] for it in runs if "accuracy" in it["message"]] == [1]
    assert all(it["device"] == "pi-1" for it in lines_of(fleet, "pi-1"))
