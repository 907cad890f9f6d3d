"""Runs in MLflow's SQLite store, by its slim package. Only the process that tracks imports it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.tracking.frames import ALWAYS
from coordinator.tracking.settings import SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coordinator.tracking.frames import RoundTracked, RunBegun, RunEnded

ID = "sojourn.id"
"""The tag by which a run is found again."""
METRICS_AT_ONCE, PARAMS_AT_ONCE = 900, 100
"""How many MLflow takes in one call."""
STATUS = {"done": "FINISHED", "stopped": "KILLED", "refused": "FAILED", "failed": "FAILED", "interrupted": "KILLED"}


def be_silent() -> None:
    """Before MLflow is imported: it tells nobody that it is used, and leaves the log alone."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true", MLFLOW_CONFIGURE_LOGGING="0")


class MlflowRuns:
    """The runs of one experiment."""

    name = "MLflow"

    def __init__(self, database: str, experiment: str) -> None:
        self._database, self._experiment_name = database, experiment
        self._client: Any = None
        self._runs: dict[str, tuple[str, int]] = {}
        """MLflow's id of each run that is under way, and its newest round that is written."""

    def open(self) -> None:
        """Get ready: a store that is new takes seconds."""
        self._experiment()

    def begin(self, run: RunBegun) -> None:
        """Find the run again, or make it; tell what is not told of it yet."""
        client = self._connected()
        found = client.search_runs([self._experiment()], f"tags.`{ID}` = '{run.id}'", max_results=1)
        it = found[0] if found else self._made(run)
        number = it.info.run_id
        self._describe(number, run, it.data.params)
        if it.info.status != "RUNNING":
            client.update_run(number, status="RUNNING")
        steps = [metric.step for metric in client.get_metric_history(number, ALWAYS)] if found else []
        self._runs[run.id] = number, max(steps, default=0)

    def _made(self, run: RunBegun) -> Any:
        return self._connected().create_run(
            self._experiment(), start_time=int(run.at * 1000), run_name=run.name, tags={ID: run.id}
        )

    def _describe(self, number: str, run: RunBegun, told: dict[str, str]) -> None:
        """Tags may change; a parameter that was told once cannot."""
        from mlflow.entities import Param, RunTag  # noqa: PLC0415

        tags = [RunTag(key, value) for key, value in run.tags.items()]
        self._client.log_batch(number, tags=tags)
        new = [Param(key, value) for key, value in run.params.items() if key not in told]
        for some in _pieces(new, PARAMS_AT_ONCE):
            self._client.log_batch(number, params=some)

    def rounds(self, rounds: Sequence[RoundTracked]) -> None:
        """Write the rounds of a run that are not written yet, many at once."""
        from mlflow.entities import Metric  # noqa: PLC0415

        number, newest = self._runs[rounds[0].id]
        new = [it for it in rounds if it.step > newest]
        each = [[Metric(key, value, int(it.at * 1000), it.step) for key, value in it.metrics.items()] for it in new]
        for some in _pieces(each, max(1, METRICS_AT_ONCE // max(map(len, each), default=1))):
            self._connected().log_batch(number, metrics=[metric for metrics in some for metric in metrics])
            self._runs[rounds[0].id] = number, some[-1][0].step

    def end(self, ended: RunEnded) -> None:
        """Say how the run ended."""
        number, _ = self._runs[ended.id]
        client = self._connected()
        client.set_tag(number, "outcome", ended.outcome)
        client.set_tag(number, "detail", ended.detail)
        client.set_terminated(number, STATUS[ended.outcome], int(ended.at * 1000))
        del self._runs[ended.id]

    def _connected(self) -> Any:
        if self._client is None:
            from mlflow.tracking import MlflowClient  # noqa: PLC0415  # where it is set, and in a process of its own

            Path(self._database.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(tracking_uri=self._database)
        return self._client

    def _experiment(self) -> str:
        """The experiment's number; its files, of which we write none, would be beside the database."""
        client = self._connected()
        found = client.get_experiment_by_name(self._experiment_name)
        if found is None:
            place = Path(self._database.removeprefix(SQLITE)).parent / "mlartifacts"
            return str(client.create_experiment(self._experiment_name, artifact_location=place.as_uri()))
        return str(found.experiment_id)


def _pieces(items: list[Any], size: int) -> Iterable[list[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
