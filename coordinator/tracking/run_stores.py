"""The stores of runs: the `[tracking]` settings, MLflow's SQLite store, and TensorBoard's event files."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from coordinator.tracking.runs import ALWAYS, RoundTracked, RunBegun, RunEnded
from sojourn import errors
from sojourn.errors import ConfigError

SQLITE = "sqlite:///"


class TrackingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Experiment tracking; off unless `mlflow` or `tensorboard` is set."""

    mlflow: str | None = None
    """MLflow's SQLite store as `sqlite:///FILE` or the file's path; it is created if it does not exist. Needs the extra
    `mlflow`. Example: `"sqlite:////var/lib/sojourn-coordinator/mlflow.db"`.
    """
    tensorboard: str | None = None
    """The folder for TensorBoard's event files, with one folder for each job. Needs the extra `tensorboard`. Example:
    `"/var/lib/sojourn-coordinator/tensorboard"`.
    """
    experiment: str = "sojourn"
    """The name of MLflow's experiment for all jobs."""

    @property
    def on(self) -> bool:
        """Whether tracking is on."""
        return self.mlflow is not None or self.tensorboard is not None

    def need(self) -> None:
        """Check that the needed packages are installed, without importing them here."""
        if self.mlflow is not None:
            errors.require_extra("mlflow", "tracking.mlflow")
        if self.tensorboard is not None:
            errors.require_extra("tensorboard", "tracking.tensorboard")

    def resolved(self, where: str) -> TrackingSettings:
        """Return the settings with absolute paths; ConfigError if a path is invalid."""
        database = None if self.mlflow is None else f"{SQLITE}{_database(self.mlflow, where)}"
        folder = None if self.tensorboard is None else str(Path(self.tensorboard).expanduser().absolute())
        return msgspec.structs.replace(self, mlflow=database, tensorboard=folder)


def _database(text: str, where: str) -> Path:
    """Return the file of MLflow's store."""
    path = text.removeprefix(SQLITE)
    if "://" in path or not path.strip():
        raise ConfigError(
            f"{where}: tracking.mlflow = {text!r} is not an SQLite store: write {SQLITE}FILE or a file's path. "
            "Sojourn does not write to a server; let MLflow's server read the file"
        )
    return Path(path).expanduser().absolute()


ID = "sojourn.id"
"""The tag that identifies a run."""
METRICS_AT_ONCE, PARAMS_AT_ONCE = 900, 100
"""The maximum numbers of metrics and parameters in one MLflow call."""
STATUS = {"done": "FINISHED", "stopped": "KILLED", "refused": "FAILED", "failed": "FAILED", "interrupted": "KILLED"}


def be_silent() -> None:
    """Set MLflow's environment before its import: no telemetry, and no change of the logging."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true", MLFLOW_CONFIGURE_LOGGING="0")


class MlflowRuns:
    """The runs of one MLflow experiment."""

    name = "MLflow"

    def __init__(self, database: str, experiment: str) -> None:
        self._database, self._experiment_name = database, experiment
        self._client: Any = None
        self._runs: dict[str, tuple[str, int]] = {}
        """MLflow's id and the newest written round of each running run."""

    def open(self) -> None:
        """Prepare the store; creating one takes seconds."""
        self._experiment()

    def begin(self, run: RunBegun) -> None:
        """Find or create the run, and write what is not written yet."""
        client, experiment = self._connected(), self._experiment()
        found = client.search_runs([experiment], f"tags.`{ID}` = '{run.id}'", max_results=1)
        start = {"start_time": int(run.at * 1000), "run_name": run.name, "tags": {ID: run.id}}
        it = found[0] if found else client.create_run(experiment, **start)
        number = it.info.run_id
        self._describe(number, run, it.data.params)
        if it.info.status != "RUNNING":
            client.update_run(number, status="RUNNING")
        steps = [metric.step for metric in client.get_metric_history(number, ALWAYS)] if found else []
        self._runs[run.id] = number, max(steps, default=0)

    def _describe(self, number: str, run: RunBegun, written: dict[str, str]) -> None:
        """Write tags and new parameters; tags may change, a written parameter cannot."""
        from mlflow.entities import Param, RunTag  # noqa: PLC0415

        tags = [RunTag(key, value) for key, value in run.tags.items()]
        self._client.log_batch(number, tags=tags)
        new = [Param(key, value) for key, value in run.params.items() if key not in written]
        for some in _pieces(new, PARAMS_AT_ONCE):
            self._client.log_batch(number, params=some)

    def rounds(self, rounds: Sequence[RoundTracked]) -> None:
        """Write the new rounds of a run in batches."""
        from mlflow.entities import Metric  # noqa: PLC0415

        number, newest = self._runs[rounds[0].id]
        new = [it for it in rounds if it.step > newest]
        each = [[Metric(key, value, int(it.at * 1000), it.step) for key, value in it.metrics.items()] for it in new]
        for some in _pieces(each, max(1, METRICS_AT_ONCE // max(map(len, each), default=1))):
            self._connected().log_batch(number, metrics=[metric for metrics in some for metric in metrics])
            self._runs[rounds[0].id] = number, some[-1][0].step

    def end(self, ended: RunEnded) -> None:
        """Write the end of the run."""
        number, _ = self._runs[ended.id]
        client = self._connected()
        client.set_tag(number, "outcome", ended.outcome)
        client.set_tag(number, "detail", ended.detail)
        client.set_terminated(number, STATUS[ended.outcome], int(ended.at * 1000))
        del self._runs[ended.id]

    def _connected(self) -> Any:
        if self._client is None:
            from mlflow.tracking import MlflowClient  # noqa: PLC0415  # only if it is set, in the writer process

            Path(self._database.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(tracking_uri=self._database)
        return self._client

    def _experiment(self) -> str:
        """Return the experiment's id; its artifact folder is next to the database, but stays empty."""
        client = self._connected()
        found = client.get_experiment_by_name(self._experiment_name)
        if found is None:
            place = Path(self._database.removeprefix(SQLITE)).parent / "mlartifacts"
            return str(client.create_experiment(self._experiment_name, artifact_location=place.as_uri()))
        return str(found.experiment_id)


def _pieces(items: list[Any], size: int) -> Iterable[list[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


# Rounds as scalars in TensorBoard's event files, with its own writer and without tensorflow.
#
# Only the writer process imports it.

SHORT_ID = 8
"""The number of characters of a run's id in its folder's name, which distinguishes jobs with the same name."""
EVENTS = "events.out.tfevents.*"
LOCK = ".writing"
"""The file in a run's folder that its only writer has locked."""
LOCK_TIMEOUT = 20.0
"""The seconds to wait for another writer: after its coordinator was killed, it writes its queue and ends."""


@dataclass
class OpenRun:
    """A running run: its writer, its lock, and its newest written round."""

    writer: Any
    lock: IO[str]
    newest: int

    def close(self) -> None:
        """Write the rest, and release the lock."""
        try:
            self.writer.close()
        finally:
            self.lock.close()


class EventFiles:
    """A folder for each run; a process that continues a run adds a file."""

    name = "TensorBoard"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._runs: dict[str, OpenRun] = {}

    def open(self) -> None:
        """Create the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def begin(self, run: RunBegun) -> None:
        """Read which rounds are written, and open a file for more."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # noqa: PLC0415  # only if it is set
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        if before := self._runs.pop(run.id, None):
            before.close()
        place = self._folder / f"{run.name}-{run.id[:SHORT_ID]}"
        place.mkdir(parents=True, exist_ok=True)
        lock = _locked(place / LOCK)
        it = self._runs[run.id] = OpenRun(EventFileWriter(str(place)), lock, _newest(place))
        if it.newest == 0:
            _add(it.writer, hparams_pb({**run.params, **run.tags}, trial_id=run.id), run.at, 0)
            it.writer.flush()

    def rounds(self, rounds: Sequence[RoundTracked]) -> None:
        """Write the new rounds of a run."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

        run = self._runs[rounds[0].id]
        new = [it for it in rounds if it.step > run.newest]
        for it in new:
            values = [Summary.Value(tag=key, simple_value=value) for key, value in it.metrics.items()]
            _add(run.writer, Summary(value=values), it.at, it.step)
        run.writer.flush()  # raises an error if writing failed
        run.newest = max([run.newest, *(it.step for it in new)])

    def end(self, ended: RunEnded) -> None:
        """Close the run's file."""
        self._runs.pop(ended.id).close()


def _locked(path: Path) -> IO[str]:
    """Lock a file exclusively, after another writer has released it."""
    lock = path.open("w", encoding="ascii")
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                lock.close()
                raise
            time.sleep(0.1)
        else:
            return lock


def _add(writer: Any, summary: Any, at: float, step: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415

    writer.add_event(Event(wall_time=at, step=step, summary=summary))


def _newest(place: Path) -> int:
    """Return the newest round in a run's files, ignoring a record that a power failure cut off."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: PLC0415

    newest = 0
    for path in sorted(place.glob(EVENTS)):
        for event in EventFileLoader(str(path)).Load():
            if any(value.tag == ALWAYS for value in event.summary.value):
                newest = max(newest, event.step)
    return newest
