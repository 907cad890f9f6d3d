"""Every named strategy over in-memory brokers: links that drop, repeat and reorder do not change a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.strategies import STRATEGIES
from sojourn.links.memory import Faults
from tests.fleet_sim.small_fleet import initial_model, job, run

SITES = {"site-a": ("dev-0", "dev-1", "dev-2"), "site-b": ("dev-3", "dev-4", "dev-5")}
QUICK = {"training__epochs": 1, "training__batch": 32, "training__lr": 0.1, "fleet__devices": 6}
ESTIMATE = {"estimator__epochs": 1}
FEDSEQ = {**ESTIMATE, "arranger__min_samples": 130, "arranger__max_devices": 2, "schedule__fraction": 0.7, "rounds": 3}
ELMY = {
    "objective__models": 2,
    "objective__warmup": 1,
    "training__optimiser": "adam",
    "training__lr": 0.01,
    "rounds": None,
}
SMALL: dict[str, dict[str, Any]] = {
    "hiercluster": {**ESTIMATE, "arranger__size": 2},
    "clusamp": {"arranger__sets": 3, "rounds": 3},
    **dict.fromkeys([name for name in STRATEGIES if name.startswith("fedseq")], FEDSEQ),
    "visit": {**ESTIMATE, "arranger__size": 2},
    "keel": {"arranger__size": 2, "rounds": 9},
    "naive-gsp": {"arranger__sets": 3, "schedule__fraction": 0.5},
    "naive-gsp-icg": {"arranger__sets": 3, "schedule__fraction": 0.5},
    "fedgsp": {"schedule__beta": 2, "schedule__kappa": 0.6, "rounds": 3},
    **{name: {"arranger__sets": 3, "rounds": 5} for name in ("fedcat", "fedcat-gc", "fedcat-dc")},
    "fedgen": {"finisher__steps": 5, "objective__hidden": 16},
    "moon": {"objective__mu": 1.0, "objective__projection": 6, "training__momentum": 0.0},
    "fedelmy": ELMY,
    "fedelmy-few-shot": {**ELMY, "schedule__trips": 2},
    "fedelmy-parallel": ELMY,
    "chain": {"rounds": None},
    "dfedavgm": {"training__momentum": 0.5},
    "fedov": {"rounds": None, "training__lr": 0.01, "finisher__epochs": 2},
    "ma-echo": {"rounds": None, "finisher__tau": 3, "objective__rank": 6},
    "dense": {
        "rounds": None,
        "finisher__epochs": 1,
        "finisher__steps": 2,
        "finisher__images": 16,
        "finisher__padding": 1,
    },
    "metafed": {"rounds": None, "schedule__trips": 2, "objective__warmup": 2, "objective__threshold": 0.3},
}


def small(name: str, **changes: Any) -> str:
    """A strategy's job, reduced to six devices."""
    return job(**{"strategy": name, **QUICK, **SMALL.get(name, {}), **changes})


@pytest.mark.parametrize("name", STRATEGIES)
def test_lossy_link_gives_the_same_bits(name: str) -> None:
    clean = run(small(name), SITES)
    assert clean.state.status == "done", clean.state.detail
    assert clean.model.shape != initial_model().shape or not np.array_equal(clean.model, initial_model())
    assert np.isfinite(clean.model).all()
    rough = run(small(name), SITES, Faults(loss=0.2, repeat=0.2, delay=0.01, spread=0.4, seed=5))
    assert rough.state.status == "done", rough.state.detail
    assert np.array_equal(rough.model, clean.model)
    assert [report.visits for report in rough.state.history] == [report.visits for report in clean.state.history]
    assert all(report.lost == 0 and report.failures == () for report in clean.state.history)
