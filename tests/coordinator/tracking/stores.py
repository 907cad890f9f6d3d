"""Read the stores back with MLflow's and TensorBoard's own readers."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from coordinator.tracking.run_stores import MlflowRuns, be_silent
from coordinator.tracking.runs import RoundTracked, RunBegun, RunEnded

ID = "0123456789abcdef0123456789abcdef"


@cache
def empty_store() -> bytes:
    """An empty MLflow store, created once, because that takes longer than all writes."""
    be_silent()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # MLflow's own deprecation warning of SQLAlchemy when its first store is opened
        warnings.filterwarnings("ignore", "The ``noload`` loader strategy is deprecated", DeprecationWarning)
        path = Path(folder) / "empty.db"
        MlflowRuns(f"sqlite:///{path}", "sojourn").open()
        return path.read_bytes()


def begun(run: str = ID, name: str = "digits", **more: str) -> RunBegun:
    return RunBegun(run, name, 1000.0, {"training.lr": "0.05"}, {"strategy": "visit", **more})


def rounds(*steps: int, run: str = ID) -> list[RoundTracked]:
    return [RoundTracked(run, step, 1000.0 + step, {"visits": 8.0, "accuracy": step / 10}) for step in steps]


def ended(run: str = ID, outcome: Any = "done") -> RunEnded:
    return RunEnded(run, outcome, "10 rounds are done", 2000.0)


def runs_in(database: Path) -> list[Any]:
    """Return all runs, the oldest first."""
    be_silent()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    found = client.get_experiment_by_name("sojourn")
    return list(client.search_runs([found.experiment_id], order_by=["start_time"])) if found else []


def history_in(database: Path, run: Any, metric: str = "accuracy") -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    return [(it.step, it.value) for it in client.get_metric_history(run.info.run_id, metric)]


def scalars_in(folder: Path, metric: str = "accuracy") -> list[tuple[int, float]]:
    """Return the scalars of a run's folder, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [(it.step, round(it.value, 6)) for it in found.Scalars(metric)]
