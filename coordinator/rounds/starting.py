"""Find the earlier model that a job starts from, and check that it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.jobs.model import EarlierWeights, named_tensors
from coordinator.jobs.settings import JobSettings, read_start
from coordinator.records import ENDED
from coordinator.state import CoordinatorState
from sojourn.errors import InvalidBlob, InvalidMessage, JobError
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StartModel(msgspec.Struct, frozen=True):
    """The model that a job starts from, with the kit that describes it; `source` is its description for people."""

    source: str
    kit: Ref
    model: Ref


def start_of(job: JobSettings, durable: CoordinatorState) -> StartModel | None:
    """Return the model that a job starts from, None for a new one; raises JobError if it is not available."""
    start = read_start(job.model.start, job.name) if job.model.start is not None else None
    if start is None:
        return None
    earlier = durable.jobs.get(start.job)
    if earlier is None:
        raise JobError(f"model.start: {durable.no_such_job(start.job)}")
    if earlier.kit is None:
        raise JobError(f"model.start: job {start.job!r} is {earlier.status} and has no model")
    if not earlier.history:
        raise JobError(f"model.start: no device has trained the model of job {start.job!r}, which is {earlier.status}")
    number = earlier.round_called(start.round)
    if number not in earlier.models:
        raise JobError(f"model.start: {earlier.not_kept(number)}")
    return StartModel(f"round {number} of job {start.job!r}", earlier.kit, earlier.models[number])


def start_refusal_reason(job: JobSettings, durable: CoordinatorState) -> str | None:
    """Return why a submitted job cannot start as configured, or None; an unfinished earlier job is checked later."""
    if job.model.start is not None and (named := read_start(job.model.start, job.name)):
        earlier = durable.jobs.get(named.job)
        if earlier is not None and earlier.status not in ENDED:
            return None
    try:
        start_of(job, durable)
    except JobError as error:
        return str(error)
    return None


def waits_for(name: str, durable: CoordinatorState) -> str | None:
    """Return the name of a job that is not compiled yet and starts from the model of this one, or None."""
    for state in durable.jobs.values():
        start = state.settings.model.start
        if state.status in ENDED or state.kit is not None or start is None:
            continue
        if (earlier := read_start(start, state.name)) and earlier.job == name:
            return state.name
    return None


def earlier_weights(job: JobSettings, start: StartModel, blobs: BlobStore) -> EarlierWeights | None:
    """Return the earlier model's tensors by name, if this job has another head or trains other tensors.

    None if the earlier vector can be used as it is, as for two jobs that train all of one model.
    """
    kit, vector = _read(start, blobs)
    if kit.frozen and not job.model.trains:
        raise JobError(
            f"model.start: {start.source} has tensors that were not trained: list the tensors that this job trains, "
            'model.trains = ["*"] for all'
        )
    if not job.model.trains and not job.model.new_head:
        return None
    return EarlierWeights(start.source, named_tensors(kit, vector))


def started(start: StartModel, kit: Kit, blobs: BlobStore) -> NDArray[np.float32]:
    """Return the vector that a job with this kit starts from; raises JobError if the earlier model has another form."""
    earlier, vector = _read(start, blobs)
    if reason := _misfit(earlier, kit):
        raise JobError(
            f"model.start: {start.source} does not fit this job's model: {reason}. Use the same model.name, "
            "model.options and data for this job, or remove model.start"
        )
    return vector


def _read(start: StartModel, blobs: BlobStore) -> tuple[Kit, NDArray[np.float32]]:
    try:
        earlier = unpack_blob(blobs.read(start.kit.digest), Kit)
        return earlier, vectors.load(blobs, start.model, earlier.model)
    except (KeyError, InvalidBlob, InvalidMessage) as error:
        raise JobError(f"model.start: {start.source} cannot be read from the disk: {error}") from error


def _misfit(earlier: Kit, kit: Kit) -> str | None:
    """Return the first difference between two models, or None."""
    theirs, ours = earlier.model.tensors, kit.model.tensors
    for their, our in zip(theirs, ours, strict=False):
        if their != our:
            return f"there {their.name} has the shape {list(their.shape)}, here {our.name} has {list(our.shape)}"
    if len(theirs) != len(ours):
        return f"it has {len(theirs)} tensors, and this one {len(ours)}"
    if earlier.classes != kit.classes:
        return f"its classes are {', '.join(earlier.classes)}, and this one's {', '.join(kit.classes)}"[:2000]
    if earlier.learns.kind != kit.learns.kind:
        return f"it was trained for {earlier.learns.kind}, and this one is for {kit.learns.kind}"
    return None
