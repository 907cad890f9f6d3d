"""Simulations evaluate models of rounds in parallel to the training, and nothing else changes."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from coordinator.job_state import JobState
from coordinator.machine.work import CoordinatorWorker, ExportModel
from coordinator.records import RoundClosed, RoundMeasured
from coordinator.rounds.closing import PassLeg
from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.results import CloseRound
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world import virtual_fleet
from fleet_sim.world.memory_fleet import CLOUD
from fleet_sim.world.virtual_fleet import ConcurrentMeasuring
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.node.workers import attempt
from sojourn.protocol.operator_messages import Stop
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
    """Work whose evaluations block until a test releases them."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, work: Any) -> Any:
        if isinstance(work, MeasureRound):
            assert self.go.wait(LIMIT)
            return MEASURED
        return type(work).__name__


def test_evaluation_is_reported_before_the_next_round_closes() -> None:
    slow, received = Slow(), list[Any]()
    workers = ConcurrentMeasuring(slow)
    workers.start("measure job", FIRST, received.append)
    assert workers.found("job", 1) is None
    workers.start("pass job", PassLeg(STATE), received.append)
    estimate = msgspec.structs.replace(STATE, phase="estimate")
    workers.start("close job", CloseRound(estimate, 1.0, 0), received.append)
    assert [event.outcome for event in received] == ["PassLeg", "CloseRound"]  # these need no metrics
    slow.go.set()
    workers.start("close job", CloseRound(STATE, 1.0, 0), received.append)
    assert received[2:] == [WorkDone("measure job", MEASURED), WorkDone("close job", "CloseRound")]
    assert not workers.settle()
    workers.close()


def test_finished_evaluation_is_readable_before_its_report() -> None:
    slow, received = Slow(), list[Any]()
    slow.go.set()
    workers = ConcurrentMeasuring(slow)
    workers.start("measure job", FIRST, received.append)
    workers._tests["measure job"][1].result()
    assert (workers.found("job", 1), workers.found("job", 2), workers.found("other", 1)) == (MEASURED, None, None)
    assert received == []
    assert workers.settle()
    assert received == [WorkDone("measure job", MEASURED)]
    assert workers.found("job", 1) is None
    workers.close()


def test_failed_evaluation_is_reported_and_stopped_one_is_not() -> None:
    def fails(_work: Any) -> Any:
        raise ValueError("no graph")

    received = list[Any]()
    workers = ConcurrentMeasuring(fails)
    workers.start("measure job", FIRST, received.append)
    workers.settle()
    assert received == [WorkFailed("measure job", "failed", "ValueError: no graph")]
    workers.start("measure job", FIRST, received.append)
    workers.stop("measure job")
    assert not workers.settle()
    workers.close()


class TestedAtOnce(ConcurrentMeasuring):
    """Evaluates immediately, like a coordinator with one thread."""

    __test__ = False

    def start(self, key, work, report) -> None:
        if isinstance(work, MeasureRound):
            report(attempt(key, work, self._perform))
        else:
            super().start(key, work, report)


def run(folder, *, at_once=False, **changes) -> tuple[SimulationRun, list[Any], list[list[dict[str, str]]]]:
    """Run a simulation; return its coordinator's records, and its tables."""
    found = list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        if at_once:
            patch.setattr(virtual_fleet, "ConcurrentMeasuring", TestedAtOnce)
        running = SimulationRun(read_simulation(TEXT, "a test", changes), folder)
        running.fleet.nodes[CLOUD].node.on_record(found.append)
        for _ in running.courses():
            pass
        running.close()
    return running, found, [running.results.rows(name) for name in ("rounds.csv", "visits.csv")]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    return run(tmp_path_factory.mktemp("parallel") / "out")


def test_every_run_gives_the_same_records(first_run, tmp_path) -> None:
    again = run(tmp_path / "out")
    assert [type(it) for it in again[1]] == [type(it) for it in first_run[1]]
    metrics = [[it for it in found if isinstance(it, RoundMeasured)] for found in (again[1], first_run[1])]
    assert metrics[0] == metrics[1]
    kinds = [type(it) for it in first_run[1] if isinstance(it, RoundClosed | RoundMeasured)]
    assert kinds == [RoundClosed, *[RoundMeasured, RoundClosed] * 3]
    assert again[2] == first_run[2]


@pytest.mark.parametrize("strategy", ["visit", "fedavg", "scaffold", "fedseq-inter"])
def test_background_evaluation_equals_immediate_evaluation(strategy, tmp_path) -> None:
    (one, _, tables), (other, _, others) = (
        run(tmp_path / str(at_once), at_once=at_once, strategy=strategy) for at_once in (False, True)
    )
    states = [it.fleet.job(it.name) for it in (one, other)]
    assert states[0].vectors == states[1].vectors
    assert states[0].kept == states[1].kept
    assert tables == others
    assert [row["round"] for row in tables[0]] == ["1", "2", "3", "4"]


def test_target_accuracy_evaluates_before_planning_a_round(tmp_path) -> None:
    running, found, (rounds, _) = run(tmp_path / "out", target=0.3)
    assert not any(isinstance(it, RoundMeasured) for it in found)
    assert running.fleet.job(running.name).status == "done"
    assert float(rounds[-1]["accuracy"]) >= 0.3


def test_stopped_job_has_the_metrics_of_its_last_round(tmp_path) -> None:
    running = SimulationRun(read_simulation(TEXT, "a test"), tmp_path / "out")
    job = running.fleet.job(running.name)
    running.fleet.world.run(lambda: len(job.history) == 2, 1e6)
    assert job.evaluation_pending
    running.fleet.ask(Stop("stop", running.name))
    *_, last = running.courses()
    running.close()
    assert last.view.status == "stopped"
    assert not running.fleet.job(running.name).evaluation_pending
    assert [row["accuracy"] for row in running.results.rows("rounds.csv")] == [str(it.accuracy) for it in job.history]
    assert last.view.accuracy == job.history[-1].accuracy


def test_model_exported_during_evaluation_has_its_accuracy(tmp_path) -> None:
    running = SimulationRun(read_simulation(TEXT, "a test"), tmp_path / "out")
    fleet, job = running.fleet, running.fleet.job(running.name)
    fleet.world.run(lambda: len(job.history) == 1, 1e6)
    assert job.evaluation_pending
    made = CoordinatorWorker(fleet.stores[CLOUD].blobs)(ExportModel("ticket", "operator", job.copy(), 1))
    fleet.settle()
    running.close()
    assert made.accuracy == job.history[0].accuracy
