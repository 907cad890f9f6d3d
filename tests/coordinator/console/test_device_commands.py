"""The commands `sojourn fleet status | show | history` and `sojourn job visits` on a real coordinator machine."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from coordinator.admin.fleet_commands import app as fleet_app
from coordinator.console import job_commands, options
from coordinator.console.dates import age
from coordinator.console.fleet_tables import CSV_COLUMNS
from coordinator.console.strategy_commands import app as strategy_app
from sojourn.errors import ConfigError, JobError, MachineError
from tests.coordinator.console.test_operator import FakeLink, operator
from tests.coordinator.machine.cloud_bench import OPERATOR
from tests.coordinator.machine.test_fleet_requests import visited
from tests.sojourn.store.replays import sends

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer import Typer

    from sojourn.protocol.registry import Message

LONG = (
    "data: the labels in column 'kind' are no classes of the job. "
    + "word " * 60
    + "To do: name the column with --label."
)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], list[Message]]], None]:
    """Connect commands to a function that answers their requests."""

    def connect(answer: Callable[[Any], list[Message]]) -> None:
        monkeypatch.setattr(options, "_connection", lambda **_given: operator(FakeLink(answer)))

    monkeypatch.setenv("COLUMNS", "80")
    return connect


@pytest.fixture
def fleet(connect) -> None:
    bench = visited({"b": f"\x1b[31m={LONG}"})
    bench.join("s2", (), revision=2, now=90.0)
    connect(lambda question: sends(bench.cloud.handle(_received(question), 4000.0)))


def _received(question: Any) -> Any:
    from sojourn.node.machine import Received
    from tests.coordinator.machine.cloud_bench import BOOT

    return Received(OPERATOR, BOOT, question)


def run(app: Typer, *given: str) -> str:
    done = CliRunner().invoke(app, list(given))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.usefixtures("fleet")
def test_status_lists_online_and_offline_devices_with_ages() -> None:
    output = run(fleet_app, "status").splitlines()
    assert output[0] == "2 devices: 1 online, 1 offline"
    assert output[2].split() == [
        "a",
        "online",
        "1",
        "h",
        "s1",
        "1",
        "1",
        "job",
        "round",
        "1,",
        "done,",
        "1",
        "h",
        "ago",
    ]
    assert output[3].split()[:5] == ["b", "offline", "1", "h", "s2"]
    assert max(len(line) for line in output) <= 80


@pytest.mark.usefixtures("fleet")
def test_show_prints_all_device_details_within_80_columns() -> None:
    output = run(fleet_app, "show", "a")
    assert "machine     m" in output
    assert "objectives  sgd" in output
    gone = run(fleet_app, "show", "b")
    assert LONG in " ".join(gone.replace("│", " ").split())
    assert "known only while it is online" in gone
    assert "offline" in gone
    assert "\x1b[31m=" not in gone
    assert max(len(line) for line in gone.splitlines()) <= 80


@pytest.mark.usefixtures("fleet")
def test_history_is_in_chronological_order() -> None:
    output = run(fleet_app, "history", "--device", "b")
    rows = [line.split() for line in output.splitlines()[1:] if line.startswith("20")]
    assert [row[3] for row in rows] == ["online", "declined", "offline"]


@pytest.mark.usefixtures("fleet")
def test_json_output_is_complete() -> None:
    devices = json.loads(run(fleet_app, "status", "--json"))
    assert [(it["device"], it["online"]) for it in devices] == [("a", True), ("b", False)]
    shown = json.loads(run(fleet_app, "show", "b", "--json"))
    assert shown["device"]["failed"] == 1
    assert shown["visits"][0]["reason"] == f"={LONG}"
    history = json.loads(run(fleet_app, "history", "--json", "--last", "1"))
    assert (len(history["visits"]), len(history["changes"])) == (1, 1)
    assert history["changes"][0]["event"] == "offline"
    assert [it["device"] for it in json.loads(run(job_commands.app, "visits", "job", "--json"))] == ["a", "b"]
    assert json.loads(run(job_commands.app, "list", "--json"))[0]["job"] == "job"
    assert json.loads(run(job_commands.app, "status", "job", "--json"))["history"][0]["round"] == 1
    strategies = json.loads(run(strategy_app, "--json"))
    assert "visit" in [it["strategy"] for it in strategies]
    assert json.loads(run(strategy_app, "show", "visit", "--json"))["arranger"]["name"] == "visit"


@pytest.mark.usefixtures("fleet")
def test_visits_print_as_table_and_csv(tmp_path: Path) -> None:
    output = run(job_commands.app, "visits", "job")
    assert f"b (round 1): declined, ={LONG}" in words(output)
    assert max(len(line) for line in output.splitlines()) <= 80
    assert "declined" not in run(job_commands.app, "visits", "job", "--device", "a")
    file = tmp_path / "visits.csv"
    assert run(job_commands.app, "visits", "job", "--csv", str(file)) == f"{file}: 2 visits\n"
    written = file.read_text()
    assert run(job_commands.app, "visits", "job", "--csv", "-").splitlines() == written.splitlines()
    rows = list(csv.DictReader(io.StringIO(written)))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert (rows[0]["device"], rows[0]["at"], rows[0]["loss"]) == ("a", "2026-09-21T14:14:20+00:00", "0.75")
    assert (rows[1]["status"], rows[1]["reason"]) == ("declined", f"'={LONG}")  # no formula for a spreadsheet
    failed = list(csv.DictReader(io.StringIO(run(job_commands.app, "visits", "job", "--failed", "--csv", "-"))))
    assert [row["device"] for row in failed] == ["b"]
    with pytest.raises(ConfigError, match="--csv or --json"):
        run(job_commands.app, "visits", "job", "--csv", "-", "--json")
    with pytest.raises(MachineError, match="cannot be written"):
        run(job_commands.app, "visits", "job", "--csv", str(tmp_path / "no" / "x.csv"))


@pytest.mark.usefixtures("fleet")
def test_unknown_name_suggests_nearest() -> None:
    with pytest.raises(JobError, match="no device 'bb' has ever connected; did you mean 'b'"):
        run(fleet_app, "show", "bb")
    with pytest.raises(JobError, match="there is no job 'jobs'; the jobs are: job"):
        run(job_commands.app, "visits", "jobs")


def test_job_lists_every_failure_with_its_rounds(connect) -> None:
    bench = visited()
    state = bench.cloud.state.jobs["job"]
    report = msgspec.structs.replace(state.history[0], failures=(f"b: declined, {LONG}",))
    state.history = [msgspec.structs.replace(report, round=number) for number in (1, 2, 3, 5)]
    state.unestimated = ("c: not estimated: declined, hot",)
    state.fleet, state.taken, state.counted_rounds = dict.fromkeys("abd"), {"a": 4, "b": 1}, 4
    connect(lambda question: sends(bench.cloud.handle(_received(question), 100.0)))
    output = run(job_commands.app, "status", "job")
    assert f"b: declined, {LONG} (round 1 to 3, 5)" in words(output)
    assert "c: not estimated: declined, hot" in output
    assert "selected in every round so far: a" in output
    assert "online, but not selected in any round so far: d" in output
    assert max(len(line) for line in output.splitlines()) <= 80


@pytest.mark.parametrize(("seconds", "text"), [(-5, "0 s"), (59, "59 s"), (61, "1 min"), (7300, "2 h"), (2e6, "23 d")])
def test_age_is_formatted(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_forget_asks_before_dropping_offline_device(fleet: None) -> None:
    run = CliRunner().invoke
    asked = run(fleet_app, ["forget", "b"], input="n\n")
    assert "Forget device b (offline for 1 h, 0 successful visits)?" in asked.output
    assert (asked.exit_code, asked.output.splitlines()[-1]) == (1, "b was not forgotten")
    done = run(fleet_app, ["forget", "b", "--yes"])
    assert (done.exit_code, done.output) == (0, "b is forgotten; its visits remain in the tables of their jobs\n")
    assert run(fleet_app, ["status"]).output.startswith("1 device: 1 online, 0 offline")
    refused = run(fleet_app, ["forget", "a", "--yes"])
    assert isinstance(refused.exception, JobError)
    assert "stop its agent first" in str(refused.exception)
