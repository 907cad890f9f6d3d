"""A trial of the training worker: reads the data, trains a few steps, and measures time and memory.

The trial runs in a separate process, so that its peak memory is that of a training worker.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from edge_agent.machine_readings import peak_resident
from edge_agent.training.sandbox import SandboxReport, enter_sandbox
from sojourn.data.source import DataSettings
from sojourn.errors import ConfigError, InvalidMessage, MachineError, SojournError
from sojourn.processes import Parent, ask
from sojourn.protocol.data_summary import DataSurvey
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit, TableSpec
from sojourn.protocol.task import TaskSpec

_TRIAL_TIMEOUT = 300.0


class TrainingTrial(msgspec.Struct, frozen=True):
    """The settings of a trial; `begun` is the start of the process on the monotonic clock."""

    data: DataSettings
    threads: int
    batch: int
    seconds: float
    begun: float
    readable: tuple[str, ...] = ()
    task: TaskSpec | None = None
    kit: str | None = None
    """The file of the job's kit to train; None for the built-in one."""
    table: TableSpec | None = None


class TrialResult(msgspec.Struct, frozen=True):
    """The result of a trial; sizes in megabytes."""

    data: DataSurvey
    training_fault: str | None
    start_seconds: float
    step_seconds: float
    peak: float
    parameters: int
    sandbox_report: SandboxReport
    job_kit: bool = False
    """Whether the job's kit was trained instead of the built-in one."""


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
    """Run a trial in a separate process, and return its result.

    task, table: those of the job by which to read the data, if known. kit: the file of the job's kit to train.
    """
    kit_file = str(kit.absolute()) if kit else None
    trial = TrainingTrial(data, threads, batch, seconds, time.monotonic(), readable, task, kit_file, table)
    try:
        return ask("edge_agent.setup.training_trial", trial, msgspec.msgpack.Decoder(TrialResult), _TRIAL_TIMEOUT)
    except MachineError as error:
        raise MachineError(f"a training worker cannot be tried here: {error}") from error


def perform(trial: TrainingTrial) -> TrialResult:
    """Enter the sandbox, read the data and train a few steps; failures are part of the result."""
    paths = (trial.data.path, *trial.readable, "/proc/self/status", *([trial.kit] if trial.kit else []))
    sandbox_report = enter_sandbox(map(Path, paths))
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
    return TrialResult(
        found, training_fault, start, step, peak_resident() or 0.0, parameters, sandbox_report, bool(trial.kit)
    )


def read_kit(path: Path) -> tuple[Kit, int]:
    """Read a kit that `sojourn job kit` wrote; return it with its size in bytes."""
    try:
        content = path.read_bytes()
        return unpack_blob(content, Kit), len(content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except InvalidMessage as error:
        raise ConfigError(f"{path} is not a kit: write one with `sojourn job kit`") from error


if __name__ == "__main__":
    agent = Parent(msgspec.msgpack.Decoder(TrainingTrial))
    agent.send(perform(next(agent.frames)))
