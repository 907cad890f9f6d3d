"""The gate: what an edge server checks and computes for a returned model before it is handed on."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hierarchy.edge.merge import Merged, WaveMerge, merge
from sojourn.errors import InvalidBlob
from sojourn.model import vectors
from sojourn.parts import Gate
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit, ModelSpec
from sojourn.protocol.wire import Ref, Task, stride

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from sojourn.store.blobs import BlobStore


KITS = 16
"""Of at most this many kits the shapes of the models are remembered."""
_SPECS: dict[bytes, ModelSpec] = {}
"""By the digest of the kit."""
_EXPANSION = {"float32": 1, "float16": 2, "int8": 4, "raw": 1}
"""How many times as many bytes a model in this encoding takes as float32 (int8: at most, as it has scales too)."""


class Check(msgspec.Struct, frozen=True):
    """Check a result against the checkpoint that it grew from, and make it the next checkpoint.

    result, checkpoint: vectors by name. norms: of earlier visits, each over sqrt(its steps).
    metrics: of the device.
    """

    kit: Ref
    result: dict[str, Ref]
    checkpoint: dict[str, Ref]
    exemplars: Ref | None
    gate: Gate
    norms: tuple[float, ...]
    task: Task
    metrics: dict[str, float] = {}


class Passed(msgspec.Struct, frozen=True):
    """The result is good.

    `vectors` is the exact checkpoint: the model, and the sums so far of what comes back besides it. `handout` is how
    the model travels to the next device.
    """

    vectors: dict[str, Ref]
    handout: dict[str, Ref]
    norm: float


class Failed(msgspec.Struct, frozen=True):
    """The result is not handed on."""

    reason: str


class Wrap(msgspec.Struct, frozen=True):
    """Make the result of a tour ready for its way to the coordinator.

    start: the model that the tour began with; if the job compresses, the difference to it travels. checkpoint: the
    vectors that the tour ended with.
    """

    kit: Ref
    start: Ref
    checkpoint: dict[str, Ref]
    task: Task


class Wrapped(msgspec.Struct, frozen=True):
    """The vectors as they travel to the coordinator."""

    vectors: dict[str, Ref]


def perform(work: Check | Wrap | WaveMerge, blobs: BlobStore) -> Passed | Failed | Wrapped | Merged:
    """Do one piece of an edge server's work."""
    match work:
        case Check():
            return check(work, blobs)
        case Wrap():
            return wrap(work, blobs)
        case WaveMerge():
            return merge(work, blobs)


def promised(task: Task) -> tuple[str, ...]:
    """The vectors that come back besides the model: none from an estimate."""
    return task.objective.returns if task.kind == "train" else ()


def unfit(result: Mapping[str, Ref], task: Task, model: Ref) -> str | None:
    """Why a result is not worth fetching: vectors that nobody asked for, or that cannot be of this model."""
    for name, ref in result.items():
        if name == "model":
            if (ref.encoding, ref.size) != (task.encoding, model.size):
                return f"{name!r} is {ref.size} bytes of {ref.encoding}, not {model.size} of {task.encoding}"
        elif name not in promised(task):
            return f"nobody asked for the vector {name!r}"
        elif ref.encoding != "float32" or ref.delta:
            return f"{name!r} is not a whole vector in float32"
        elif ref.size > (most := _EXPANSION[model.encoding] * model.size):
            return f"{name!r} is {ref.size} bytes, more than the {most} that this model's numbers take"
    return None


def spec_of(kit: Ref, blobs: BlobStore) -> ModelSpec:
    """The shape of the model that a kit is for, remembered: every check needs it, and a kit is large."""
    known = _SPECS.get(kit.digest)
    if known is None:
        if len(_SPECS) >= KITS:
            _SPECS.clear()
        known = _SPECS[kit.digest] = unpack_blob(blobs.read(kit.digest), Kit).model
    return known


def check(work: Check, blobs: BlobStore) -> Passed | Failed:
    """A result with finite numbers, a norm near the usual and no leap of the loss is the next checkpoint."""
    if "model" not in work.result:
        # An estimate may be made on the device: then there is no model to hand on.
        return Passed({}, {}, 0.0) if work.task.kind == "estimate" else Failed("no model came back")
    spec = spec_of(work.kit, blobs)
    before = vectors.load(blobs, work.checkpoint["model"], spec)
    result = work.result["model"]
    try:
        after = vectors.load(blobs, result, spec)
        if result.delta:
            after = before + after
        with np.errstate(all="ignore"):
            moved = (after - before).astype(np.float64)
            norm = math.sqrt(moved @ moved)
        if refusal := _refusal(work, blobs, before, after, norm):
            return Failed(refusal)
        sums = {name: _added(name, work, blobs, spec) for name in promised(work.task)}
    except InvalidBlob as error:
        return Failed(str(error))
    if not result.delta and result.encoding == "float32":
        return Passed({"model": result, **sums}, {"model": result}, norm)
    exact = vectors.save(blobs, after, "float32", spec)
    handed = vectors.save(blobs, after, work.task.encoding, spec)
    return Passed({"model": exact, **sums}, {"model": handed}, norm)


def _added(name: str, work: Check, blobs: BlobStore, spec: ModelSpec) -> Ref:
    """The sum over the tour's visits of a vector that came back besides the model, with this visit's."""
    if name not in work.result:
        raise InvalidBlob(f"the vector {name!r} did not come back")
    total = vectors.load(blobs, work.result[name], spec)
    if name in work.checkpoint:
        so_far = vectors.load(blobs, work.checkpoint[name], spec)
        with np.errstate(over="ignore"):
            total = np.add(so_far, total, dtype=np.float64).astype(np.float32)
    if not np.isfinite(total).all():
        raise InvalidBlob(f"{int((~np.isfinite(total)).sum())} of {len(total)} numbers of {name!r} are not finite")
    return vectors.save(blobs, total, "float32", spec)


def _refusal(
    work: Check, blobs: BlobStore, before: NDArray[np.float32], after: NDArray[np.float32], norm: float
) -> str | None:
    """Why a model is not handed on: numbers that are not finite, too long a way, or a leap of the loss."""
    if not math.isfinite(norm) and not np.isfinite(after).all():  # a finite norm is of finite numbers
        return f"{int((~np.isfinite(after)).sum())} of {len(after)} numbers are not finite"
    return _norm_refusal(work, norm) or _loss_refusal(work, blobs, before, after)


def _norm_refusal(work: Check, norm: float) -> str | None:
    """Whether a model moved much farther, for the steps it made, than models usually do; never without a factor."""
    factor, usual = work.gate.norm_factor, median(work.norms) if work.norms else math.inf
    moved = stride(norm, work.metrics)
    if factor is not None and moved > factor * usual:
        return f"the update's norm, {moved:.3g} for its steps, is over {factor:g} times the usual {usual:.3g}"
    return None


def _loss_refusal(work: Check, blobs: BlobStore, before: NDArray[np.float32], after: NDArray[np.float32]) -> str | None:
    """Whether the loss on the coordinator's exemplars leapt; never without a factor or without exemplars."""
    factor = work.gate.loss_factor
    if factor is None or work.exemplars is None:
        return None
    # Imported here: onnxruntime only on an edge server that is asked to predict.
    from sojourn.model.exemplars import Exemplars  # noqa: PLC0415
    from sojourn.model.graphs import Graphs  # noqa: PLC0415
    from sojourn.model.scoring import accuracy_and_loss  # noqa: PLC0415

    exemplars = unpack_blob(blobs.read(work.exemplars.digest), Exemplars)
    graphs = Graphs(unpack_blob(blobs.read(work.kit.digest), Kit), 1)
    old, new = (accuracy_and_loss(graphs, vector, exemplars)[1] for vector in (before, after))
    if new <= factor * max(old, 1e-9):
        return None
    return f"the loss on the exemplars went from {old:.3g} to {new:.3g}"


def wrap(work: Wrap, blobs: BlobStore) -> Wrapped:
    """The tour's result as it travels to the coordinator: as it is, or as a compressed difference to its start."""
    model = work.checkpoint["model"]
    if work.task.encoding == "float32" or model == work.start:
        return Wrapped(work.checkpoint)
    kit = unpack_blob(blobs.read(work.kit.digest), Kit)
    before = vectors.load(blobs, work.start, kit.model)
    after = vectors.load(blobs, model, kit.model)
    delta = vectors.save(blobs, after - before, work.task.encoding, kit.model, delta=True)
    return Wrapped({**work.checkpoint, "model": delta})
