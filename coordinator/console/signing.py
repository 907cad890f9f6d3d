"""Sign a job: compile its kit again, compare it with the coordinator's, and create the mandate."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from coordinator.jobs.data import PublicData
from coordinator.jobs.settings import JobSettings, read_job
from coordinator.jobs.task_data import task_from_settings
from coordinator.machine.mandates import compilers
from coordinator.rounds.estimation import on_device
from coordinator.rounds.orders import all_tasks
from coordinator.rounds.preparing import compiled_here
from coordinator.strategies import Strategy
from sojourn.errors import ConfigError, InvalidMessage, JobError, MachineError, require_extra
from sojourn.model.vectors import spec_of_vector
from sojourn.parts import EdgeCloud, name_of
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import LABEL
from sojourn.protocol.mandates import NAMED, Mandate, Normalisation, Withdrawal, sign_mandate, sign_withdrawal
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import JobView
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from coordinator.console.operator import Operator
    from sojourn.protocol.signing import Signer


DAY = 86_400.0
FLOAT32 = 4
DEFAULT_VALIDITY = 30 * DAY
"""Default validity of a mandate in seconds."""
MAX_VALIDITY = 366 * DAY
"""Maximum validity of a mandate, since devices remember withdrawals for this time."""
RETRY_FACTOR, EXTRA_VISITS = 3, 20
"""Factor and number of additional visits that a mandate permits per device beyond a job without failures: visits are
lost and retried, and devices are estimated again."""
MAX_SIGNATURE_SIZE = 4096
"""Maximum numbers that a message can carry about a device's data."""
_SPAN = re.compile(r"(?P<number>\d{1,5})(?P<unit>[hdw])")
_UNITS = {"h": 3600.0, "d": DAY, "w": 7 * DAY}


@dataclass(frozen=True)
class Terms:
    """The signer's terms in addition to the job: duration in seconds, sites, purpose, and maximum visits."""

    operator: str
    seconds: float = DEFAULT_VALIDITY
    sites: tuple[str, ...] = ()
    purpose: str = ""
    visits: int | None = None


def span_of(text: str) -> float:
    """Return the seconds in a text such as 12h, 30d or 8w."""
    found = _SPAN.fullmatch(text.strip())
    seconds = int(found["number"]) * _UNITS[found["unit"]] if found else 0.0
    if not 0 < seconds <= MAX_VALIDITY:
        raise ConfigError(f"--for {text!r} is not a valid duration of at most a year: write 12h, 30d or 8w")
    return seconds


def mandate_for(  # all parts of a mandate
    job: JobSettings, kit: Kit, digest: bytes, terms: Terms, *, fleet: str, now: float, after: int
) -> Mandate:
    """Return the mandate that permits exactly what the job file requires; `after` is the serial of its last one."""
    strategy = job.parts()
    largest = 4 * (kit.model.size + len(kit.model.tensors))
    return Mandate(
        fleet=fleet,
        job=job.name,
        serial=max(int(now * 1000), after + 1),
        operator=terms.operator,
        purpose=terms.purpose,
        issued=now,
        ends=now + terms.seconds,
        kit=digest,
        model=job.model.name[:LABEL],
        classes=tuple(name[:LABEL] for name in kit.classes[: NAMED if len(kit.classes) <= NAMED else 20]),
        class_count=len(kit.classes),
        sites=terms.sites,
        tasks=all_tasks(job),
        rounds=job.all_rounds,
        visits=terms.visits or _visits(job),
        returns=dict.fromkeys(("model", *strategy.objective.returns), largest) | _report_sizes(strategy, kit),
        signature_size=MAX_SIGNATURE_SIZE if on_device(strategy.estimator) else 0,
    )


def _report_sizes(strategy: Strategy, kit: Kit) -> dict[str, int]:
    """Return the size in bytes of the vectors that a device reports in addition to its model."""
    objective = strategy.objective
    return {name: FLOAT32 * spec_of_vector(name, objective, kit).size for name in objective.reports}


def _visits(job: JobSettings) -> int:
    schedule = job.parts().schedule
    waves = schedule.edge_merges if isinstance(schedule, EdgeCloud) else getattr(schedule, "passes", 1)
    return min(RETRY_FACTOR * job.all_rounds * waves + EXTRA_VISITS, 1 << 40)


# The signer's machine compiles a job's kit again, so that the signature confirms that the graphs compute this loss.
#
# This needs none of the job's data. From the data, a kit contains only the input's shape, the classes, the range of
# values, the normalisation and the strata of a task; these are taken from the coordinator unless the job's file sets
# them. Everything that a device runs on its data is compared to the byte. The probe's numbers are not: torch computes
# them, their last digits differ between processors, and they can only make a device decline.

TRUST = (
    "--trust-coordinator signs it anyway; then the signature no longer confirms that the graphs compute this loss's "
    "gradient: a compromised coordinator could extract samples with them"
)
_APART = ("probe",)
"""Parts that may differ between machines and never run on a device's data."""


def check_kit(
    job: JobSettings,
    kit: Kit,
    normalisation: Normalisation,
    notify: Callable[[str], None] = lambda _step: None,
    compilers: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> None:
    """Raise JobError if a kit is not what this job compiles to here, or if that cannot be checked.

    compilers: the versions that made the kit. own: the versions on this machine.
    """
    try:
        require_extra("cloud", "compiling the job again")
    except MachineError as error:
        raise JobError(f"{error}. Sign on a machine that can compile the job. {TRUST}") from error
    if why := _contradiction(job, kit, normalisation):
        raise JobError(f"the coordinator's kit does not match the job: {why}")
    if (start := job.model.start) and not job.model.start_file and (job.model.trains or job.model.new_head):
        raise JobError(f"the kit contains the weights {start!r}, which only the coordinator has. {TRUST}")
    public = PublicData(
        kit.input, kit.classes, normalisation.mean, normalisation.std, None, None,
        task=kit.task, scaling=normalisation.scaling,
    )  # fmt: skip
    made = msgspec.structs.replace(
        compiled_here(job, public, notify), values=kit.values, task=kit.task, table=kit.table
    )
    if differs := differences(made, kit):
        versions = (
            f"it was made with {', '.join(compilers)}, but this machine has {', '.join(own)}: use the same versions. "
            if compilers != own
            else "The versions are the same: the kit was not compiled from this job. "
        )
        raise JobError(
            f"compiled here, the job's {', '.join(differs)} differ from the coordinator's. {versions}{TRUST}"
        )


def differences(made: Kit, received: Kit) -> list[str]:
    """Return the names of the parts that differ between two kits, among those that run on a device's data."""
    names = [name for name in Kit.__struct_fields__ if name not in _APART]
    first, second = (_without_probes(kit) for kit in (made, received))
    return [name for name in names if _bytes(getattr(first, name)) != _bytes(getattr(second, name))]


def _without_probes(kit: Kit) -> Kit:
    """Return the kit without probes, including torch's numbers about a second stream."""
    if not kit.two_stream:
        return kit
    bare = msgspec.structs.replace(kit.two_stream, loss=0.0, norm=0.0, values=(), state=())
    return msgspec.structs.replace(kit, two_stream=bare)


def _bytes(value: object) -> bytes:
    return b"" if value is None else msgspec.msgpack.encode(value)


def _contradiction(job: JobSettings, kit: Kit, normalisation: Normalisation) -> str | None:
    """Return a contradiction between the job's file and the kit, or None."""
    data = job.data
    values = {
        "classes": (data.classes, kit.classes),
        "input": (data.input, kit.input.shape),
        "mean": (data.mean, normalisation.mean),
        "std": (data.std, normalisation.std),
        "columns": (data.columns, kit.table.columns if kit.table else ()),
        "label": ((data.label_name,) if data.label_name and kit.table else None, (kit.table and kit.table.label,)),
        "range": (data.range, (kit.values.low, kit.values.high) if kit.values else None),
    }
    for name, (wanted, found) in values.items():
        if wanted is not None and tuple(wanted) != tuple(found or ()):
            return f"data.{name} is {wanted} in its file, but {found} in the kit"
    if kit.table and kit.table.by_position != data.by_position:
        return f"data.by_position is {data.by_position} in its file, but {kit.table.by_position} in the kit"
    if data.dtype != kit.input.dtype and job.task.kind != "tokens":
        return f"data.dtype is {data.dtype} in its file, but {kit.input.dtype} in the kit"
    return _other_task(job, kit)


def _other_task(job: JobSettings, kit: Kit) -> str | None:
    """Return a contradiction between the job's file and the kit about the task, or None."""
    if job.task.plain or not kit.task:
        return None if job.task.plain and not kit.task else "one of them is a plain classifier, and the other is not"
    wanted, found = task_from_settings(job.task), kit.task
    for name in ("kind", "loss", "window", "reference_models", "normal", *(["names"] if wanted.names else [])):
        if getattr(wanted, name) != getattr(found, name):
            return f"task.{name} is {getattr(wanted, name)} in its file, but {getattr(found, name)} in the kit"
    return None


PAUSE = 0.5
MAX_CLOCK_SKEW = 86_400.0
"""Maximum seconds by which the clocks of operators may differ."""


def prepared(
    operator: Operator, name: str, text: str, terms: Terms, notify: Callable[[str], None], *, trusting: bool = False
) -> Mandate:
    """Return the mandate for a job with this text, after its kit was compiled and compared.

    trusting: do not compile the job again, and trust the coordinator's kit.
    """
    _wait_for_kit(operator, name, notify)
    job = read_job(text, f"job {name}")
    details, content = operator.kit(name)
    try:
        kit = unpack_blob(content, Kit)
    except InvalidMessage as error:
        raise JobError(f"the coordinator's kit cannot be read: {error}") from error
    if not trusting:
        notify("compiling the job again, to compare")
        check_kit(job, kit, details.normalisation, notify, details.compilers, compilers())
    digest, now = ref_of(content).digest, time.time()
    if details.serial > 1000 * (now + MAX_CLOCK_SKEW):
        raise JobError(
            f"the serial {details.serial} of the job's last mandate, as the coordinator reports it, is in the "
            "future: its clock or yours is wrong, or it is compromised; submit the job under another name"
        )
    return mandate_for(job, kit, digest, terms, fleet=operator.fleet, now=now, after=details.serial)


def mandate_lines(mandate: Mandate, *, checked: bool) -> list[str]:
    """Describe a mandate for its signer."""
    kit = "identical to the one compiled here" if checked else "as the coordinator made it, not compared"
    lines = [
        f"mandate {mandate.serial} for job {mandate.job} of the fleet {mandate.fleet}",
        f"  kit      {mandate.kit.hex()[:16]}, {kit}",
        f"  model    {mandate.model}, {mandate.class_count} classes: {', '.join(mandate.classes[:10])}",
    ]
    for task in mandate.tasks:
        it = task.training
        what = name_of(task.estimator) if task.estimator else f"objective {name_of(task.objective)}"
        how = f"{it.epochs} epochs in batches of {it.batch}, {it.optimiser}, rate {it.lr:g}"
        lines.append(f"  {task.kind:<9}{how}, {what}")
    returns = ", ".join(f"{name} (at most {size:,} bytes)" for name, size in mandate.returns.items())
    lines.append(
        f"  returns  {returns}" + (f", {mandate.signature_size} numbers of its data" if mandate.signature_size else "")
    )
    lines.append(f"  rounds   {mandate.rounds}, with at most {mandate.visits} results of each device")
    lines.append(f"  where    {', '.join(mandate.sites) or 'all sites'}")
    lines.append(f"  until    {utc_date(mandate.ends)}")
    return lines


def utc_date(moment: float) -> str:
    """Return a date and time in UTC, as all signers and devices read it."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def give(operator: Operator, mandate: Mandate, signer: Signer) -> JobView:
    """Sign the mandate, and let the job continue."""
    return operator.sign(sign_mandate(mandate, signer))


def withdraw(operator: Operator, name: str, who: str, signer: Signer) -> tuple[JobView, ...]:
    """Sign that all mandates of a job so far are withdrawn, and notify devices.

    Serials of mandates are times: one signed by a clock ahead of this one remains valid, as the answer shows.
    """
    now = time.time()
    it = Withdrawal(
        fleet=operator.fleet, job=name, serial=int(now * 1000), operator=who, issued=now, ends=now + MAX_VALIDITY
    )
    return operator.withdraw(sign_withdrawal(it, signer))


def same_job(mine: str, theirs: str) -> bool:
    """Return whether two job files mean the same job, with the same tasks for devices."""
    return msgspec.json.encode(read_job(mine, "mine")) == msgspec.json.encode(read_job(theirs, "theirs"))


def _wait_for_kit(operator: Operator, name: str, notify: Callable[[str], None]) -> None:
    shown = ""
    while (view := operator.job(name)).status in ("queued", "compiling"):
        if (text := view.detail or view.status) != shown:
            notify(f"job {name}: {text}")
            shown = text
        time.sleep(PAUSE)
    if view.status in ("refused", "failed", "stopped") and not view.round:
        raise JobError(f"job {name} is {view.status}: {view.detail}")
