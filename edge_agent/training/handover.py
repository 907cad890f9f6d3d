"""The vectors of a visit: what it brings, what the device remembers, and the model that goes back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edge_agent.training.reasons import Unsupported
from sojourn.errors import InvalidBlob
from sojourn.model import vectors
from sojourn.model.lengths import spec_of_vector
from sojourn.parts import name_of
from sojourn.store.blobs import digest_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edge_agent.training.work import Train
    from sojourn.protocol.messages import Visit
    from sojourn.protocol.spec import Kit, ModelSpec
    from sojourn.protocol.wire import Ref, Task
    from sojourn.store.blobs import BlobStore

    Named = dict[str, NDArray[np.float32]]

log = logging.getLogger(__name__)


def model_of(visit: Visit, blobs: BlobStore, spec: ModelSpec) -> NDArray[np.float32]:
    """The model that the visit hands over."""
    ref = visit.vectors.get("model")
    if ref is None or ref.delta:
        raise Unsupported("a visit must hand over a whole model")
    return vectors.load(blobs, ref, spec)


def companions_of(visit: Visit, blobs: BlobStore, kit: Kit) -> Named:
    """The vectors that came with the model; all that the objective needs must be among them."""
    refs = {name: ref for name, ref in visit.vectors.items() if name != "model" and ref.encoding != "raw"}
    objective = visit.task.objective
    if lacking := [name for name in objective.receives if name not in refs]:
        raise Unsupported(f"the objective {name_of(objective)!r} needs the vector {lacking[0]!r}, and it did not come")
    return {name: vectors.load(blobs, ref, spec_of_vector(name, objective, kit)) for name, ref in refs.items()}


def memory_of(work: Train, blobs: BlobStore, spec: ModelSpec) -> tuple[Named, int]:
    """What the device remembers for the objective, and of how many visits; nothing if a part of it is lost."""
    try:
        return {name: _intact(ref, blobs, spec) for name, ref in work.memory.items()}, work.remembered
    except (KeyError, OSError, InvalidBlob) as error:
        what = "it is gone" if isinstance(error, KeyError) else str(error)
        log.warning("%s: starts clean, what was remembered is lost: %s", work.visit.id, what)
        return {}, 0


def save_model(
    blobs: BlobStore, start: NDArray[np.float32], end: NDArray[np.float32], task: Task, spec: ModelSpec
) -> Ref:
    """Keep the model that goes back, in the encoding that the task asks for."""
    if task.encoding == "float32":
        return vectors.save(blobs, end, "float32", spec)
    # Differences are small, so a coarse encoding costs them little.
    return vectors.save(blobs, vectors.difference(end, start, spec), task.encoding, spec, delta=True)


def sent_model(blobs: BlobStore, start: NDArray[np.float32], sent: Ref, spec: ModelSpec) -> NDArray[np.float32]:
    """A model that goes back, as whoever receives it will see it."""
    vector = vectors.load(blobs, sent, spec)
    return vectors.moved(start, vector, spec) if sent.delta else vector


def _intact(ref: Ref, blobs: BlobStore, spec: ModelSpec) -> NDArray[np.float32]:
    data = blobs.read(ref.digest)
    # It may have lain on a small device's disk for months, and nobody has looked at it since.
    if digest_of(data) != ref.digest:
        raise InvalidBlob("it is damaged")
    return vectors.decode(data, ref.encoding, spec)
