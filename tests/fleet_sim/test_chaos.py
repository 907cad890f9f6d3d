"""Random faults of every kind do not change the model."""

from __future__ import annotations

import os
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from sojourn.links.memory import Faults
from sojourn.node import node as node_module
from tests.fleet_sim.small_fleet import TWO_SITES, Run, SmallFleet, fedavg, job, run, visit
from tests.fleet_sim.test_kills import after, wait

SEEDS = int(os.environ.get("CHAOS_SEEDS", "50"))
NODES = ("dev-0", "dev-1", "dev-2", "dev-3", "site-a", "site-b", "cloud")
PATIENT: dict[str, Any] = {"fleet__devices": 4, "tours__lease": 2000, "tours__site_lease": 2000}
QUICK: dict[str, Any] = {"training__epochs": 1, "training__batch": 32, "training__lr": 0.1, **PATIENT}
JOBS = (
    visit(**PATIENT),
    fedavg(**PATIENT),
    visit(schedule__passes=2, **PATIENT),
    visit(encoding="float16", **PATIENT),
    job(strategy="scaffold", arranger__fraction=0.75, rounds=3, **QUICK),
    job(strategy="fedseq-dyn", estimator__epochs=1, arranger__sets=2, arranger__size=2, schedule__passes=2, **QUICK),
    job(strategy="fedcat", arranger__sets=2, rounds=3, objective__name="dyn", **QUICK),
    job(strategy="chain", rounds=None, encoding="int8", **QUICK),
    job(strategy="hierfavg", **QUICK),
    job(strategy="fedelmy-few-shot", schedule__trips=2, objective__models=1, objective__warmup=1, rounds=None, **QUICK),
)
"""Jobs with different durable states: one device per tour or several, memory, sums, slots, legs, edge merges."""


@cache
def undisturbed(text: str, one_broker: bool) -> Run:
    return run(text, one_broker=one_broker)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_kills_do_not_change_the_job_result(seed, monkeypatch) -> None:
    draw = random.Random(seed)
    one_broker = draw.random() < 0.3
    # With one broker, a round can be planned while a site is offline, and VISIT's sets depend on the sites.
    text = JOBS[1] if one_broker else draw.choice(JOBS)
    expected = undisturbed(text, one_broker)
    monkeypatch.setattr(node_module, "INLINE", draw.choice([0, 16 << 10]))
    monkeypatch.setattr(node_module, "RECORDS_PER_SNAPSHOT", draw.choice([1, 5, 512]))
    monkeypatch.setattr(node_module, "SECONDS_PER_SWEEP", draw.choice([0.5, 30.0]))
    faults = Faults(draw.random() * 0.3, draw.random() * 0.3, 0.01, draw.random(), seed)
    fleet = SmallFleet(TWO_SITES, faults, one_broker=one_broker)
    fleet.submit(text)
    for _ in range(draw.randint(1, 8)):
        after(fleet, draw.randint(1, 120))
        down = draw.sample(NODES, draw.randint(1, 3))
        for name in down:
            fleet.kill(name)
        # A round planned in the meantime waits ten seconds for offline devices, and then continues without them.
        wait(fleet, draw.choice([0.0, 0.1, 2.0, 20.0 if down == ["cloud"] else 4.0]))
        for name in down:
            fleet.start(name)
    assert fleet.run("job", 20_000).status == "done"
    assert np.array_equal(fleet.model(), expected.model)
    assert set(fleet.ledger.finished.values()) == {1}
    assert set(fleet.ledger.kept.values()) == {1}
    assert [it.visits for it in fleet.job("job").history] == [it.visits for it in expected.state.history]
