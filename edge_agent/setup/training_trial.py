"""A worker on trial: reads the data, trains a little, tells what it took.

Started as `python -m edge_agent.setup.training_trial <TrainingTrial as JSON>`.

In a process of its own, as training is: what it takes at most is what a worker will take.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec

from edge_agent.limits.readings import peak_resident
from edge_agent.training.cage import CageReport, close_cage
from edge_agent.training.child import environment
from sojourn.data.data_survey import DataSurvey
from sojourn.data.source import DataSettings
from sojourn.errors import MachineError, SojournError
from sojourn.protocol.spec import TableSpec
from sojourn.protocol.task import TaskSpec

_PATIENCE = 300.0


class TrainingTrial(msgspec.Struct, frozen=True):
    """What to try; `begun` is when the process was started, on this machine's monotonic clock."""

    data: DataSettings
    threads: int
    batch: int
    seconds: float
    begun: float
    readable: tuple[str, ...] = ()
    task: TaskSpec | None = None
    table: TableSpec | None = None


class TrialResult(msgspec.Struct, frozen=True):
    """What was found and what it took; sizes in megabytes."""

    data: DataSurvey
    training_fault: str | None
    start_seconds: float
    step_seconds: float
    peak: float
    parameters: int
    cage: CageReport


def tried(
    data: DataSettings,
    threads: int,
    batch: int,
    seconds: float = 1.0,
    readable: tuple[str, ...] = (),
    task: TaskSpec | None = None,
    table: TableSpec | None = None,
) -> TrialResult:
    """Start a worker on trial, and return what it found; data is read for the task and the table of a job, if known."""
    trial = TrainingTrial(data, threads, batch, seconds, time.monotonic(), readable, task, table)
    order = msgspec.json.encode(trial).decode()
    command = [sys.executable, "-P", "-m", "edge_agent.setup.training_trial", order]
    try:
        done = subprocess.run(command, capture_output=True, env=environment(), timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"a training worker cannot be tried here: {error}") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise MachineError(f"a training worker does not run here ({how}): {words[-1] if words else 'without a word'}")
    return msgspec.json.decode(done.stdout, type=TrialResult)


def perform(trial: TrainingTrial) -> TrialResult:
    """Close the cage, read the data and train a few steps; what fails is part of the result."""
    cage = close_cage(map(Path, (trial.data.path, *trial.readable, "/proc/self/status")))
    training_fault = None
    start = step = 0.0
    parameters = 0
    from sojourn.data.summary import survey  # noqa: PLC0415  # numpy comes with it

    found = survey(trial.data, trial.task, trial.table)
    try:
        import edge_agent.training.trainer  # noqa: F401, PLC0415
        from sojourn.model import workload  # noqa: PLC0415

        workload.ready()
        start = time.monotonic() - trial.begun
        step = workload.measure(workload.built_in(), trial.batch, seconds=trial.seconds, threads=trial.threads)
        parameters = workload.built_in().model.size
    except (SojournError, ImportError, MemoryError, RuntimeError) as error:
        training_fault = f"{type(error).__name__}: {error}"
    return TrialResult(found, training_fault, start, step, peak_resident() or 0.0, parameters, cage)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(perform(msgspec.json.decode(sys.argv[1], type=TrainingTrial))))
