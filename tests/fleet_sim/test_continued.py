"""A continued job ends with the bits of a job that was longer from the start."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_sim.world.memory_fleet import CLOUD
from sojourn.protocol.operator_messages import Continue, Stop
from tests.fleet_sim.small_fleet import TWO_SITES, SmallFleet, fedavg, job, run, visit

JOBS = {
    "fedavg": fedavg,
    "visit": visit,
    "fedadam": lambda **changes: job(strategy="fedadam", **changes),
    "scaffold": lambda **changes: job(strategy="scaffold", training__epochs=1, **changes),
    "feddyn": lambda **changes: job(strategy="feddyn", training__weight_decay=0.0, **changes),
    "fedseq-inter": lambda **changes: job(strategy="fedseq-inter", **changes),
    "fedcat": lambda **changes: job(strategy="fedcat", arranger__sets=2, **changes),
}


def continued(fleet: SmallFleet, rounds: int):
    fleet.ask(Continue("more", "job", rounds))
    return fleet.run("job")


def run_into_the_second_round(fleet: SmallFleet) -> None:
    state = fleet.job("job")
    fleet.world.run(lambda: len(state.history) == 1 and bool(state.arrived), 1e5)
    assert state.arrived


@pytest.mark.parametrize("kind", JOBS)
def test_three_rounds_continued_to_five_equal_five_rounds(kind) -> None:
    """FedCat merges in its last round, whichever that is: round 3 is in the middle of a cycle."""
    whole = run(JOBS[kind](rounds=5))
    short = run(JOBS[kind](rounds=3))
    assert short.state.status == whole.state.status == "done"
    state = continued(short.fleet, 5)
    assert (state.status, len(state.history)) == ("done", 5)
    assert not np.array_equal(short.model, whole.model)
    assert np.array_equal(short.fleet.model(), whole.model)
    assert [it.accuracy for it in state.history[3:]] == [it.accuracy for it in whole.state.history[3:]]


def test_stopped_job_repeats_its_interrupted_round() -> None:
    for kind in ("visit", "fedcat"):
        whole, fleet = run(JOBS[kind](rounds=3)), SmallFleet(TWO_SITES)
        fleet.submit(JOBS[kind](rounds=3))
        run_into_the_second_round(fleet)
        fleet.ask(Stop("s", "job"))
        assert fleet.job("job").status == "stopped"
        fleet.ask(Continue("more", "job"))
        state = fleet.run("job")
        assert (state.status, len(state.history)) == ("done", 3)
        assert np.array_equal(fleet.model(), whole.model), kind


def test_job_can_be_continued_after_a_coordinator_restart() -> None:
    whole, short = run(fedavg(rounds=4)), run(fedavg(rounds=2))
    short.fleet.kill(CLOUD)
    short.fleet.start(CLOUD)
    short.fleet.world.run(lambda: False, short.fleet.world.now + 10)  # until sites have reported their devices
    assert continued(short.fleet, 4).status == "done"
    assert np.array_equal(short.fleet.model(), whole.model)
