"""Real time by phase: phases of running code, and a table that adds up."""

from __future__ import annotations

import csv
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fleet_sim.console import time_by_phase
from fleet_sim.console.simulate_commands import simulate
from fleet_sim.console.simulating import time_rows
from fleet_sim.console.time_by_phase import (
    COMPILING,
    EVERY,
    OTHER,
    PHASES,
    VIEW,
    WAITING,
    PhaseLookup,
    PhaseSampler,
    PhaseSeconds,
    phase_at,
)

WORDS = ("--strategy", "fedavg", "--devices", "4", "--engine", "serial", "--split", "iid")
ROOT = Path(time_by_phase.__file__).resolve().parents[2]


@pytest.mark.parametrize("place", time_by_phase.PLACES)
def test_every_listed_code_place_exists(place: str) -> None:
    """Fails if a file moves without its entry in the phase table."""
    file, _, function = place.partition(":")
    assert (ROOT / file).exists()
    assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")
    assert time_by_phase.PLACES[place] in PHASES


def test_closest_place_determines_the_phase() -> None:
    assert phase_at("fleet_sim/world/checkpoint.py", "save") == time_by_phase.WRITING
    assert phase_at("fleet_sim/world/world.py", "run") == time_by_phase.MOVING
    assert phase_at("fleet_sim/world/virtual_fleet.py", "_outcome") == WAITING
    assert phase_at("fleet_sim/world/virtual_fleet.py", "start") == time_by_phase.MOVING
    assert phase_at("<frozen importlib._bootstrap>", "_find_and_load") == time_by_phase.LOADING
    assert phase_at("/usr/lib/python3.11/threading.py", "wait") is None


def test_library_calls_count_for_their_caller() -> None:
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
    assert found[1] == time_by_phase.EVALUATING


def test_phases_add_up_to_the_total_time() -> None:
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


def test_existing_timer_and_signal_handler_are_restored() -> None:
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


def test_profile_option_writes_the_time_per_phase(tmp_path: Path) -> None:
    words = [*WORDS, "--rounds", "2", "--epochs", "10", "--profile"]
    done = CliRunner().invoke(simulate, [*words, "--output", str(tmp_path / "a")], terminal_width=80)
    assert done.exit_code == 0, done.output
    with (tmp_path / "a" / "time.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["phase"] for row in rows] == [phase for phase in PHASES if phase in {row["phase"] for row in rows}]
    assert time_by_phase.TRAINING in {row["phase"] for row in rows}
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1.0)
    table = done.output[done.output.index("real time by phase") :]
    assert all(row["phase"] in table for row in rows)
    assert max(map(len, table.splitlines()[:-1])) <= 80
    assert "visits/" in done.output


def test_time_is_not_measured_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhaseSampler, "__enter__", lambda _self: pytest.fail("it measures"))
    words = [*WORDS, "--rounds", "1"]
    done = CliRunner().invoke(simulate, [*words, "--output", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "a" / "time.csv").exists()
