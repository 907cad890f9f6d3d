"""Starting a job from the model of an earlier one: which model that is, and whether it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.jobs.start import read_start
from coordinator.records import ENDED
from sojourn.errors import InvalidBlob, InvalidMessage, JobError
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from coordinator.jobs.settings import JobSettings
    from coordinator.state import CoordinatorState
    from sojourn.store.blobs import BlobStore


class StartModel(msgspec.Struct, frozen=True):
    """The model that a job starts from, with the kit that says what it is; `source` is for people."""

    source: str
    kit: Ref
    model: Ref


def start_of(job: JobSettings, durable: CoordinatorState) -> StartModel | None:
    """The model that a job is to start from, None for a new one; JobError where it cannot be had."""
    if job.model.start is None:
        return None
    start = read_start(job.model.start, job.name)
    earlier = durable.jobs.get(start.job)
    if earlier is None:
        known = ", ".join(durable.jobs) or "none"
        raise JobError(f"model.start: there is no job {start.job!r}; the jobs are: {known}")
    if earlier.kit is None:
        raise JobError(f"model.start: job {start.job!r} is {earlier.status} and has no model")
    number = earlier.round_called(start.round)
    if number not in earlier.models:
        raise JobError(f"model.start: {earlier.not_kept(number)}")
    return StartModel(f"round {number} of job {start.job!r}", earlier.kit, earlier.models[number])


def objection_to_start(job: JobSettings, durable: CoordinatorState) -> str | None:
    """Why a job that is submitted cannot start as it says; of an earlier one that is not over yet, nobody knows."""
    if job.model.start is not None:
        earlier = durable.jobs.get(read_start(job.model.start, job.name).job)
        if earlier is not None and earlier.status not in ENDED:
            return None
    try:
        start_of(job, durable)
    except JobError as error:
        return str(error)
    return None


def waits_for(name: str, durable: CoordinatorState) -> str | None:
    """The name of a job that has not been compiled yet and starts from the model of this one."""
    for state in durable.jobs.values():
        start = state.settings.model.start
        if state.status not in ENDED and state.kit is None and start and read_start(start, state.name).job == name:
            return state.name
    return None


def started(start: StartModel, kit: Kit, blobs: BlobStore) -> NDArray[np.float32]:
    """The vector that a job with this kit starts from; JobError where the earlier model is of another form."""
    try:
        earlier = unpack_blob(blobs.read(start.kit.digest), Kit)
        vector = vectors.load(blobs, start.model, earlier.model)
    except (KeyError, InvalidBlob, InvalidMessage) as error:
        raise JobError(f"model.start: {start.source} cannot be read from the disk: {error}") from error
    if reason := _misfit(earlier, kit):
        raise JobError(
            f"model.start: {start.source} does not fit this job's model: {reason}. Give this job the same model.name, "
            "model.options and data, or leave model.start out"
        )
    return vector


def _misfit(earlier: Kit, kit: Kit) -> str | None:
    """In what two models differ, the first thing only."""
    theirs, ours = earlier.model.tensors, kit.model.tensors
    for their, our in zip(theirs, ours, strict=False):
        if their != our:
            return f"there {their.name} has the shape {list(their.shape)}, here {our.name} has {list(our.shape)}"
    if len(theirs) != len(ours):
        return f"it has {len(theirs)} tensors, and this one {len(ours)}"
    if earlier.classes != kit.classes:
        return f"its classes are {', '.join(earlier.classes)}, and this one's {', '.join(kit.classes)}"[:2000]
    return None
