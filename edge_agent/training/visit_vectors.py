"""The vectors that a visit receives, stores and sends, and the reasons for declining it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edge_agent.training.messages import Train
from sojourn.errors import (
    ConfigError,
    DataError,
    DiskFull,
    GraphRefused,
    InvalidBlob,
    InvalidMessage,
    JobError,
    SojournError,
)
from sojourn.model import vectors
from sojourn.model.vectors import spec_of_vector
from sojourn.parts import name_of
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import Kit, ModelSpec
from sojourn.protocol.wire import Ref, Task, VisitReason
from sojourn.store.blobs import BlobStore, digest_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Named = dict[str, NDArray[np.float32]]


_ALLOCATION_FAILED = ("failed to allocate", "bad_alloc", "bad allocation", "out of memory")


class RuntimeDiffers(SojournError):
    """This machine's onnxruntime does not reproduce the kit's probe."""


class Unsupported(SojournError):
    """The task needs a feature that this agent does not have."""


REASONS: tuple[tuple[type[Exception], VisitReason], ...] = (
    (DataError, "data"),
    (RuntimeDiffers, "runtime"),
    (Unsupported, "unsupported"),
    (ConfigError, "unsupported"),  # a custom objective that cannot be created
    (JobError, "unsupported"),
    (GraphRefused, "unsupported"),
    (InvalidMessage, "unsupported"),  # a blob that is not a kit
    (DiskFull, "disk"),
    (MemoryError, "memory"),
)
"""The reason for declining a visit after each error; after any other error it is `failed`."""


def reason_of(error: Exception) -> VisitReason:
    """Return the reason for an error."""
    if reason := next((reason for kind, reason in REASONS if isinstance(error, kind)), None):
        return reason
    # onnxruntime has no separate exception for failed allocations.
    return "memory" if any(text in str(error).lower() for text in _ALLOCATION_FAILED) else "failed"


log = logging.getLogger(__name__)


def model_of(visit: Visit, blobs: BlobStore, spec: ModelSpec) -> NDArray[np.float32]:
    """Load the model of the visit's order."""
    ref = visit.vectors.get("model")
    if ref is None or ref.delta:
        raise Unsupported("a visit must contain a complete model")
    return vectors.load(blobs, ref, spec)


def companions_of(visit: Visit, blobs: BlobStore, kit: Kit) -> Named:
    """Load the vectors that came with the model; raise Unsupported if the objective needs another one."""
    refs = {name: ref for name, ref in visit.vectors.items() if name != "model" and ref.encoding != "raw"}
    objective = visit.task.objective
    if missing := [name for name in objective.receives if name not in refs]:
        raise Unsupported(f"the objective {name_of(objective)!r} needs the vector {missing[0]!r}, which is missing")
    return {name: vectors.load(blobs, ref, spec_of_vector(name, objective, kit)) for name, ref in refs.items()}


def memory_of(work: Train, blobs: BlobStore, spec: ModelSpec) -> tuple[Named, int]:
    """Load the objective's memory and its number of visits; return an empty memory if a part is lost."""
    try:
        return {name: _intact(ref, blobs, spec) for name, ref in work.memory.items()}, work.remembered
    except (KeyError, OSError, InvalidBlob) as error:
        why = "a blob is missing" if isinstance(error, KeyError) else str(error)
        log.warning("%s: the objective's memory is lost and starts empty: %s", work.visit.id, why)
        return {}, 0


def save_model(
    blobs: BlobStore, start: NDArray[np.float32], end: NDArray[np.float32], task: Task, spec: ModelSpec
) -> Ref:
    """Store the model to send, in the task's encoding."""
    if task.encoding == "float32":
        return vectors.save(blobs, end, "float32", spec)
    # Differences are small, so a coarse encoding loses little precision.
    return vectors.save(blobs, vectors.difference(end, start, spec), task.encoding, spec, delta=True)


def sent_model(blobs: BlobStore, start: NDArray[np.float32], sent: Ref, spec: ModelSpec) -> NDArray[np.float32]:
    """Return a sent model as its receiver will decode it."""
    vector = vectors.load(blobs, sent, spec)
    return vectors.apply_delta(start, vector, spec) if sent.delta else vector


def _intact(ref: Ref, blobs: BlobStore, spec: ModelSpec) -> NDArray[np.float32]:
    data = blobs.read(ref.digest)
    # The blob may have been on the disk for months, so verify it.
    if digest_of(data) != ref.digest:
        raise InvalidBlob("a blob is damaged")
    return vectors.decode(data, ref.encoding, spec)
