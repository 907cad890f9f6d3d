"""Compiling a job's kit again, on the machine of whoever signs it: so that a signature means *this loss's gradient*.

None of the job's data is needed: of that only the input's shape, the classes, the range of values, the normalisation
and the strata of a task go into a kit, and these are taken as the coordinator says, unless the job's file says
otherwise. What is compared, to the byte, is all that a device runs on its data. The probe's figures are not: they are
torch's, differ between processors in their last digits, and only make a device decline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.jobs.data import PublicData
from coordinator.jobs.task_data import asked_task
from coordinator.rounds.preparing import compiled_here
from sojourn.errors import JobError, MachineError
from sojourn.extras import need
from sojourn.protocol.spec import Kit

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.jobs.settings import JobSettings
    from sojourn.protocol.mandate_messages import Normalisation

TRUST = (
    "--trust-coordinator signs it all the same; then the signature no longer says that the graphs compute this loss's "
    "gradient, only that the coordinator says so: a coordinator in wrong hands could bring samples home in them"
)
_APART = ("probe",)
"""What may differ between machines and is not run on anybody's data."""


def check_kit(
    job: JobSettings,
    kit: Kit,
    normalisation: Normalisation | None,
    say: Callable[[str], None] = lambda _step: None,
    compilers: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> None:
    """Make sure that a kit is what this job compiles to here; JobError where it is not, or where nobody can tell.

    compilers: what made the kit; own: what is here.
    """
    try:
        need("cloud", "compiling the job again")
    except MachineError as error:
        raise JobError(f"{error}. Sign on a machine that can. {TRUST}") from error
    if normalisation is None:
        raise JobError(f"an earlier version compiled this job and does not say with what. Submit it again. {TRUST}")
    if why := _contradiction(job, kit, normalisation):
        raise JobError(f"the coordinator's kit is not of this job: {why}")
    if (start := job.model.start) and not job.model.start_file and (job.model.trains or job.model.new_head):
        raise JobError(f"the kit has weights of {start!r} in it, which only the coordinator has. {TRUST}")
    told = PublicData(
        kit.input, kit.classes, normalisation.mean, normalisation.std, None, None,
        task=kit.task or None, scaling=normalisation.scaling,
    )  # fmt: skip
    made = msgspec.structs.replace(compiled_here(job, told, say), values=kit.values, task=kit.task, table=kit.table)
    if differs := differences(made, kit):
        versions = (
            f"it was made with {', '.join(compilers)}, and here are {', '.join(own)}: sign with the same versions. "
            if compilers != own
            else "The versions are the same: whoever made it did not compile this job. "
        )
        raise JobError(
            f"compiled here, the job's {', '.join(differs)} differ from the coordinator's. {versions}{TRUST}"
        )


def differences(made: Kit, told: Kit) -> list[str]:
    """The parts of two kits that are not the same, of all that runs on a device's data."""
    names = [name for name in Kit.__struct_fields__ if name not in _APART]
    first, second = (_without_probes(kit) for kit in (made, told))
    return [name for name in names if _bytes(getattr(first, name)) != _bytes(getattr(second, name))]


def _without_probes(kit: Kit) -> Kit:
    """What torch says of a second stream is a probe's figure, too."""
    if not kit.two_stream:
        return kit
    bare = msgspec.structs.replace(kit.two_stream, loss=0.0, norm=0.0, values=(), state=())
    return msgspec.structs.replace(kit, two_stream=bare)


def _bytes(value: object) -> bytes:
    return b"" if isinstance(value, msgspec.UnsetType) else msgspec.msgpack.encode(value)


def _contradiction(job: JobSettings, kit: Kit, normalisation: Normalisation) -> str | None:
    """What the job's file says otherwise than the kit."""
    data = job.data
    said = {
        "classes": (data.classes, kit.classes),
        "input": (data.input, kit.input.shape),
        "mean": (data.mean, normalisation.mean),
        "std": (data.std, normalisation.std),
        "columns": (data.columns, kit.table.columns if kit.table else ()),
        "label": ((data.label_name,) if data.label_name and kit.table else None, (kit.table and kit.table.label,)),
        "range": (data.range, (kit.values.low, kit.values.high) if kit.values else None),
    }
    for name, (wanted, found) in said.items():
        if wanted is not None and tuple(wanted) != tuple(found or ()):
            return f"data.{name} is {wanted} in its file, and {found} in the kit"
    if kit.table and kit.table.by_position != data.by_position:
        return f"data.by_position is {data.by_position} in its file, and {kit.table.by_position} in the kit"
    if data.dtype != kit.input.dtype and job.task.kind != "tokens":
        return f"data.dtype is {data.dtype} in its file, and {kit.input.dtype} in the kit"
    return _other_task(job, kit)


def _other_task(job: JobSettings, kit: Kit) -> str | None:
    """What the job's file says otherwise of what is learnt."""
    if job.task.plain or not kit.task:
        return None if job.task.plain and not kit.task else "one of them is a plain classifier, and the other is not"
    wanted, found = asked_task(job.task), kit.task
    for name in ("kind", "loss", "window", "beside", "normal", *(["names"] if wanted.names else [])):
        if getattr(wanted, name) != getattr(found, name):
            return f"task.{name} is {getattr(wanted, name)} in its file, and {getattr(found, name)} in the kit"
    return None
