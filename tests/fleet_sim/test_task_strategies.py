"""Every named strategy on quantities and on reconstructions: it runs, learns and has metrics, without classes."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import numpy as np
import pytest

from coordinator.strategies import STRATEGIES
from sojourn.protocol.metric_names import belongs_to
from tests.fleet_sim.task_fleet import kit_of, run_task, task_job
from tests.fleet_sim.test_strategies import SMALL

FEDSEQ = {"arranger__min_samples": 75}
CHANGES: dict[str, dict[str, Any]] = {name: FEDSEQ for name in STRATEGIES if name.startswith("fedseq")}
TASK_METRICS = {"regression": {"rmse", "mae", "r2"}, "reconstruction": {"rmse", "anomaly_auc"}}


OF_CLASSES = {"metafed", "dense", "ma-echo", "fedov", "fedgen"}
"""Strategies that select models by correct predictions, or work on classes; jobs without classes are refused."""


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in OF_CLASSES])
@pytest.mark.parametrize("kind", ["regression", "reconstruction"])
def test_strategy_arranges_devices_without_classes(kind: str, name: str) -> None:
    changes = {**SMALL.get(name, {}), **CHANGES.get(name, {})}
    state, model, fleet = run_task(task_job(kind, strategy=name, **changes), kind)
    assert state.status == "done", state.detail
    assert np.isfinite(model).all()
    task = kit_of(state, fleet).task
    assert task
    assert state.classes == task.strata.count == 4
    last = state.history[-1]
    assert isnan(last.accuracy)
    assert isfinite(last.loss)
    assert last.metrics
    assert {name for name in last.metrics if belongs_to(name) is None} == TASK_METRICS[kind]
    assert all(report.lost == 0 and report.failures == () for report in state.history), state.history
    if state.signatures:
        rows = np.array(list(state.signatures.values()))
        assert rows.shape == (6, 4)
        assert np.ptp(rows, axis=0).max() > 0  # devices with other data have other signatures
