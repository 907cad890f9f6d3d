"""One visit's id through the logs of all roles, and a job tracked: real processes over a real Mosquitto."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.tracking.stores import empty_store, history_in, runs_in, scalars_in
from tests.live.live_fleet import LiveFleet, job_text

JSON = ("--log-format", "json")
DEVICES = ["pi-1", "pi-2", "pi-3", "pi-4"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """The coordinator logs JSON by its settings file, the other nodes by an option."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "mlflow.db").write_bytes(empty_store())
    settings = folder / "coordinator.toml"
    settings.write_text('log_format = "json"\n[tracking]\nmlflow = "mlflow.db"\ntensorboard = "tb"\n')
    running = LiveFleet(
        folder, {"e1": DEVICES}, own_brokers=False, flags=JSON, cloud_flags=(str(settings),), edge_flags={"e1": JSON}
    )
    yield running
    running.stop()


def lines_of(fleet: LiveFleet, name: str) -> list[dict[str, Any]]:
    """Return all lines of a node's log: each is a JSON object."""
    return [json.loads(line) for line in fleet.log(name).splitlines()]


def story(fleet: LiveFleet, visit: str) -> list[dict[str, Any]]:
    """Return what `grep '"VISIT"' *.log` finds."""
    return [
        json.loads(line) for name in fleet.commands for line in fleet.log(name).splitlines() if f'"{visit}"' in line
    ]


def test_visit_id_links_the_logs_of_all_roles(fleet) -> None:
    assert fleet.run(job_text("logged", 1), "logged").status == "done"
    for name in fleet.commands:
        for line in lines_of(fleet, name):
            assert list(line)[:5] == ["time", "level", "role", "node", "message"], line
            assert TIME.fullmatch(line["time"])
            assert line["node"] == name
    kept = [line for line in lines_of(fleet, "e1") if "kept the result of" in line["message"]]
    line = next(line for line in kept if line["round"] == 1 and not line["visit"].endswith("/1"))
    assert {key: line[key] for key in ("run", "site")} == {"run": "logged", "site": "e1"}
    assert line["visit"].startswith(f"{line['tour']}/")
    assert line["tour"].startswith("logged/1/")
    expected = [
        ("coordinator", "a visit is planned"),
        ("edge", f"sending the model to {line['device']}"),
        ("agent", "visit logged round 1"),
        ("agent", "training started"),
        ("agent", "starts logged"),
        ("agent", "has loaded graphs and data"),
        ("agent", "trained logged round 1"),
        ("agent", "result offered to e1"),
        ("edge", "has a result"),
        ("edge", "kept the result of"),
        ("agent", "result accepted"),
        ("coordinator", "visit done"),
    ]
    # The device may receive the acceptance after the job has ended.
    fleet.wait(lambda: len(story(fleet, line["visit"])) >= len(expected), "the whole story of a visit")
    lines = story(fleet, line["visit"])
    times = {}
    for role, words in expected:
        (found,) = [it for it in lines if it["role"] == role and words in it["message"]]
        times[words] = found["time"]
    accepted = times.pop("result accepted")
    assert accepted >= times["kept the result of"], lines
    # Each role logs before it sends what the next one acts on.
    assert list(times.values()) == sorted(times.values()), lines
    assert len(lines) == len(expected), lines
    runs = [line for line in lines_of(fleet, "cloud") if line.get("run") == "logged"]
    assert [it["round"] for it in runs if "accuracy" in it["message"]] == [1]
    assert all(it["device"] == "pi-1" for it in lines_of(fleet, "pi-1"))


def in_mlflow(database: Path, what: str) -> list[Any]:
    """Read the job's run from MLflow's database; without a lock, which could collide with the writer's."""
    question = f"select {what} join tags using (run_uuid) where tags.key = 'job' and tags.value = 'tracked'"
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)) as found:
            return found.execute(question).fetchall()
    except sqlite3.DatabaseError:
        return []  # it is being written


def test_job_is_one_run_per_store_despite_coordinator_kill(fleet) -> None:
    fleet.submit(job_text("tracked", 3))
    database = fleet.folder / "mlflow.db"
    fleet.wait_for("cloud", "job tracked round 1: accuracy")
    fleet.pause("e1")
    # The process that writes it has a low priority; one that has just begun would run next to the new one.
    fleet.wait(lambda: in_mlflow(database, "step from metrics"), "the first round in MLflow")
    fleet.kill("cloud")
    fleet.start("cloud")
    fleet.resume("e1")
    assert fleet.finish("tracked").status == "done"
    fleet.wait(lambda: in_mlflow(database, "status from runs") == [("FINISHED",)], "the end of the run in MLflow")
    assert fleet.interrupt("cloud") == 0
    run = next(it for it in runs_in(database) if it.data.tags["job"] == "tracked")
    assert run.info.status == "FINISHED"
    assert run.data.tags["kind"] == "live"
    assert [step for step, _ in history_in(database, run)] == [1, 2, 3]
    (events,) = (fleet.folder / "tb").glob("tracked-*")
    assert scalars_in(events) == [(step, round(value, 6)) for step, value in history_in(database, run)]
    assert not [line for line in lines_of(fleet, "cloud") if "tracking" in line["message"]]
