"""The papers' strategies as processes over a real Mosquitto: the same bits as in memory."""

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.records import ENDED
from tests.fleet_sim.small_fleet import TWO_SITES, job, run, shards
from tests.live.live_fleet import LiveFleet
from tests.waiting import LIMIT

NUMBERS = count(1)
PLAIN = {"fleet__devices": 4, "training__epochs": 1, "training__batch": 32, "training__lr": 0.1}
JOBS: dict[str, dict[str, Any]] = {
    "visit": {"estimator__epochs": 1, "arranger__size": 2, "estimator__where": "device"},
    "keel": {"arranger__size": 2, "rounds": 9},
    "fedseq": {"estimator__epochs": 1, "arranger__max_devices": 2, "schedule__fraction": 1.0, "objective__name": "dyn"},
    "fedgsp": {"schedule__beta": 2, "schedule__kappa": 0.6},
    "fedcat": {"arranger__sets": 2, "rounds": 3},
    "fedelmy": {"rounds": None, "objective__models": 2, "objective__warmup": 1, "training__optimiser": "adam"},
    "scaffold": {"encoding": "float16"},
    "hierfavg": {},
    "dense": {
        "rounds": None,
        "finisher__epochs": 1,
        "finisher__steps": 2,
        "finisher__images": 16,
        "finisher__padding": 1,
        "encoding": "float16",
    },
    "ma-echo": {"rounds": None, "finisher__tau": 3, "objective__rank": 6},
    "fedov": {"rounds": None, "training__optimiser": "adam", "training__lr": 0.01, "finisher__epochs": 2},
    "fedgen": {"finisher__steps": 5, "objective__hidden": 16},
    "fedmmd": {"objective__weight": 1.0},
    "moon": {"objective__projection": 6, "objective__mu": 1.0, "rounds": 3},
    "fedfusion": {"objective__operator": "conv"},
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """One fleet for all jobs; every broker takes packets of at most 128 KB."""
    sites = {site: list(devices) for site, devices in TWO_SITES.items()}
    data = {device: settings.path for device, settings in shards(6).items()}
    live = LiveFleet(
        tmp_path_factory.mktemp("strategies"),
        sites,
        own_brokers=True,
        max_packet=128_000,
        data=data,
        flags=("--share", "class-counts", "--share", "projections"),
    )
    yield live
    live.stop()


@pytest.mark.parametrize("strategy", JOBS)
def test_mosquitto_run_matches_memory_run_bit_for_bit(fleet, strategy) -> None:
    name = f"job-{next(NUMBERS)}"
    settings = {"strategy": strategy, **PLAIN, **JOBS[strategy]}
    view = fleet.run(job(name, **settings), name)
    assert view.status == "done", view.detail
    expected = run(job(**settings))
    assert [report.visits for report in view.history] == [report.visits for report in expected.state.history]
    assert np.array_equal(fleet.model(name), expected.model)


def finishes(pid: int) -> bool:
    """Return whether a coordinator has a child process that works with torch."""
    try:
        children = Path(f"/proc/{pid}/task").glob("*/children")
        found = [child for file in children for child in file.read_text().split()]
        return any(b"coordinator.machine.work" in Path(f"/proc/{child}/cmdline").read_bytes() for child in found)
    except OSError:
        return False  # one of them has just ended


def is_seen_finishing(fleet, name, settings) -> bool:
    """Run a job until its finisher works; return False if the job ended before the first check."""
    fleet.submit(job(name, **settings))
    pid = fleet.processes["cloud"].pid
    with fleet.operator() as operator:
        seen: list[str] = []

        def status() -> str:
            seen.append(operator.job(name, timeout=LIMIT).status)
            return seen[-1]

        fleet.wait(lambda: status() in ("running", *ENDED), "its round")  # before that its model is compiled
        fleet.wait(lambda: finishes(pid) or status() in ENDED, "its finisher")
        return seen[-1] not in ENDED


def test_coordinator_killed_while_finishing_closes_round_again(fleet) -> None:
    settings = {"strategy": "dense", **PLAIN, **JOBS["dense"]}
    names = (f"job-{next(NUMBERS)}" for _ in range(10))
    name = next(name for name in names if is_seen_finishing(fleet, name, settings))
    fleet.kill("cloud")
    fleet.start("cloud")
    view = fleet.finish(name)
    assert view.status == "done", view.detail
    assert np.array_equal(fleet.model(name), run(job(**settings)).model)
