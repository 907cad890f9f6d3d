"""Checks whether a job fits this device; each finding has a remedy."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from edge_agent import machine_readings
from edge_agent.limits import Limits, LimitSettings, lack_of_memory, read_machine
from edge_agent.mandates import describe_trusted_keys
from edge_agent.settings import AgentSettings
from edge_agent.setup import connection_checks, training_trial
from edge_agent.setup.training_trial import TrialResult
from edge_agent.training.sandbox import SandboxReport
from sojourn.errors import MachineError, UserError
from sojourn.links.connection_errors import SET_THE_CLOCK
from sojourn.parts import Training
from sojourn.protocol.spec import TableSpec
from sojourn.protocol.task import Kind, Size, Strata, TaskSpec, Window
from sojourn.protocol.wire import TrainingSize
from sojourn.settings import Texts, store_folder, validated

Verdict = Literal["ok", "warning", "fails"]
UNIT = "etc/systemd/system/sojourn-agent.service"
COPIES = 6
"""Vectors of the model's size in a worker: model, start, gradient, momentum, temporary values and output."""
VISIT_COPIES = 2
"""Vectors of the model's size in a visit but not in a trial of the job's model: start and output."""
_MB = 1 << 20
_JOURNAL_SPACE = 64
"""Megabytes of disk for the journal, with a reserve."""
_MIN_CLASSES = 2
"""With fewer classes, the check of the data is a warning."""


@dataclass(frozen=True)
class Finding:
    """The result of one check, with a remedy if it failed."""

    what: str
    verdict: Verdict
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class JobDemands:
    """The demands of a job, as far as its file contains them; a strategy may have other defaults."""

    training: Training = Training()  # noqa: RUF009  # frozen
    threads: int | None = None
    classes: tuple[str, ...] = ()
    lease: float = 60.0
    parameters: int | None = None
    task: TaskSpec | None = None
    """The task, if it is not classification."""
    kit: Path | None = None
    """The file of the job's compiled kit."""
    table: TableSpec | None = None
    """The columns of the job's table, as far as its file names them."""


class TaskRequest(msgspec.Struct, frozen=True):
    """The settings in a job's [task] that affect reading the data."""

    kind: Kind = "classification"
    targets: tuple[str, ...] = ()
    steps: Size | None = None
    horizon: Size = 1
    stride: Size = 1

    def spec(self) -> TaskSpec | None:
        """Return the task, without values that only a compiled job has; None for classification."""
        if self.kind == "classification":
            return None
        window = Window(self.steps, self.horizon, self.stride) if self.kind == "forecast" and self.steps else None
        return TaskSpec(self.kind, (), None, Strata(1), names=self.targets, window=window)


def demands_of(
    job: Mapping[str, Any], parameters: int | None = None, where: str = "the job", kit: Path | None = None
) -> JobDemands:
    """Return the demands of a job file."""

    class JobRequest(msgspec.Struct):
        texts: ClassVar[Texts] = {"task": lambda kind: {"kind": kind}}
        training: Training = Training()
        threads: int | None = None
        data: dict[str, Any] = {}
        tours: dict[str, Any] = {}
        task: TaskRequest = TaskRequest()

    request = validated(dict(job), JobRequest, where)
    classes = tuple(str(name) for name in request.data.get("classes", ()))
    lease = float(request.tours.get("lease", 60.0))
    task = request.task.spec()
    table = table_in(request.data, Path(where).parent, task)
    return JobDemands(request.training, request.threads, classes, lease, parameters, task, kit, table)


def table_in(data: Mapping[str, Any], folder: Path, task: TaskSpec | None = None) -> TableSpec | None:
    """Return the columns named in a job's [data], otherwise those of its test set if it is on this machine."""

    class DataRequest(msgspec.Struct):
        test: str | None = None
        columns: tuple[str, ...] = ()
        label: str | int | None = None
        header: bool | None = None
        ignore: tuple[str | int, ...] = ()
        time: str | int | None = None
        series: str | int | None = None
        by_position: bool = False

    request = validated(dict(data), DataRequest, "[data]")
    label = request.label if isinstance(request.label, str) and request.label not in ("first", "last") else None
    if request.columns:
        return TableSpec(request.columns, label, by_position=request.by_position)
    if request.test is not None and request.test.endswith(".csv") and (folder / request.test).is_file():
        from sojourn.data.column_names import table_of  # noqa: PLC0415  # numpy comes with these
        from sojourn.data.source import read_as, read_content  # noqa: PLC0415

        how = {key: getattr(request, key) for key in ("label", "header", "ignore", "time", "series")}
        content = read_content(read_as(str(folder / request.test), **how), "test", task=task)
        if content.table and content.table.columns:
            return msgspec.structs.replace(table_of(content.source, content.table), by_position=request.by_position)
    # Only the job's label column is known, so the other columns cannot be checked.
    return TableSpec((), label, by_position=True) if label else None


def preflight(settings: AgentSettings, demands: JobDemands) -> list[Finding]:
    """Run all checks, without changing the device."""
    folder = store_folder(settings.store, settings.fleet, settings.name)
    threads = demands.threads or settings.threads or os.cpu_count() or 1
    found: list[Finding] = []
    kit = demands.kit
    if kit:
        demands = replace(demands, parameters=training_trial.read_kit(kit)[0].model.size)
    if kit and (too_large := of_kit(kit, demands, settings.limits)):
        found.append(too_large)
        kit = None  # training it could make the device run out of memory
    try:
        tried = training_trial.tried(
            settings.data,
            threads,
            demands.training.batch,
            readable=settings.limits.readable,
            task=demands.task,
            kit=kit,
            table=demands.table,
        )
    except MachineError as error:
        remedy = "reinstall sojourn; on a small board, free memory first; see firmware_notes/"
        found.append(Finding("training", "fails", str(error), remedy))
    else:
        training = of_training(tried, demands, settings.limits)
        if kit != demands.kit:  # the needs of the built-in model would be misleading
            training = [each for each in training if each.verdict == "fails"]
        found += [of_data(tried, demands), *training, of_sandbox(tried.sandbox_report)]
    found += [of_disk(folder, demands, settings.limits), of_broker(settings), of_clock(settings), *of_limits(settings)]
    return [*found, of_mandates(settings), of_service(Path(settings.limits.root))]


def compiled(job: Path, folder: Path) -> Path | Finding:
    """Compile the job's kit into this folder in a separate process; return the file, or a finding if that fails."""
    remedy = (
        f"on the coordinator's machine, run `sojourn job kit {job.name}`, copy the file that it writes here, and name "
        "it with --kit; or set the number of the model's parameters with --parameters"
    )
    untried = "memory and time are those of the built-in cnn, not of the job's model"
    if not all(map(find_spec, ("coordinator", "torch", "onnxscript"))):
        return Finding("model", "warning", f"{untried}: this device cannot compile it", remedy)
    made = folder / "job.kit"
    command = [sys.executable, "-m", "sojourn.cli", "job", "kit", str(job), "--output", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Finding("model", "warning", f"{untried}, which could not be compiled: {lines[-1]}", remedy)
    return made


def of_kit(path: Path, demands: JobDemands, limits: LimitSettings) -> Finding | None:
    """Return a finding if the job's model is too large to be tried; None if it may fit."""
    kit, size = training_trial.read_kit(path)
    needed = TrainingSize(kit.model.size, 0, 0).memory(demands.training.batch, size) / _MB
    lack = lack_of_memory(limits, needed, machine_readings.available_memory(Path(limits.root)))
    if lack is None:
        return None
    text, _, advice = lack[1].partition(": ")
    return Finding("memory", "fails", f"{text}; the model has {kit.model.size:,} parameters", advice)


def of_data(tried: TrialResult, demands: JobDemands) -> Finding:
    """Check the data: whether it can be read, has samples of the job's classes, and has no problems."""
    found = tried.data
    if found.summary.fault:
        return Finding(
            "data", "fails", found.summary.fault, "correct [data] in the settings, or move the data to its path"
        )
    text = "\n".join(found.facts)
    common = [name for name in found.classes if name in demands.classes]
    if demands.classes and not common and demands.task is None:
        remedy = (
            f"the job's classes are {', '.join(demands.classes[:5])}: use these names, or set class_names in [data]"
        )
        return Finding("data", "fails", f"{text}\nnone of its classes is a class of the job", remedy)
    if found.warnings:
        lines = "\n".join([text, *(f"warning: {each}" for each in found.warnings)])
        return Finding("data", "warning", lines, "fix the data, or ignore this if it is intended")
    if found.classes and demands.task is None and len(common or found.classes) < _MIN_CLASSES:
        return Finding("data", "warning", text, "a device with one class contributes little to the model")
    return Finding("data", "ok", text)


def of_training(tried: TrialResult, demands: JobDemands, limits: LimitSettings) -> list[Finding]:
    """Check whether a worker runs, how long a visit takes, and whether its memory is available."""
    if tried.training_fault:
        remedy = "reinstall onnxruntime and numpy for this board; see firmware_notes/"
        return [Finding("training", "fails", tried.training_fault, remedy)]
    steps = demands.training.epochs * -(-max(tried.data.summary.samples, 1) // demands.training.batch)
    seconds = tried.start_seconds + steps * tried.step_seconds / limits.cpu_share
    model = "the job's model" if tried.job_kit else "the built-in cnn"
    text = (
        f"{seconds:.1f} s for {steps} steps of {model} ({tried.parameters:,} parameters): "
        f"{tried.step_seconds * 1e3:.1f} ms per step, {tried.start_seconds:.1f} s to start"
    )
    slow = tried.step_seconds > demands.lease
    remedy = (
        f"a step takes longer than the lease of {demands.lease:g} s: raise tours.lease in the job, or lower its batch"
    )
    time = Finding("time per visit", "fails", text, remedy) if slow else Finding("time per visit", "ok", text)
    return [time, of_memory(tried, demands, limits, machine_readings.free_memory(Path(limits.root)))]


def of_memory(tried: TrialResult, demands: JobDemands, limits: LimitSettings, free: float | None) -> Finding:
    """Check whether the memory that training takes is available and allowed."""
    if tried.job_kit:
        more = tried.parameters * 4 * VISIT_COPIES / _MB
    else:
        more = max(0, (demands.parameters or 0) - tried.parameters) * 4 * COPIES / _MB
    needed = tried.peak + more
    text = f"training takes {needed:.0f} MB" + (f" ({more:.0f} MB of it estimated)" if round(more) else "")
    if limits.memory is not None and needed > limits.memory:
        remedy = f"raise limits.memory above {needed:.0f}, or train smaller models or less data here"
        return Finding("memory", "fails", f"{text}; the limit is {limits.memory} MB", remedy)
    if free is None:
        return Finding("memory", "ok", text)
    text += f"; {free:.0f} MB are free"
    left = free - needed
    if left < (limits.free_memory or 0):
        return Finding("memory", "fails", text, "stop other programs, lower limits.free_memory, or use a larger board")
    tight = "close to the limit: add swap on zram, or stop other programs"
    return Finding("memory", "warning", text, tight) if left < needed / 2 else Finding("memory", "ok", text)


def of_sandbox(sandbox_report: SandboxReport) -> Finding:
    """Check what the sandbox of the training process blocks."""
    if sandbox_report.open:
        remedy = "use a newer kernel (Linux 5.13 or newer, with Landlock among its security modules)"
        return Finding("sandbox", "warning", f"training is sandboxed; {sandbox_report}", remedy)
    return Finding("sandbox", "ok", f"training is sandboxed; {sandbox_report}")


def of_disk(folder: Path, demands: JobDemands, limits: LimitSettings) -> Finding:
    """Check whether the store can be written, and has enough space for a visit."""
    free = machine_readings.free_disk(folder)
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if free is None or not os.access(existing, os.W_OK):
        remedy = f"let the agent's user write to {existing}, or set `store` to another folder"
        return Finding("disk", "fails", f"{folder} cannot be written by this user", remedy)
    needed = max(limits.free_disk or 0, _JOURNAL_SPACE + 3 * 4 * (demands.parameters or 0) / _MB)
    text = f"{free:.0f} MB are free at {existing}; {needed:.0f} MB are required"
    if free < needed:
        return Finding("disk", "fails", text, "free some space, or set `store` to a folder on another disk")
    return Finding("disk", "ok", text)


def of_broker(settings: AgentSettings) -> Finding:
    """Check whether the broker accepts the device."""
    where = settings.broker.address
    try:
        refused = connection_checks.refusal_of(settings.broker, settings.fleet, settings.name)
    except UserError as error:
        return Finding("broker", "fails", str(error), "correct [broker] in the settings")
    if refused:
        remedy = "correct [broker] in the settings, or ask the broker's administrator for this device's credentials"
        if SET_THE_CLOCK in refused:
            remedy = SET_THE_CLOCK
        return Finding("broker", "fails", refused, remedy)
    secure = "over TLS" if settings.broker.tls else "without TLS"
    return Finding("broker", "ok", f"{where} accepts {settings.name}, {secure}")


def of_mandates(settings: AgentSettings) -> Finding:
    """Check the keys of the operators who may let jobs train."""
    if settings.mandate.keys_file is None:
        return Finding("mandates", "ok", describe_trusted_keys({}))
    from sojourn.protocol.signing import read_publics  # noqa: PLC0415  # imported only if keys are configured

    try:
        keys = read_publics(settings.mandate.keys_file)
    except UserError as error:
        return Finding("mandates", "fails", str(error), "correct [mandate] in the settings, or the file that it names")
    return Finding("mandates", "ok", describe_trusted_keys(keys))


def of_clock(settings: AgentSettings, now: dt.datetime | None = None) -> Finding:
    """Check whether the clock can be correct."""
    now = now or dt.datetime.now(tz=dt.UTC)
    if fault := connection_checks.fault(settings.broker, now, connection_checks.installed()):
        return Finding("clock", "fails", fault, "set the clock: timedatectl set-ntp true, or date -s")
    text = f"{now:%Y-%m-%d %H:%M} UTC"
    if connection_checks.synchronised() is False:
        remedy = "the clock is not synchronised: timedatectl set-ntp true"
        return Finding("clock", "warning", text, remedy)
    return Finding("clock", "ok", text)


def of_limits(settings: AgentSettings) -> list[Finding]:
    """Check whether a visit would be accepted now, and whether the limits can be measured."""
    limits, root = settings.limits, Path(settings.limits.root)
    folder = store_folder(settings.store, settings.fleet, settings.name)
    seen = read_machine(limits, folder)
    pace, refused = Limits(limits, folder).judge()
    if refused:
        text = f"a visit would be declined now, {refused[0]}: {refused[1]}"
        found = [Finding("limits", "warning", text, "wait, or change [limits] in the settings")]
    elif pace < 1:
        text = f"{seen.celsius or 0:.0f} °C: training would be slowed to {pace:.0%} of the time"
        found = [Finding("limits", "warning", text, "cool the device")]
    else:
        found = [Finding("limits", "ok", "a visit would be accepted now")]
    if (limits.stop_at or limits.throttle_at) and seen.celsius is None:
        remedy = (
            f"no thermal zone is readable below {root / 'sys/class/thermal'}: the temperature limits have no effect"
        )
        found.append(Finding("temperature", "warning", "unknown", remedy))
    if missing := [name for name in limits.metered_interfaces if not (root / "sys/class/net" / name).exists()]:
        names = ", ".join(sorted(path.name for path in (root / "sys/class/net").glob("*")))
        text = f"interface {', '.join(missing)} not found"
        remedy = f"connect it, or correct limits.metered_interfaces; present: {names or 'none'}"
        found.append(Finding("metered", "warning", text, remedy))
    return found


def of_service(root: Path) -> Finding:
    """Check whether systemd starts the agent, with a watchdog."""
    try:
        unit = (root / UNIT).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Finding("service", "warning", "the agent does not start at boot", "run deploy/device/install.sh")
    if "WatchdogSec=" not in unit or "Type=notify" not in unit:
        remedy = "set Type=notify and WatchdogSec=120 in the unit, so that systemd restarts a hung agent"
        return Finding("service", "warning", "sojourn-agent.service has no watchdog", remedy)
    return Finding("service", "ok", "sojourn-agent.service, with a watchdog")
