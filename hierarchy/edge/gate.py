"""The gate: how an edge server checks a returned model before it goes to the next device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from hierarchy.edge.merge import Merged, WaveMerge, merge
from hierarchy.edge.records import TourState
from sojourn.errors import InvalidBlob
from sojourn.model import vectors
from sojourn.model.exemplar_view import ExemplarView, ExemplarViews
from sojourn.model.gate_rules import (
    Refusal,
    Update,
    against,
    by_rule,
    damaged,
    granted_samples,
    longest_update,
    not_finite,
    rise_of,
    too_long,
    unsound_state,
)
from sojourn.model.vectors import MAX_REPORTED_BYTES, spec_of_vector
from sojourn.parts import Gate, TourBounds
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.messages import Visited
from sojourn.protocol.spec import Kit, ModelSpec
from sojourn.protocol.visit_outcomes import SHORTENED
from sojourn.protocol.wire import Ref, SignedHop, Task, visit_steps
from sojourn.store.blobs import BlobStore, ref_of

Vector = NDArray[np.float32]

KITS = 16
"""The model shapes of at most this many kits are cached."""
_SPECS: dict[bytes, ModelSpec] = {}
"""By the digest of the kit."""
VIEWS = ExemplarViews()
"""The exemplars of the running jobs, shared by all work of this process."""
_EXPANSION = {"float32": 1, "float16": 2, "int8": 4, "raw": 1}
"""Bytes of a float32 model per byte in this encoding (for int8 an upper bound: it has scales too)."""


class Check(msgspec.Struct, frozen=True):
    """Check a result against the checkpoint it was trained from, and make it the next checkpoint.

    result, checkpoint: vectors by name. norms: of earlier visits, each over sqrt(its steps). samples: as the device
    reports. earlier: the number of visits before this one on the tour.
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
    """The result passed the gate.

    `vectors` is the exact checkpoint: the model, and the sums so far of the other vectors that visits return.
    `wire_vectors` is how the model travels to the next device.
    """

    vectors: dict[str, Ref]
    wire_vectors: dict[str, Ref]
    norm: float
    note: str = ""
    """A remark for users: that the update was shortened."""
    rise: float | None = None
    """The factor by which the loss on the exemplars grew."""
    flagged: str = ""
    """Why the result would have been refused, with `gate = "report"`."""


class Failed(msgspec.Struct, frozen=True):
    """The gate refused the result. Its norm and rise still count towards the usual range."""

    reason: str
    norm: float = 0.0
    rise: float | None = None


class Wrap(msgspec.Struct, frozen=True):
    """Prepare the result of a tour for the coordinator.

    start: the model that the tour began with; a job that compresses sends the difference to it. checkpoint: the
    vectors that the tour ended with.
    """

    kit: Ref
    start: Ref
    checkpoint: dict[str, Ref]
    task: Task


class Wrapped(msgspec.Struct, frozen=True):
    """The vectors as they are sent to the coordinator."""

    vectors: dict[str, Ref]


def perform(
    work: Check | Wrap | WaveMerge, blobs: BlobStore, views: ExemplarViews = VIEWS
) -> Passed | Failed | Wrapped | Merged:
    """Perform one work item of an edge server."""
    match work:
        case Check():
            return check(work, blobs, views)
        case Wrap():
            return wrap(work, blobs)
        case WaveMerge():
            return merge(work, blobs)


def promised(task: Task) -> tuple[str, ...]:
    """Return the names of the vectors that visits return in addition to the model; an estimate returns none."""
    return (*task.objective.returns, *task.objective.reports) if task.kind == "train" else ()


def unfit(result: Mapping[str, Ref], task: Task, model: Ref) -> str | None:
    """Return why a result is not worth fetching: unexpected vectors, or vectors that cannot belong to this model."""
    for name, ref in result.items():
        if name == "model":
            if (ref.encoding, ref.size) != (task.encoding, model.size):
                return f"{name!r} is {ref.size} bytes of {ref.encoding}, not {model.size} of {task.encoding}"
        elif name not in promised(task):
            return f"unexpected vector {name!r}"
        elif ref.encoding != "float32" or ref.delta:
            return f"{name!r} is not a whole vector in float32"
        elif ref.size > (most := _most_bytes(name, task, model)):
            return f"{name!r} is {ref.size} bytes, more than the {most} that fit this model"
    return None


def _most_bytes(name: str, task: Task, model: Ref) -> int:
    """Return the maximum size of a vector that is returned in addition to the model."""
    return MAX_REPORTED_BYTES if name in task.objective.reports else _EXPANSION[model.encoding] * model.size


def spec_of(kit: Ref, blobs: BlobStore) -> ModelSpec:
    """Return the shape of the kit's model, cached: every check needs it, and a kit is large."""
    known = _SPECS.get(kit.digest)
    if known is None:
        if len(_SPECS) >= KITS:
            _SPECS.clear()
        known = _SPECS[kit.digest] = unpack_blob(blobs.read(kit.digest), Kit).model
    return known


def check(work: Check, blobs: BlobStore, views: ExemplarViews = VIEWS) -> Passed | Failed:
    """Accept a result with finite values, a usual norm and no step against the exemplars as the next checkpoint."""
    if "model" not in work.result:
        # An estimate may be made on the device; then there is no model to pass on.
        return Passed({}, {}, 0.0) if work.task.kind == "estimate" else Failed(str(damaged("no model returned")))
    spec = spec_of(work.kit, blobs)
    before = vectors.load(blobs, work.checkpoint["model"], spec)
    result = work.result["model"]
    try:
        after = vectors.load(blobs, result, spec)
        if result.delta:
            with np.errstate(all="ignore"):
                after = vectors.apply_delta(before, after, spec)
        if fault := unsound_state(after, spec):
            return Failed(str(damaged(fault)))
        passed = _judged(work, before, after, spec, blobs, views)
        if isinstance(passed, Failed):
            return passed
        reports = work.task.objective.reports
        sums = {
            name: _report_vector(name, work, blobs) if name in reports else _added(name, work, blobs, spec)
            for name in promised(work.task)
        }
    except InvalidBlob as error:
        return Failed(str(damaged(str(error))))
    update, note, rise, flagged = passed
    if not note and not result.delta and result.encoding == "float32":
        return Passed({"model": result, **sums}, {"model": result}, update.norm, rise=rise, flagged=flagged)
    exact = vectors.save(blobs, update.after, "float32", spec)
    to_send = vectors.save(blobs, update.after, work.task.encoding, spec)
    return Passed({"model": exact, **sums}, {"model": to_send}, update.norm, note, rise, flagged)


def _judged(
    work: Check, before: Vector, after: Vector, spec: ModelSpec, blobs: BlobStore, views: ExemplarViews
) -> tuple[Update, str, float | None, str] | Failed:
    """Return the update to pass on, a note if it was shortened, its rise, and its flag; or why it is refused."""
    result = work.result["model"]
    known = result.digest if result.encoding == "float32" and not result.delta else None
    update = _update(work, before, after, spec, known)
    norm = update.norm
    if not math.isfinite(norm):
        return Failed(str(damaged(not_finite(after) or "the norm of the update overflows")))
    view = views.of(work.kit, work.exemplars, blobs) if work.exemplars and work.task.kind == "train" else None
    longest, note = _longest(work, update, view), ""
    refusal: Refusal | None = None
    if reason := too_long(norm, longest):
        if _may_shorten(work, view):
            update, note = _shortened(work, update, longest / norm, spec), f"{reason}: {SHORTENED}"
        else:
            refusal = by_rule(reason, "norm_factor")
    rise = rise_of(update, view) if view and not refusal else None
    refusal = refusal or against(update, view, work.gate, work.bounds, work.task)
    if note and not refusal:  # no honest skew explains an update that was too long: the loss may not leap either
        strict = msgspec.structs.replace(work.bounds, most_evidence=None)
        refusal = against(update, view, work.gate, strict, work.task)
    if note and refusal:
        refusal = refusal._replace(why=f"{note}, and {refusal.why}")
    if refusal and not work.bounds.report:
        return Failed(str(refusal), norm, rise)
    return update, note, rise, str(refusal) if refusal else ""


def _update(work: Check, before: Vector, after: Vector, spec: ModelSpec, known: bytes | None = None) -> Update:
    """Return the update with the digests that the exemplar view is cached by; `known` is the result's, if unchanged."""
    digest = known or (ref_of(after.astype("<f4", copy=False).tobytes()).digest if work.exemplars else b"")
    return Update(before, after, (work.checkpoint["model"].digest, digest), spec.trainable_size)


def _longest(work: Check, update: Update, view: ExemplarView | None) -> float:
    if not work.task.objective.norm_comparable:
        return math.inf
    steps = visit_steps(work.task, granted_samples(work.samples, work.bounds), work.earlier)
    first = view is not None and not work.norms and work.gate.norm_factor is not None
    slope = view.gradient(update.before, update.digests[0]) if view and first else None
    return longest_update(work.gate, work.norms, steps, work.task.training, slope)


def _may_shorten(work: Check, view: ExemplarView | None) -> bool:
    """Return whether an update may be shortened: exemplars must support it, and no other vector may depend on it."""
    objective = work.task.objective
    return work.bounds.clip and view is not None and not promised(work.task) and not objective.keeps


def _shortened(work: Check, update: Update, share: float, spec: ModelSpec) -> Update:
    """Return the update scaled by `share`; its state is interpolated likewise, between two valid states."""
    difference = np.subtract(update.after, update.before, dtype=np.float64) if spec.state else update.difference
    return _update(work, update.before, (update.before + share * difference).astype(np.float32), spec)


def _added(name: str, work: Check, blobs: BlobStore, spec: ModelSpec) -> Ref:
    """Return the sum of an additional vector over the tour's visits, including this one."""
    if name not in work.result:
        raise InvalidBlob(f"the vector {name!r} was not returned")
    total = vectors.load(blobs, work.result[name], spec)
    if name in work.checkpoint:
        so_far = vectors.load(blobs, work.checkpoint[name], spec)
        with np.errstate(over="ignore"):
            total = np.add(so_far, total, dtype=np.float64).astype(np.float32)
    if fault := not_finite(total, repr(name)):
        raise InvalidBlob(fault)
    return vectors.save(blobs, total, "float32", spec)


def _report_vector(name: str, work: Check, blobs: BlobStore) -> Ref:
    """Return this device's report vector unchanged, if its length is right and its values are finite."""
    ref = work.result.get(name)
    if ref is None:
        raise InvalidBlob(f"the vector {name!r} was not returned")
    kit = unpack_blob(blobs.read(work.kit.digest), Kit)
    if fault := not_finite(vectors.load(blobs, ref, spec_of_vector(name, work.task.objective, kit)), repr(name)):
        raise InvalidBlob(fault)
    return ref


def wrap(work: Wrap, blobs: BlobStore) -> Wrapped:
    """Return the tour's result for the coordinator: unchanged, or as a compressed difference to its start."""
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


# Check that a result is signed by the device it comes from, if the coordinator sent that device's key.
#
# The coordinator checks again. A bad signature found here costs a hop; found there, it costs a whole tour.


def sent_vectors(tour: TourState) -> dict[str, Ref]:
    """Return the vectors that devices of the current wave receive."""
    return {name: ref for name, ref in tour.wire_vectors.items() if name != "gate"}


def unsigned(tour: TourState, device: str, result: Visited) -> str | None:
    """Return why a result is not validly signed by the device; None if it is, or need not be."""
    order = tour.order
    key = order.keys.get(device) if order.keys else None
    if key is None:
        return None
    if not result.signed:
        return "the result is not signed, but this device joined with its own key"
    # Cryptography is loaded only if signatures are used.
    from sojourn.protocol.signing import VisitStatement, digests_of, found_digest, is_signed, pairs, task_digest  # noqa: PLC0415

    statement = VisitStatement(
        device,
        result.visit,
        order.kit.digest,
        task_digest(order.task),
        pairs(digests_of(sent_vectors(tour))),
        pairs(digests_of(result.vectors)),
        result.samples,
        result.signed.steps,
        found_digest(result.signature) if order.task.kind == "estimate" else b"",
    )
    return None if is_signed(statement, key, result.signed.signature) else "the signature does not match the result"


def signed_hop(tour: TourState, result: Visited, passed: Passed) -> SignedHop | None:
    """Return the record of a signed, kept result for the coordinator; None if the result is not signed."""
    if not result.signed:
        return None
    kept, handed = passed.vectors.get("model"), passed.wire_vectors.get("model")
    return SignedHop(
        result.visit.attempt,
        {name: ref.digest for name, ref in sent_vectors(tour).items()},
        {name: ref.digest for name, ref in result.vectors.items()},
        result.samples,
        result.signed.steps,
        result.signed.signature,
        kept.digest if kept else b"",
        handed.digest if handed else b"",
    )
