"""A worker on trial: reads the data, trains a little, tells what it took.

Started as `python -m edge_agent.setup.training_trial <TrainingTrial as JSON>`.

In a process of its own, as training is: what it takes at most is what a worker will take.
"""

from __future__ import annotations

import signal
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
from sojourn.errors import ConfigError, InvalidMessage, MachineError, SojournError
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit, TableSpec
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
    kit: str | None = None
    """The file of a job's kit to train; the built-in one without it."""
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
    own: bool = False
    """Whether the job's own kit was trained, and not the built-in one."""


def tried(
    data: DataSettings,
    threads: int,
    batch: int,
    seconds: float = 1.0,
    readable: tuple[str, ...] = (),
    task: TaskSpec | None = None,
    kit: Path | None = None,
    table: TableSpec | None = None,
) -> TrialResult:
    """Start a worker on trial, and return what it found.

    Data is read for the task and the table of a job, if they are known. kit: the file of the job's kit, to train that.
    """
    own = str(kit.absolute()) if kit else None
    trial = TrainingTrial(data, threads, batch, seconds, time.monotonic(), readable, task, own, table)
    order = msgspec.json.encode(trial).decode()
    command = [sys.executable, "-P", "-m", "edge_agent.setup.training_trial", order]
    try:
        done = subprocess.run(command, capture_output=True, env=environment(), timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"a training worker cannot be tried here: {error}") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        killed = "signal 9: the system ended it, mostly for want of memory"
        how = (
            killed
            if done.returncode == -signal.SIGKILL
            else f"signal {-done.returncode}"
            if done.returncode < 0
            else f"exit code {done.returncode}"
        )
        raise MachineError(f"a training worker does not run here ({how}): {words[-1] if words else 'without a word'}")
    return msgspec.json.decode(done.stdout, type=TrialResult)


def perform(trial: TrainingTrial) -> TrialResult:
    """Close the cage, read the data and train a few steps; what fails is part of the result."""
    paths = (trial.data.path, *trial.readable, "/proc/self/status", *([trial.kit] if trial.kit else []))
    cage = close_cage(map(Path, paths))
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
        kit = read_kit(Path(trial.kit))[0] if trial.kit else workload.built_in()
        step = workload.measure(kit, trial.batch, seconds=trial.seconds, threads=trial.threads)
        parameters = kit.model.size
    except (SojournError, ImportError, MemoryError, RuntimeError) as error:
        training_fault = f"{type(error).__name__}: {error}"
    return TrialResult(found, training_fault, start, step, peak_resident() or 0.0, parameters, cage, bool(trial.kit))


def read_kit(path: Path) -> tuple[Kit, int]:
    """The kit in a file that `sojourn job kit` wrote, and its bytes."""
    try:
        content = path.read_bytes()
        return unpack_blob(content, Kit), len(content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except InvalidMessage as error:
        raise ConfigError(f"{path} is not a kit: write one with `sojourn job kit`") from error


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(perform(msgspec.json.decode(sys.argv[1], type=TrainingTrial))))
