"""Tasks without classes over a real Mosquitto: the same bits as in memory, whole and as int8."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fleet_sim.task_fleet import MODELS, SITES, files, run_task, task_job
from tests.live.live_fleet import LiveFleet

VISIT = {"strategy": "visit", "estimator__epochs": 1, "arranger__sets": 2, "arranger__size": 3, "rounds": 2}
AUTOENCODER = {key.replace(".", "__"): value for key, value in MODELS["reconstruction"].items()}
JOBS = {
    "quantities": VISIT,
    # Of the same files; the targets are not used.
    "shapes": {"strategy": "fedavg", "encoding": "int8", "task__kind": "reconstruction", **AUTOENCODER, "rounds": 2},
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Return two sites with separate brokers; devices have ranges of the target."""
    sites = {site: list(devices) for site, devices in SITES.items()}
    live = LiveFleet(tmp_path_factory.mktemp("live"), sites, own_brokers=True, data=files("regression")[0])
    yield live
    live.stop()


@pytest.mark.parametrize("name", JOBS)
def test_real_fleet_matches_memory_run_bit_for_bit(fleet, name) -> None:
    state, model, _ = run_task(task_job("regression", **JOBS[name]), "regression")
    assert state.status == "done", state.detail
    view = fleet.run(task_job("regression", name, **JOBS[name]), name)
    assert view.status == "done", view.detail
    assert np.array_equal(fleet.model(name), model)
    assert [it.metrics for it in view.history] == [it.metrics for it in state.history]
    assert [it.loss for it in view.history] == [it.loss for it in state.history]
    assert view.task == {"quantities": "regression", "shapes": "reconstruction"}[name]
    last = state.history[-1]
    main = {"loss": last.loss} if name == "shapes" else {}
    assert view.metrics == main | last.metrics
