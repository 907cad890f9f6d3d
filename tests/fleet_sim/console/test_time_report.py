"""Where a simulation's time went: phases by the code that runs, and a table that adds up."""

from __future__ import annotations

import csv
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fleet_sim.console import phases
from fleet_sim.console.phase_sampler import EVERY, PhaseSampler, PhaseSeconds
from fleet_sim.console.phases import COMPILING, OTHER, PHASES, VIEW, WAITING, PhaseLookup, phase_at
from fleet_sim.console.simulate_commands import simulate
from fleet_sim.console.time_report import time_rows

WORDS = ("--strategy", "fedavg", "--devices", "4", "--engine", "serial", "--split", "iid")
ROOT = Path(phases.__file__).resolve().parents[2]


@pytest.mark.parametrize("place", phases.PLACES)
def test_every_place_is_there(place: str) -> None:
    """A file that moves takes its phase along, or this fails."""
    file, _, function = place.partition(":")
    assert (ROOT / file).exists()
    assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")
    assert phases.PLACES[place] in PHASES


def test_the_closest_place_counts() -> None:
    assert phase_at("fleet_sim/world/checkpoint.py", "save") == phases.WRITING
    assert phase_at("fleet_sim/world/world.py", "run") == phases.MOVING
    assert phase_at("fleet_sim/world/engine_training.py", "_outcome") == WAITING
    assert phase_at("fleet_sim/world/engine_training.py", "start") == phases.MOVING
    assert phase_at("<frozen importlib._bootstrap>", "_find_and_load") == phases.LOADING
    assert phase_at("/usr/lib/python3.11/threading.py", "wait") is None


def test_what_a_library_does_is_its_callers() -> None:
    found = []

    def key(_each: int) -> int:
        found.append(PhaseLookup().of(sys._getframe()))
        return 0

    sorted([1], key=key)
    assert found == [OTHER]
    code = compile("def call(what): what()", str(ROOT / "coordinator" / "rounds" / "evaluation.py"), "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    space["call"](lambda: sorted([1], key=key))
    assert found[1] == phases.EVALUATING


def test_the_phases_add_up_to_all_that_passed() -> None:
    sampler = PhaseSampler()
    sampler.count(COMPILING, 5.0, 0.5)
    sampler.count(WAITING, 15.0, 1.5)
    sampler.count(VIEW, 16.0, 2.0)
    sampler.count(OTHER, 20.0, 4.0)
    sampler.compiler, sampler.workers = 4.0, 18.0
    assert sampler.total == PhaseSeconds(20.0, 4.0)
    assert time_rows(sampler) == [
        (COMPILING, 5.0, 0.25, 0.5, 4.0),
        (WAITING, 10.0, 0.5, 1.0, 18.0),
        (VIEW, 1.0, 0.05, 0.5, 0.0),
        (OTHER, 4.0, 0.2, 2.0, 0.0),
    ]


def test_others_timer_and_signal_are_as_before() -> None:
    def mine(_signal: int, _frame: object) -> None:
        pass

    before, timer = signal.signal(signal.SIGALRM, mine), signal.setitimer(signal.ITIMER_REAL, 500.0)
    try:
        with PhaseSampler() as sampler:
            assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(EVERY)
        assert signal.getsignal(signal.SIGALRM) is mine
        assert 400.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500.0
        assert sampler.total.passed > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def test_a_simulation_tells_where_its_time_went(tmp_path: Path) -> None:
    words = [*WORDS, "--rounds", "2", "--epochs", "10", "--profile"]
    done = CliRunner().invoke(simulate, [*words, "--output", str(tmp_path / "a")], terminal_width=80)
    assert done.exit_code == 0, done.output
    with (tmp_path / "a" / "time.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["phase"] for row in rows] == [phase for phase in PHASES if phase in {row["phase"] for row in rows}]
    assert phases.TRAINING in {row["phase"] for row in rows}
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1.0)
    table = done.output[done.output.index("where the time went") :]
    assert all(row["phase"] in table for row in rows)
    assert max(map(len, table.splitlines()[:-1])) <= 80
    assert "visits/" in done.output


def test_nothing_is_measured_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhaseSampler, "__enter__", lambda _self: pytest.fail("it measures"))
    words = [*WORDS, "--rounds", "1"]
    done = CliRunner().invoke(simulate, [*words, "--output", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "a" / "time.csv").exists()
