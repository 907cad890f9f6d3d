"""Whether a job fits this device: findings, each with what to do about it."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from edge_agent.limits import readings
from edge_agent.limits.rules import Limits, lack_of_memory, look
from edge_agent.mandates import whose_word
from edge_agent.setup import broker_check, clock_check, training_trial
from sojourn.errors import MachineError, UserError
from sojourn.links.clock_fault import SET_THE_CLOCK
from sojourn.parts import Training
from sojourn.protocol.spec import TableSpec
from sojourn.protocol.task import Kind, Size, Strata, TaskSpec, Window
from sojourn.protocol.wire import TrainingSize
from sojourn.settings import Texts, store_folder, validated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edge_agent.limits.settings import LimitSettings
    from edge_agent.settings import AgentSettings
    from edge_agent.setup.training_trial import TrialResult
    from edge_agent.training.cage import CageReport

Verdict = Literal["ok", "warning", "fails"]
UNIT = "etc/systemd/system/sojourn-agent.service"
COPIES = 6
"""Vectors of the model's size that a worker holds: the model, where it began, gradient, momentum, what is written."""
VISIT_COPIES = 2
"""Those that a visit holds and a trial of the job's own model does not: where it began, and what is written."""
_MB = 1 << 20
_ROOM = 64
"""Megabytes of disk for the journal, and to spare."""
_LEAST_CLASSES = 2
"""With fewer classes than this a device is warned about."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it is fine, what was found, and what to do about it."""

    what: str
    verdict: Verdict
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class JobDemands:
    """What a job will ask of a device, as far as its file tells: a strategy may have other defaults."""

    training: Training = Training()  # noqa: RUF009  # frozen
    threads: int | None = None
    classes: tuple[str, ...] = ()
    lease: float = 60.0
    parameters: int | None = None
    task: TaskSpec | None = None
    """What is learnt, where it is no plain classification."""
    kit: Path | None = None
    """The file of the job's compiled kit."""
    table: TableSpec | None = None
    """The columns of the job's table, as far as its file names them."""


class TaskRequest(msgspec.Struct, frozen=True):
    """What a job file says of its task, as far as data is read by it."""

    kind: Kind = "classification"
    targets: tuple[str, ...] = ()
    steps: Size | None = None
    horizon: Size = 1
    stride: Size = 1

    def spec(self) -> TaskSpec | None:
        """The task, without what only a compiled job knows."""
        if self.kind == "classification":
            return None
        window = Window(self.steps, self.horizon, self.stride) if self.kind == "forecast" and self.steps else None
        return TaskSpec(self.kind, (), None, Strata(1), names=self.targets, window=window)


def demands_of(
    job: Mapping[str, Any], parameters: int | None = None, where: str = "the job", kit: Path | None = None
) -> JobDemands:
    """What a job file asks of a device."""

    class JobRequest(msgspec.Struct):
        texts: ClassVar[Texts] = {"task": lambda kind: {"kind": kind}}
        training: Training = Training()
        threads: int | None = None
        data: dict[str, Any] = {}
        tours: dict[str, Any] = {}
        task: TaskRequest = TaskRequest()

    asked = validated(dict(job), JobRequest, where)
    classes = tuple(str(name) for name in asked.data.get("classes", ()))
    lease = float(asked.tours.get("lease", 60.0))
    task = asked.task.spec()
    table = table_in(asked.data, Path(where).parent, task)
    return JobDemands(asked.training, asked.threads, classes, lease, parameters, task, kit, table)


def table_in(data: Mapping[str, Any], folder: Path, task: TaskSpec | None = None) -> TableSpec | None:
    """The columns that a job's [data] names, or else those in its test set, if that is on this machine."""

    class DataRequest(msgspec.Struct):
        test: str | None = None
        columns: tuple[str, ...] = ()
        label: str | int | None = None
        header: bool | None = None
        ignore: tuple[str | int, ...] = ()
        time: str | int | None = None
        series: str | int | None = None
        by_position: bool = False

    asked = validated(dict(data), DataRequest, "[data]")
    label = asked.label if isinstance(asked.label, str) and asked.label not in ("first", "last") else None
    if asked.columns:
        return TableSpec(asked.columns, label, by_position=asked.by_position)
    if asked.test is not None and asked.test.endswith(".csv") and (folder / asked.test).is_file():
        from sojourn.data.column_names import table_of  # noqa: PLC0415  # numpy comes with these
        from sojourn.data.source import read_as, read_content  # noqa: PLC0415

        how = {key: getattr(asked, key) for key in ("label", "header", "ignore", "time", "series")}
        content = read_content(read_as(str(folder / asked.test), **how), "test", task=task)
        if content.table and content.table.columns:
            return msgspec.structs.replace(table_of(content.source, content.table), by_position=asked.by_position)
    # The job's label is known, and its other columns are not: these cannot be checked here.
    return TableSpec((), label, by_position=True) if label else None


def preflight(settings: AgentSettings, demands: JobDemands) -> list[Finding]:
    """Look at everything that a job needs; nothing of it changes the device."""
    folder = store_folder(settings.store, settings.fleet, settings.name)
    threads = demands.threads or settings.threads or os.cpu_count() or 1
    found: list[Finding] = []
    kit = demands.kit
    if kit:
        demands = replace(demands, parameters=training_trial.read_kit(kit)[0].model.size)
    if kit and (too_large := of_kit(kit, demands, settings.limits)):
        found.append(too_large)
        kit = None  # to try it could bring the whole device to a halt
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
        remedy = "reinstall sojourn; on a small board free memory first, and see firmware_notes/"
        found.append(Finding("training", "fails", str(error), remedy))
    else:
        training = of_training(tried, demands, settings.limits)
        if kit != demands.kit:  # what the built-in model takes would only mislead
            training = [each for each in training if each.verdict == "fails"]
        found += [of_data(tried, demands), *training, of_cage(tried.cage)]
    found += [of_disk(folder, demands, settings.limits), of_broker(settings), of_clock(settings), *of_limits(settings)]
    return [*found, of_mandates(settings), of_service(Path(settings.limits.root))]


def compiled(job: Path, folder: Path) -> Path | Finding:
    """The file with the job's kit, compiled in a process of its own into this folder; or why there is none."""
    remedy = (
        f"where the coordinator is installed, run `sojourn job kit {job.name}`, copy the file that it writes, and name "
        "it with --kit; or give the number of the model's parameters with --parameters"
    )
    untried = "memory and time are those of the built-in cnn, not of the job's model"
    if not all(map(find_spec, ("coordinator", "torch", "onnxscript"))):
        return Finding("model", "warning", f"{untried}: this device cannot compile it", remedy)
    made = folder / "job.kit"
    command = [sys.executable, "-m", "sojourn.cli", "job", "kit", str(job), "--output", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Finding("model", "warning", f"{untried}, which did not compile here: {words[-1]}", remedy)
    return made


def of_kit(path: Path, demands: JobDemands, limits: LimitSettings) -> Finding | None:
    """Why the job's model is too large to be tried here; None where it may fit."""
    kit, size = training_trial.read_kit(path)
    needed = TrainingSize(kit.model.size, 0, 0).memory(demands.training.batch, size) / _MB
    lack = lack_of_memory(limits, needed, readings.available_memory(Path(limits.root)))
    if lack is None:
        return None
    text, _, advice = lack[1].partition(": ")
    return Finding("memory", "fails", f"{text}; the model has {kit.model.size:,} parameters", advice)


def of_data(tried: TrialResult, demands: JobDemands) -> Finding:
    """What the data was taken for, and whether it fits: samples of the job's classes, nothing odd about it."""
    found = tried.data
    if found.summary.fault:
        return Finding("data", "fails", found.summary.fault, "correct [data] in the settings, or put the data there")
    text = "\n".join(found.facts)
    common = [name for name in found.classes if name in demands.classes]
    if demands.classes and not common and demands.task is None:
        remedy = (
            f"the job's classes are {', '.join(demands.classes[:5])}: name yours alike, or set class_names in [data]"
        )
        return Finding("data", "fails", f"{text}\nnone of its classes is one of the job", remedy)
    if found.warnings:
        odd = "\n".join([text, *(f"odd: {each}" for each in found.warnings)])
        return Finding("data", "warning", odd, "mend what is odd; if it is meant so, nothing")
    if found.classes and demands.task is None and len(common or found.classes) < _LEAST_CLASSES:
        return Finding("data", "warning", text, "a device with one class learns little that others can use")
    return Finding("data", "ok", text)


def of_training(tried: TrialResult, demands: JobDemands, limits: LimitSettings) -> list[Finding]:
    """Whether a worker runs here, how long a visit takes, and whether its memory is there."""
    if tried.training_fault:
        remedy = "reinstall onnxruntime and numpy for this board, see firmware_notes/"
        return [Finding("training", "fails", tried.training_fault, remedy)]
    steps = demands.training.epochs * -(-max(tried.data.summary.samples, 1) // demands.training.batch)
    seconds = tried.start_seconds + steps * tried.step_seconds / limits.cpu_share
    model = "the job's model" if tried.own else "the built-in cnn"
    text = (
        f"{seconds:.1f} s for {steps} steps of {model} ({tried.parameters:,} parameters): "
        f"{tried.step_seconds * 1e3:.1f} ms a step, {tried.start_seconds:.1f} s to start"
    )
    slow = tried.step_seconds > demands.lease
    remedy = (
        f"a step takes longer than the lease of {demands.lease:g} s: raise tours.lease in the job, or lower its batch"
    )
    time = Finding("time per visit", "fails", text, remedy) if slow else Finding("time per visit", "ok", text)
    return [time, of_memory(tried, demands, limits, readings.free_memory(Path(limits.root)))]


def of_memory(tried: TrialResult, demands: JobDemands, limits: LimitSettings, free: float | None) -> Finding:
    """Whether the memory that training takes is there and allowed."""
    if tried.own:
        more = tried.parameters * 4 * VISIT_COPIES / _MB
    else:
        more = max(0, (demands.parameters or 0) - tried.parameters) * 4 * COPIES / _MB
    needed = tried.peak + more
    text = f"training takes {needed:.0f} MB" + (f" ({more:.0f} MB of it estimated)" if more else "")
    if limits.memory is not None and needed > limits.memory:
        remedy = f"raise limits.memory above {needed:.0f}, or train smaller models or less data here"
        return Finding("memory", "fails", f"{text}; it may take {limits.memory} MB", remedy)
    if free is None:
        return Finding("memory", "ok", text)
    text += f"; {free:.0f} MB are free"
    left = free - needed
    if left < (limits.free_memory or 0):
        return Finding("memory", "fails", text, "stop other programs, lower limits.free_memory, or use a larger board")
    tight = "close to the limit: add swap on zram, or stop other programs"
    return Finding("memory", "warning", text, tight) if left < needed / 2 else Finding("memory", "ok", text)


def of_cage(cage: CageReport) -> Finding:
    """What graphs of others cannot do here."""
    if cage.open:
        remedy = "a newer kernel closes this too (Linux 5.13 with Landlock among its security modules)"
        return Finding("cage", "warning", f"training runs caged; {cage}", remedy)
    return Finding("cage", "ok", f"training runs caged; {cage}")


def of_disk(folder: Path, demands: JobDemands, limits: LimitSettings) -> Finding:
    """Whether the store can be written, and has the room for a visit."""
    free = readings.free_disk(folder)
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if free is None or not os.access(existing, os.W_OK):
        remedy = f"let the agent's user write to {existing}, or set `store` to another folder"
        return Finding("disk", "fails", f"{folder} cannot be written by this user", remedy)
    needed = max(limits.free_disk or 0, _ROOM + 3 * 4 * (demands.parameters or 0) / _MB)
    text = f"{free:.0f} MB are free at {existing}; {needed:.0f} MB must be"
    if free < needed:
        return Finding("disk", "fails", text, "free some space, or set `store` to a folder on another disk")
    return Finding("disk", "ok", text)


def of_broker(settings: AgentSettings) -> Finding:
    """Whether the broker lets the device in."""
    where = settings.broker.address
    try:
        refused = broker_check.refusal_of(settings.broker, settings.fleet, settings.name)
    except UserError as error:
        return Finding("broker", "fails", str(error), "correct [broker] in the settings")
    if refused:
        remedy = "correct [broker] in the settings, or ask whoever runs the broker for this device's credentials"
        if SET_THE_CLOCK in refused:
            remedy = SET_THE_CLOCK
        return Finding("broker", "fails", refused, remedy)
    secure = "over TLS" if settings.broker.tls else "without TLS"
    return Finding("broker", "ok", f"{where} lets {settings.name} in, {secure}")


def of_mandates(settings: AgentSettings) -> Finding:
    """Whose word lets jobs train here."""
    if settings.mandate.keys_file is None:
        return Finding("mandates", "ok", whose_word({}))
    from sojourn.protocol.signing import read_publics  # noqa: PLC0415  # cryptography only where keys are

    try:
        keys = read_publics(settings.mandate.keys_file)
    except UserError as error:
        return Finding("mandates", "fails", str(error), "correct [mandate] in the settings, or the file that it names")
    return Finding("mandates", "ok", whose_word(keys))


def of_clock(settings: AgentSettings, now: dt.datetime | None = None) -> Finding:
    """Whether the clock can be right."""
    now = now or dt.datetime.now(tz=dt.UTC)
    if fault := clock_check.fault(settings.broker, now, clock_check.installed()):
        return Finding("clock", "fails", fault, "set the clock: timedatectl set-ntp true, or date -s")
    text = f"{now:%Y-%m-%d %H:%M} UTC"
    if clock_check.synchronised() is False:
        remedy = "nothing keeps it right (the kernel says so): timedatectl set-ntp true"
        return Finding("clock", "warning", text, remedy)
    return Finding("clock", "ok", text)


def of_limits(settings: AgentSettings) -> list[Finding]:
    """Whether a visit would be taken now, and whether the limits can be known at all."""
    limits, root = settings.limits, Path(settings.limits.root)
    folder = store_folder(settings.store, settings.fleet, settings.name)
    seen = look(limits, folder)
    pace, refused = Limits(limits, folder).judge()
    if refused:
        text = f"a visit would be declined now, {refused[0]}: {refused[1]}"
        found = [Finding("limits", "warning", text, "wait, or change [limits] in the settings")]
    elif pace < 1:
        text = f"{seen.celsius or 0:.0f} °C: training would be slowed to {pace:.0%} of the time"
        found = [Finding("limits", "warning", text, "cool the device")]
    else:
        found = [Finding("limits", "ok", "a visit would be taken now")]
    if (limits.stop_at or limits.throttle_at) and seen.celsius is None:
        remedy = f"no thermal zone is readable below {root / 'sys/class/thermal'}: heat is not watched"
        found.append(Finding("temperature", "warning", "not known", remedy))
    if lacking := [name for name in limits.metered_interfaces if not (root / "sys/class/net" / name).exists()]:
        names = ", ".join(sorted(path.name for path in (root / "sys/class/net").glob("*")))
        text = f"there is no interface {', '.join(lacking)} now"
        found.append(Finding("metered", "warning", text, f"unless it is plugged in later: there are {names or 'none'}"))
    return found


def of_service(root: Path) -> Finding:
    """Whether systemd starts the agent and watches it."""
    try:
        unit = (root / UNIT).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Finding("service", "warning", "nothing starts the agent at boot", "run deploy/device/install.sh")
    if "WatchdogSec=" not in unit or "Type=notify" not in unit:
        remedy = "set Type=notify and WatchdogSec=120 in it: a hung agent is then started again"
        return Finding("service", "warning", "sojourn-agent.service has no watchdog", remedy)
    return Finding("service", "ok", "sojourn-agent.service, with a watchdog")
