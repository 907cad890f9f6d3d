"""Job commands over a real Mosquitto: watch through a restart, continue, export, report, start from a job."""

from __future__ import annotations

import csv
import re
import tomllib

import numpy as np
import pytest

from tests.forked import Forked, run, sojourn
from tests.live.live_fleet import FLEET, LiveFleet, compile_here
from tests.there import there
from tests.waiting import LIMIT

QUICK = "[training]\nepochs = 1\n"
KEEP = "[keep]\nlast = 2\nevery = 0\n"


def text(name: str, rounds: int, more: str = QUICK) -> str:
    model = "[model]\noptions = { hidden = [8] }\n[data]\ntest = 'digits'\n[fleet]\ndevices = 2\n"
    return f"name = '{name}'\nstrategy = 'scaffold'\nrounds = {rounds}\nthreads = 1\n{model}{more}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "cloud.toml").write_text(KEEP)
    live = LiveFleet(folder, {"edge-1": ["pi-1", "pi-2"]}, own_brokers=False, cloud_flags=(str(folder / "cloud.toml"),))
    yield live
    live.stop()


@pytest.fixture(scope="module")
def flags(fleet):
    return ("--broker", fleet._address("cloud"), "--fleet", FLEET)


@pytest.fixture(scope="module")
def continued(fleet, flags):
    """Run a job of three rounds and continue it with two more, and run one of five."""
    fleet.run(text("whole", 5), "whole")
    fleet.run(text("short", 3), "short")
    refused = run("job", "continue", "short", "--rounds", "3", *flags)
    assert refused.returncode == 2
    assert "has completed 3 of 3 rounds: set the total with --rounds" in refused.stderr
    output = sojourn("job", "continue", "short", "--rounds", "5", *flags)
    assert "3 of 5 rounds are done" in output
    assert f"To watch it: sojourn job watch short --broker {flags[1]} --fleet {FLEET}\n" in output
    fleet.finish("short")


def test_continued_job_equals_longer_job_bit_for_bit(fleet, continued) -> None:
    assert np.array_equal(fleet.model("short"), fleet.model("whole"))


def test_kept_round_models_can_be_exported(fleet, flags, continued, tmp_path) -> None:
    status = sojourn("job", "status", "short", *flags)
    kept, best = there(re.search(r"stored models: round ([0-9, to]+); the best is (\d) ", status)).groups()
    assert kept.endswith(("4, 5", " to 5"))
    assert re.search(r"submitted \d{4}-\d\d-\d\d \d\d:\d\d, ended .*, took ", status)
    assert f"short-{best}.onnx: round {best}, " in sojourn("job", "export", "short", "--best", *flags, folder=tmp_path)
    gone = next(number for number in (1, 2, 3) if str(number) != best)
    refused = run("job", "export", "short", "--round", str(gone), *flags, folder=tmp_path)
    assert f"round {gone} of job 'short' is not stored; stored:" in refused.stderr


def test_report_folder_matches_simulation_folder(fleet, flags, continued, tmp_path) -> None:
    output = sojourn("job", "report", "short", "-o", "out", *flags, folder=tmp_path)
    assert "out: 5 rounds" in output
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files >= {"report.html", "rounds.csv", "visits.csv", "config.toml", "accuracy.png", "model.onnx"}
    with (tmp_path / "out" / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    clocks = [float(row["clock"]) for row in rows]
    assert len(rows) == 5
    assert clocks == sorted(clocks)
    assert tomllib.loads((tmp_path / "out" / "config.toml").read_text())["rounds"] == 5
    again = run("job", "report", "short", "-o", "out", *flags, folder=tmp_path)
    assert "out already exists" in again.stderr


def test_job_report_reads_a_model_given_by_name(fleet, flags, tmp_path) -> None:
    fleet.run(text("by-name", 1).replace("[model]\noptions = { hidden = [8] }", "model = 'mlp'"), "by-name")
    assert "out: 1 round," in sojourn("job", "report", "by-name", "-o", "out", *flags, folder=tmp_path)
    assert "model mlp" in (tmp_path / "out" / "report.html").read_text()


def test_job_starts_from_model_of_earlier_job(fleet, flags, continued, tmp_path) -> None:
    (tmp_path / "next.toml").write_text(text("next", 1))
    compile_here(text("next", 1))
    sojourn("job", "submit", "next.toml", "--start-from", "short@4", "--watch", *flags, folder=tmp_path)
    with fleet.operator() as operator:
        first, fourth = operator.job("next").history[0], operator.job("short").history[3]
    assert first.accuracy > fourth.accuracy - 0.2


def test_watch_reports_silent_coordinator_and_resumes(fleet, flags, tmp_path) -> None:
    fleet.pause("pi-1")  # the job cannot end before the watcher has seen all of this
    fleet.submit(text("watched", 2, f"{QUICK}[tours]\nlease = 600.0\n"))
    fleet.wait_for("cloud", "job watched round 1: ")
    watcher = Forked(["job", "watch", "watched", *flags], log := tmp_path / "watch.log")
    fleet.wait(lambda: "job watched: running" in log.read_text(), "the watcher")
    fleet.kill("cloud")
    fleet.wait(lambda: "no answer from the coordinator since" in log.read_text(), "a word about the silence")
    fleet.start("cloud")
    fleet.wait(lambda: "the coordinator answers again" in log.read_text(), "the end of the silence")
    fleet.resume("pi-1")
    assert watcher.wait() == 0
    assert "job watched: done" in log.read_text()


def test_removed_job_leaves_no_files(fleet, flags, continued) -> None:
    """Runs last: the job is gone."""
    asked = run("job", "remove", "whole", *flags, typed="n\n")
    assert (asked.returncode, "whole was not removed" in asked.stdout) == (1, True)
    same = sojourn("job", "remove", "whole", "--yes", *flags)
    assert "job whole (done, 5 rounds, accuracy" in same
    assert "no file is deleted: other jobs use all of its files" in same
    assert "whole" not in sojourn("job", "list", *flags)
    assert "there is no job 'whole'" in run("job", "status", "whole", *flags).stderr
    gone = sojourn("job", "remove", "short", "--yes", *flags)
    assert re.search(r" is removed: [1-9][0-9]* files \([0-9,]{4,} bytes\) are deleted within a minute", gone)


def test_impossible_job_fails_despite_coordinator_restarts(fleet, flags, tmp_path) -> None:
    def view():
        with fleet.operator() as operator:
            return operator.job("power", timeout=LIMIT)

    def ended_or(start: str):
        return lambda: (it := view()).status in ("failed", "refused") or it.detail.startswith(start)

    file, right = tmp_path / "power.toml", text("power", 2).replace("scaffold", "fedavg")
    file.write_text(right.replace("'digits'", "'lost.npz'"))
    refused = run("job", "submit", str(file), *flags)
    assert refused.returncode != 0
    assert "data.test: the coordinator's machine has no file or folder" in refused.stderr
    file.write_text(right.replace("test = 'digits'", "classes = ['x', 'y']\ninput = [3]"))
    fleet.wait_for_devices("pi-1", "pi-2")
    sojourn("job", "submit", str(file), *flags)
    for attempt in (1, 2):
        reason = f"attempt {attempt} of 3 at round 1 had no result: no device could train: pi-1: "
        fleet.wait(ended_or(reason), f"attempt {attempt}")
        fleet.kill("cloud")
        fleet.start("cloud")
    fleet.wait(ended_or("never"), "the job's end")
    assert (view().status, view().round) == ("failed", 0)
    assert view().detail.startswith(
        "3 attempts at round 1 had no result; in the last one, no device could train: pi-1: "
    )
    for command in (("watch", "power"), ("export", "power")):
        ended = run("job", *command, *flags)
        assert ended.returncode != 0
        assert "3 attempts at round 1 had no result" in ended.stderr
    file.write_text(right)
    assert "round 2/2 " in sojourn("job", "submit", str(file), "--watch", *flags)
