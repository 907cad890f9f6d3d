"""In a simulation, models of rounds are tested beside the training, and nothing else changes."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from coordinator.machine.work import CoordinatorWorker, ExportModel
from coordinator.records import RoundClosed, RoundMeasured
from coordinator.rounds.closing import PassLeg
from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.results import CloseRound
from coordinator.state import JobState
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world import virtual_fleet
from fleet_sim.world.measuring import MeasuringBeside
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.node.machine import Did, DidNot
from sojourn.node.workers import attempt
from sojourn.protocol.messages import Stop
from tests.waiting import LIMIT

TEXT = """
strategy = "visit"
rounds = 4
threads = 1
model = { name = "mlp", options = { hidden = [16] } }
training = { epochs = 1, batch = 64 }
simulation = { devices = 4, sites = 2, engine = "serial" }
"""
STATE = JobState("job", "")
FIRST = MeasureRound("job", 1, None, None, None)
MEASURED = RoundMeasured("job", 1, 0.5, 1.0)


class Slow:
    """Work of which tests take until somebody lets them go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, work: Any) -> Any:
        if isinstance(work, MeasureRound):
            assert self.go.wait(LIMIT)
            return MEASURED
        return type(work).__name__


def test_a_test_is_reported_right_before_the_next_round_is_closed() -> None:
    slow, heard = Slow(), list[Any]()
    workers = MeasuringBeside(slow)
    workers.start("measure job", FIRST, heard.append)
    assert workers.found("job", 1) is None
    workers.start("pass job", PassLeg(STATE), heard.append)
    estimate = msgspec.structs.replace(STATE, phase="estimate")
    workers.start("close job", CloseRound(estimate, 1.0, 0), heard.append)
    assert [event.outcome for event in heard] == ["PassLeg", "CloseRound"]  # no figures are needed for these
    slow.go.set()
    workers.start("close job", CloseRound(STATE, 1.0, 0), heard.append)
    assert heard[2:] == [Did("measure job", MEASURED), Did("close job", "CloseRound")]
    assert not workers.settle()
    workers.close()


def test_what_is_found_can_be_looked_at_before_it_is_reported() -> None:
    slow, heard = Slow(), list[Any]()
    slow.go.set()
    workers = MeasuringBeside(slow)
    workers.start("measure job", FIRST, heard.append)
    workers._tests["measure job"][1].result()
    assert (workers.found("job", 1), workers.found("job", 2), workers.found("other", 1)) == (MEASURED, None, None)
    assert heard == []
    assert workers.settle()
    assert heard == [Did("measure job", MEASURED)]
    assert workers.found("job", 1) is None
    workers.close()


def test_a_test_that_fails_is_reported_and_one_that_is_not_wanted_is_not() -> None:
    def fails(_work: Any) -> Any:
        raise ValueError("no graph")

    heard = list[Any]()
    workers = MeasuringBeside(fails)
    workers.start("measure job", FIRST, heard.append)
    workers.settle()
    assert heard == [DidNot("measure job", "Fault", "ValueError: no graph")]
    workers.start("measure job", FIRST, heard.append)
    workers.stop("measure job")
    assert not workers.settle()
    workers.close()


class TestedAtOnce(MeasuringBeside):
    """As a coordinator with one thread would do it."""

    __test__ = False

    def start(self, key, work, report) -> None:
        if isinstance(work, MeasureRound):
            report(attempt(key, work, self._perform))
        else:
            super().start(key, work, report)


def run(folder, *, at_once=False, **changes) -> tuple[SimulationRun, list[Any], list[list[dict[str, str]]]]:
    """A simulation, the records that its coordinator wrote, and its tables."""
    found = list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        if at_once:
            patch.setattr(virtual_fleet, "MeasuringBeside", TestedAtOnce)
        running = SimulationRun(read_simulation(TEXT, "a test", changes), folder)
        running.fleet.nodes[CLOUD].node.on_record(found.append)
        for _ in running.courses():
            pass
        running.close()
    return running, found, [running.results.rows(name) for name in ("rounds.csv", "visits.csv")]


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    return run(tmp_path_factory.mktemp("beside") / "out")


def test_the_same_records_in_every_run(beside, tmp_path) -> None:
    again = run(tmp_path / "out")
    assert [type(it) for it in again[1]] == [type(it) for it in beside[1]]
    figures = [[it for it in found if isinstance(it, RoundMeasured)] for found in (again[1], beside[1])]
    assert figures[0] == figures[1]
    kinds = [type(it) for it in beside[1] if isinstance(it, RoundClosed | RoundMeasured)]
    assert kinds == [RoundClosed, *[RoundMeasured, RoundClosed] * 3]
    assert again[2] == beside[2]


@pytest.mark.parametrize("strategy", ["visit", "fedavg", "scaffold", "fedseq-inter"])
def test_the_same_models_and_tables_as_if_each_were_tested_at_once(strategy, tmp_path) -> None:
    (one, _, tables), (other, _, others) = (
        run(tmp_path / str(at_once), at_once=at_once, strategy=strategy) for at_once in (False, True)
    )
    states = [it.fleet.job(it.name) for it in (one, other)]
    assert states[0].vectors == states[1].vectors
    assert states[0].kept == states[1].kept
    assert tables == others
    assert [row["round"] for row in tables[0]] == ["1", "2", "3", "4"]


def test_with_a_target_every_round_is_tested_before_the_next_is_planned(tmp_path) -> None:
    running, found, (rounds, _) = run(tmp_path / "out", target=0.3)
    assert not any(isinstance(it, RoundMeasured) for it in found)
    assert running.fleet.job(running.name).status == "done"
    assert float(rounds[-1]["accuracy"]) >= 0.3


def test_a_job_that_is_stopped_has_the_figures_of_its_last_round(tmp_path) -> None:
    running = SimulationRun(read_simulation(TEXT, "a test"), tmp_path / "out")
    job = running.fleet.job(running.name)
    running.fleet.world.run(lambda: len(job.history) == 2, 1e6)
    assert job.unmeasured
    running.fleet.ask(Stop("stop", running.name))
    *_, last = running.courses()
    running.close()
    assert last.view.status == "stopped"
    assert not running.fleet.job(running.name).unmeasured
    assert [row["accuracy"] for row in running.results.rows("rounds.csv")] == [str(it.accuracy) for it in job.history]
    assert last.view.accuracy == job.history[-1].accuracy


def test_a_model_that_is_exported_meanwhile_has_its_accuracy(tmp_path) -> None:
    running = SimulationRun(read_simulation(TEXT, "a test"), tmp_path / "out")
    fleet, job = running.fleet, running.fleet.job(running.name)
    fleet.world.run(lambda: len(job.history) == 1, 1e6)
    assert job.unmeasured
    made = CoordinatorWorker(fleet.stores[CLOUD].blobs)(ExportModel("ticket", "operator", job.copy(), 1))
    fleet.settle()
    running.close()
    assert made.accuracy == job.history[0].accuracy
