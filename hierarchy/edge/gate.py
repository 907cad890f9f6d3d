"""The gate: what an edge server checks and computes for a returned model before it is handed on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hierarchy.edge.exemplar_view import ExemplarView, ExemplarViews
from hierarchy.edge.merge import Merged, WaveMerge, merge
from hierarchy.edge.rules import (
    Refusal,
    Update,
    against,
    by_rule,
    damaged,
    granted_samples,
    longest_way,
    not_finite,
    rise_of,
    too_long,
    unsound_state,
)
from sojourn.errors import InvalidBlob
from sojourn.model import vectors
from sojourn.model.lengths import TOLD_BYTES, spec_of_vector
from sojourn.parts import Gate, TourBounds
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit, ModelSpec
from sojourn.protocol.wire import Ref, Task, visit_steps
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]

KITS = 16
"""Of at most this many kits the shapes of the models are remembered."""
_SPECS: dict[bytes, ModelSpec] = {}
"""By the digest of the kit."""
VIEWS = ExemplarViews()
"""The exemplars of the jobs under way, for all work of this process."""
_EXPANSION = {"float32": 1, "float16": 2, "int8": 4, "raw": 1}
"""How many times as many bytes a model in this encoding takes as float32 (int8: at most, as it has scales too)."""


class Check(msgspec.Struct, frozen=True):
    """Check a result against the checkpoint that it grew from, and make it the next checkpoint.

    result, checkpoint: vectors by name. norms: of earlier visits, each over sqrt(its steps). samples: as the device
    says. earlier: how many visits the model had on this tour before.
    """

    kit: Ref
    result: dict[str, Ref]
    checkpoint: dict[str, Ref]
    exemplars: Ref | None
    gate: Gate
    norms: tuple[float, ...]
    task: Task
    samples: int = 0
    earlier: int = 0
    bounds: TourBounds = TourBounds()


class Passed(msgspec.Struct, frozen=True):
    """The result is good.

    `vectors` is the exact checkpoint: the model, and the sums so far of what comes back besides it. `handout` is how
    the model travels to the next device.
    """

    vectors: dict[str, Ref]
    handout: dict[str, Ref]
    norm: float
    note: str = ""
    """What people should know of it: that the update was shortened."""
    rise: float | None = None
    """The factor by which the loss on the exemplars grew."""
    flagged: str = ""
    """Why it would have been refused, where `gate = "report"`."""


class Failed(msgspec.Struct, frozen=True):
    """The result is not handed on. What was measured of it tells, with that of others, what is usual."""

    reason: str
    norm: float = 0.0
    rise: float | None = None


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


def perform(
    work: Check | Wrap | WaveMerge, blobs: BlobStore, views: ExemplarViews = VIEWS
) -> Passed | Failed | Wrapped | Merged:
    """Do one piece of an edge server's work."""
    match work:
        case Check():
            return check(work, blobs, views)
        case Wrap():
            return wrap(work, blobs)
        case WaveMerge():
            return merge(work, blobs)


def promised(task: Task) -> tuple[str, ...]:
    """The vectors that come back besides the model: none from an estimate."""
    return (*task.objective.returns, *task.objective.tells) if task.kind == "train" else ()


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
        elif ref.size > (most := _most_bytes(name, task, model)):
            return f"{name!r} is {ref.size} bytes, more than the {most} that this model's numbers take"
    return None


def _most_bytes(name: str, task: Task, model: Ref) -> int:
    """How large a vector may be that comes back besides the model."""
    return TOLD_BYTES if name in task.objective.tells else _EXPANSION[model.encoding] * model.size


def spec_of(kit: Ref, blobs: BlobStore) -> ModelSpec:
    """The shape of the model that a kit is for, remembered: every check needs it, and a kit is large."""
    known = _SPECS.get(kit.digest)
    if known is None:
        if len(_SPECS) >= KITS:
            _SPECS.clear()
        known = _SPECS[kit.digest] = unpack_blob(blobs.read(kit.digest), Kit).model
    return known


def check(work: Check, blobs: BlobStore, views: ExemplarViews = VIEWS) -> Passed | Failed:
    """A result with finite numbers, a norm in line and no step against the exemplars is the next checkpoint."""
    if "model" not in work.result:
        # An estimate may be made on the device: then there is no model to hand on.
        return Passed({}, {}, 0.0) if work.task.kind == "estimate" else Failed(str(damaged("no model came back")))
    spec = spec_of(work.kit, blobs)
    before = vectors.load(blobs, work.checkpoint["model"], spec)
    result = work.result["model"]
    try:
        after = vectors.load(blobs, result, spec)
        if result.delta:
            with np.errstate(all="ignore"):
                after = vectors.moved(before, after, spec)
        if fault := unsound_state(after, spec):
            return Failed(str(damaged(fault)))
        passed = _judged(work, before, after, spec, blobs, views)
        if isinstance(passed, Failed):
            return passed
        tells = work.task.objective.tells
        sums = {
            name: _told(name, work, blobs) if name in tells else _added(name, work, blobs, spec)
            for name in promised(work.task)
        }
    except InvalidBlob as error:
        return Failed(str(damaged(str(error))))
    update, note, rise, flagged = passed
    if not note and not result.delta and result.encoding == "float32":
        return Passed({"model": result, **sums}, {"model": result}, update.norm, rise=rise, flagged=flagged)
    exact = vectors.save(blobs, update.after, "float32", spec)
    handed = vectors.save(blobs, update.after, work.task.encoding, spec)
    return Passed({"model": exact, **sums}, {"model": handed}, update.norm, note, rise, flagged)


def _judged(
    work: Check, before: Vector, after: Vector, spec: ModelSpec, blobs: BlobStore, views: ExemplarViews
) -> tuple[Update, str, float | None, str] | Failed:
    """The update to hand on, a note if it was shortened, its rise, and why it is flagged; or why it is refused."""
    result = work.result["model"]
    known = result.digest if result.encoding == "float32" and not result.delta else None
    update = _update(work, before, after, spec, known)
    norm = update.norm
    if not math.isfinite(norm):
        return Failed(str(damaged(not_finite(after) or "the update is longer than any number")))
    view = views.of(work.kit, work.exemplars, blobs) if work.exemplars and work.task.kind == "train" else None
    longest, note = _longest(work, update, view), ""
    refusal: Refusal | None = None
    if reason := too_long(norm, longest):
        if _may_shorten(work, view):
            update, note = _shortened(work, update, longest / norm, spec), f"{reason}: it was shortened to that"
        else:
            refusal = by_rule(reason, "norm_factor")
    rise = rise_of(update, view) if view and not refusal else None
    refusal = refusal or against(update, view, work.gate, work.bounds, work.task)
    if note and not refusal:  # no honest skew explains a way that was too long: the loss may not leap either
        strict = msgspec.structs.replace(work.bounds, most_evidence=None)
        refusal = against(update, view, work.gate, strict, work.task)
    if note and refusal:
        refusal = refusal._replace(why=f"{note}, and {refusal.why}")
    if refusal and not work.bounds.report:
        return Failed(str(refusal), norm, rise)
    return update, note, rise, str(refusal) if refusal else ""


def _update(work: Check, before: Vector, after: Vector, spec: ModelSpec, known: bytes | None = None) -> Update:
    """The update, where the exemplars are looked at with the digest of what it led to; `known`, if it came as it is."""
    digest = known or (ref_of(after.astype("<f4", copy=False).tobytes()).digest if work.exemplars else b"")
    return Update(before, after, (work.checkpoint["model"].digest, digest), spec.learnt)


def _longest(work: Check, update: Update, view: ExemplarView | None) -> float:
    if not work.task.objective.length_tells:
        return math.inf
    steps = visit_steps(work.task, granted_samples(work.samples, work.bounds), work.earlier)
    first = view is not None and not work.norms and work.gate.norm_factor is not None
    slope = view.gradient(update.before, update.digests[0]) if view and first else None
    return longest_way(work.gate, work.norms, steps, work.task.training, slope)


def _may_shorten(work: Check, view: ExemplarView | None) -> bool:
    """Only where the exemplars tell that the way is right, and nothing besides the model goes by its length."""
    objective = work.task.objective
    return work.bounds.clip and view is not None and not promised(work.task) and not objective.keeps


def _shortened(work: Check, update: Update, share: float, spec: ModelSpec) -> Update:
    """The update with a part of its way; of its state the same part, which is between two that are sound."""
    way = np.subtract(update.after, update.before, dtype=np.float64) if spec.state else update.way
    return _update(work, update.before, (update.before + share * way).astype(np.float32), spec)


def _added(name: str, work: Check, blobs: BlobStore, spec: ModelSpec) -> Ref:
    """The sum over the tour's visits of a vector that came back besides the model, with this visit's."""
    if name not in work.result:
        raise InvalidBlob(f"the vector {name!r} did not come back")
    total = vectors.load(blobs, work.result[name], spec)
    if name in work.checkpoint:
        so_far = vectors.load(blobs, work.checkpoint[name], spec)
        with np.errstate(over="ignore"):
            total = np.add(so_far, total, dtype=np.float64).astype(np.float32)
    if fault := not_finite(total, repr(name)):
        raise InvalidBlob(fault)
    return vectors.save(blobs, total, "float32", spec)


def _told(name: str, work: Check, blobs: BlobStore) -> Ref:
    """What this visit's device told of itself: as it is, if it has the length that it must have and is finite."""
    ref = work.result.get(name)
    if ref is None:
        raise InvalidBlob(f"the vector {name!r} did not come back")
    kit = unpack_blob(blobs.read(work.kit.digest), Kit)
    if fault := not_finite(vectors.load(blobs, ref, spec_of_vector(name, work.task.objective, kit)), repr(name)):
        raise InvalidBlob(fault)
    return ref


def wrap(work: Wrap, blobs: BlobStore) -> Wrapped:
    """The tour's result as it travels to the coordinator: as it is, or as a compressed difference to its start."""
    model = work.checkpoint["model"]
    if work.task.encoding == "float32" or model == work.start:
        return Wrapped(work.checkpoint)
    spec = spec_of(work.kit, blobs)
    before, after = (vectors.load(blobs, ref, spec) for ref in (work.start, model))
    with np.errstate(all="ignore"):
        difference = vectors.difference(after, before, spec)
    if fault := not_finite(difference, "the difference to the start"):
        raise InvalidBlob(fault)
    delta = vectors.save(blobs, difference, work.task.encoding, spec, delta=True)
    return Wrapped({**work.checkpoint, "model": delta})
