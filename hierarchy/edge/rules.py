"""The gate's rules on an update: how long it may be, where it may lead. The coordinator judges tours by them, too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hierarchy.edge.exemplar_view import ExemplarView
    from sojourn.parts import Gate, TourBounds, Training
    from sojourn.protocol.spec import ModelSpec
    from sojourn.protocol.wire import Task

    Vector = NDArray[np.float32]

BLOCK = 8192
"""Numbers that are multiplied together: of more, BLAS would take threads, which wait for cores on which others train,
and sum in an order that depends on how many they are."""
MOST_STATE = 1e15
"""No number of a model's state is larger: a mean or a variance of what a layer sees."""
NORMS = 4096
"""Of at most this many updates the length is remembered: where a site and its coordinator are one process, both ask."""
_NORMS: dict[tuple[bytes, bytes], float] = {}
MORE_SAMPLES = 16
"""A device is granted the steps of at most so many times the usual samples, whatever it says that it has.

An honest device with a hundred times the data goes ten times as far, by the root of its steps. Four times, by the root
of 16, times the norm factor of 10 lets it pass.
"""


LEAP = 5.0
"""A classifier's loss may rise by this many times `loss_factor`, wherever its update points."""
RISE_COUNTS = 0.25
"""The weight of the logarithm of the rise among the evidence."""
UNLIKE_EVIDENCE = 0.1
"""The evidence allowed where the loss rose by far more than at the other devices (`TourBounds.most_rise`)."""
UPHILL = -0.15
"""A loss that rose by more than `loss_factor` is refused if the update's cosine to the descent is less than this."""
ALIKE = 0.4
"""Devices whose rises are so near to each other that no more than this over the usual is allowed have the same mix of
classes: no skew explains a larger rise, and no other evidence is needed."""
PUSHED = 0.01
"""A class whose mean probability rises by more than this is one that the update teaches."""
DAMAGED = "training diverged on a device or a result was damaged: check the device's data, or lower training.lr"
"""What to do about a result that no setting of the gate lets pass."""


class Refusal(NamedTuple):
    """Why a result is refused, and what a person can do. damage: whether it is refused with `gate = "report"` too."""

    why: str
    advice: str
    damage: bool = False

    def __str__(self) -> str:
        return f"{self.why}; {self.advice}"


def damaged(why: str) -> Refusal:
    """The refusal of a result that would spoil the model for certain."""
    return Refusal(why, DAMAGED, damage=True)


def by_rule(why: str, setting: str) -> Refusal:
    """The refusal of a result that breaks the rule of this setting."""
    advice = f'if you trust the device and its data is only different, raise gate.{setting} or set gate = "report"'
    return Refusal(why, advice)


@dataclass(frozen=True, eq=False)
class Update:
    """A model that came from another one: the models with their digests, the way between them and its length.

    learnt: how many of their numbers are trained, if not all. The way and its length are of these alone: state, such as
    running statistics, goes where the data is, and has no length that would compare.
    """

    before: Vector
    after: Vector
    digests: tuple[bytes, bytes]
    learnt: int | None = None

    @cached_property
    def way(self) -> NDArray[np.float64]:
        """From before to after."""
        with np.errstate(all="ignore"):
            return np.subtract(self.after[: self.learnt], self.before[: self.learnt], dtype=np.float64)

    @property
    def norm(self) -> float:
        """How far it is; infinite or NaN if a number is not finite. Of models with known digests it is remembered."""
        known = _NORMS.get(self.digests)
        if known is None:
            known = self._norm
            if all(self.digests):
                if len(_NORMS) >= NORMS:
                    _NORMS.clear()
                _NORMS[self.digests] = known
        return known

    @cached_property
    def _norm(self) -> float:
        total = 0.0
        with np.errstate(all="ignore"):
            after, before = self.after[: self.learnt], self.before[: self.learnt]
            for at in range(0, len(after), BLOCK):
                piece = np.subtract(after[at : at + BLOCK], before[at : at + BLOCK], dtype=np.float64)
                total += float(piece @ piece)
        return math.sqrt(total)


def not_finite(vector: Vector, name: str = "") -> str | None:
    """How many numbers of a vector are not finite; None if all are."""
    with np.errstate(all="ignore"):
        if math.isfinite(float(np.einsum("i->", vector))):  # no sum of numbers is finite if one of them is not
            return None
    count = int((~np.isfinite(vector)).sum())  # the sum may be too large for float32 where no number is
    return f"{count} of {len(vector)} numbers{f' of {name}' if name else ''} are not finite" if count else None


def unsound_state(vector: Vector, spec: ModelSpec) -> str | None:
    """What no running statistics can be: not finite, enormous, or a negative variance; None if all are sound."""
    if not spec.state:
        return None
    state = vector[spec.learnt :]
    if fault := not_finite(state, "the state"):
        return fault
    if state.size and (largest := float(np.abs(state).max())) > MOST_STATE:
        return f"the state has {largest:.3g} in it, more than the {MOST_STATE:.0e} that running statistics can be"
    negative = sum(int((vector[where] < 0).sum()) for where in spec.variances)
    return f"{negative} running variances of the state are negative" if negative else None


def counted_samples(samples: int, bounds: TourBounds) -> int:
    """The samples of a device that count: what it says, up to the job's bound."""
    return samples if bounds.most_samples is None else min(samples, bounds.most_samples)


def granted_samples(samples: int, bounds: TourBounds) -> int:
    """The samples that a device's steps are worked out from: a lie about them must not buy it a long way."""
    counted = counted_samples(samples, bounds)
    return counted if bounds.usual_samples is None else min(counted, MORE_SAMPLES * bounds.usual_samples)


def longest_way(gate: Gate, norms: Sequence[float], steps: float, training: Training, slope: Vector | None) -> float:
    """The norm that an update of so many steps may have at most; infinite where nothing is known to compare it with.

    norms: of earlier updates, each over the root of its steps. Without any, the very first results are held against
    `slope`, the exemplars' gradient: each step may be as long as the first one would be there, as if all led the same
    way.
    """
    if gate.norm_factor is None:
        return math.inf
    if norms:
        return gate.norm_factor * median(norms) * math.sqrt(max(1.0, steps))
    if slope is None:
        return math.inf
    return gate.norm_factor * max(1.0, steps) * _first_step(training, slope)


def _first_step(training: Training, slope: Vector) -> float:
    """The length of a step; a model that has learnt the exemplars has no slope there, but may have one elsewhere."""
    if training.optimiser == "adam":
        return training.lr * math.sqrt(len(slope))
    return training.lr / (1 - training.momentum) * max(1.0, float(np.linalg.norm(slope.astype(np.float64))))


def too_long(norm: float, longest: float) -> str | None:
    """Whether an update goes farther than it may."""
    return None if norm <= longest else f"the update's norm, {norm:.3g}, is over the {longest:.3g} that its steps allow"


def rise_of(update: Update, view: ExemplarView) -> float:
    """The factor by which an update makes the loss on the exemplars grow; under 1 where it falls."""
    old, new = _losses(update, view)
    before = max(old, view.learnt) if math.isfinite(old) else math.inf
    rise = new / before
    return rise if math.isfinite(rise) else math.inf


def _losses(update: Update, view: ExemplarView) -> tuple[float, float]:
    return view.loss(update.before, update.digests[0]), view.loss(update.after, update.digests[1])


def against(update: Update, view: ExemplarView | None, gate: Gate, bounds: TourBounds, task: Task) -> Refusal | None:
    """Why an update leads away from what the exemplars show; None if it does not, and always without exemplars.

    Neither a rise of the loss nor the cosine says enough alone: a device with few classes learns them at the others'
    cost. Where classes are learned, both count together with which classes the update confuses (`_judged_by_evidence`).
    Elsewhere the loss may not leap, and may rise only a little where the update points against the slope.
    """
    if view is None or (gate.loss_factor is None and bounds.against_factor is None):
        return None
    (old, new), rise = _losses(update, view), rise_of(update, view)
    words = f"the loss on the exemplars went from {old:.3g} to {new:.3g}"
    # The way of an update says nothing if it did not start at `before`.
    least = math.inf if task.objective.elsewhere or bounds.against_factor is None else bounds.against_factor
    has_way = math.isfinite(least)
    # An objective that corrects drift leads away from a device's own slope on purpose.
    plain = has_way and not task.objective.returns and not task.objective.keeps
    if plain and bounds.most_evidence is not None and view.shows_classes:
        if rise <= min(least * bounds.usual_rise, bounds.most_rise or math.inf):
            return None
        return _judged_by_evidence(update, view, gate, bounds, words)
    most = _most_rise(gate, bounds, well=old < view.on_its_way)
    if rise > most and not view.lost <= old < math.inf:
        return by_rule(f"{words}, {rise:.3g} times, over the {most:.3g} allowed", "loss_factor")
    if not has_way or rise <= least * bounds.usual_rise:
        return None
    cosine = cosine_to_descent(update.way, view.gradient(update.before, update.digests[0]))
    if cosine >= bounds.least_cosine:
        return None
    return by_rule(f"{words}, and the update points against them (cosine {cosine:.2f})", "against_factor")


def _judged_by_evidence(
    update: Update, view: ExemplarView, gate: Gate, bounds: TourBounds, words: str
) -> Refusal | None:
    """Judge an update of a classifier that made the loss rise.

    Evidence is what false labels, reversed and random updates have in common and skewed honest ones do not: the update
    points uphill, and makes other classes look more like a class than that class itself. The rise counts a little.
    """
    (old, _), rise = _losses(update, view), rise_of(update, view)
    leap = LEAP * gate.loss_factor * bounds.usual_rise if gate.loss_factor is not None else math.inf
    if rise > leap and not view.lost <= old < math.inf:
        return by_rule(f"{words}, {rise:.3g} times, over the {leap:.3g} allowed", "loss_factor")
    cosine = cosine_to_descent(update.way, view.gradient(update.before, update.digests[0]))
    if rise > leap / LEAP and cosine < UPHILL and not view.lost <= old < math.inf:
        why = f"{words}, {rise:.3g} times, and the update points against them (cosine {cosine:.2f})"
        return by_rule(why, "loss_factor")
    confused = confusion(view.beliefs(update.before), view.beliefs(update.after))
    evidence = confused - cosine + RISE_COUNTS * math.log(rise / bounds.usual_rise)
    most = bounds.most_evidence or 0.0
    usual_most = bounds.most_rise or math.inf
    if old < view.on_its_way and rise > usual_most:
        if usual_most <= bounds.usual_rise + ALIKE:
            times = f"{rise:.3g} times, and devices as alike as these stay below {usual_most:.3g}"
            return by_rule(f"{words}, {times}", "spread_factor")
        most = min(most, UNLIKE_EVIDENCE)
    # A model that hardly beats a guess confuses all classes: there the update must point against the exemplars, too.
    if evidence <= most or (old >= view.guessing and cosine >= bounds.least_cosine):
        return None
    why = f"{words}, and the update looks like false labels or a wrong direction"
    return by_rule(f"{why} (evidence {evidence:.2f}, over the {most:g} allowed)", "most_evidence")


def confusion(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """How much an update confuses classes; a device that learns its own classes at the others' cost stays below 0.

    before, after: the mean probability of each class (column) for the exemplars of each class (row); diagonal entries
    are those of the right class. Over the classes that the update makes more likely on average: how much more another
    class gains than the class itself, and how far another class is above it in the end.
    """
    gained = after - before
    mean = gained.mean(axis=0)
    columns = np.flatnonzero(mean > PUSHED) if (mean > PUSHED).any() else np.array([mean.argmax()])
    others = ~np.eye(len(after), dtype=bool)
    own_gain, own_end = np.maximum(np.diag(gained), 0.0), np.diag(after)
    taken = max(float(gained[others[:, at], at].max() - own_gain[at]) for at in columns)
    above = max(float(after[others[:, at], at].max() - own_end[at]) for at in columns)
    return taken + above


def _most_rise(gate: Gate, bounds: TourBounds, *, well: bool) -> float:
    """The factor by which the loss may grow, wherever the update points; less where the model is `well` on its way."""
    if gate.loss_factor is None:
        return math.inf
    return min(gate.loss_factor * bounds.usual_rise, bounds.most_rise if well and bounds.most_rise else math.inf)


def cosine_to_descent(way: NDArray[np.float64], gradient: Vector) -> float:
    """The cosine between an update and the steepest descent; 0 where one of them leads nowhere."""
    slope = gradient.astype(np.float64)
    with np.errstate(all="ignore"):
        lengths = math.sqrt(way @ way) * math.sqrt(slope @ slope)
        return float(-(way @ slope) / lengths) if 0 < lengths < math.inf else 0.0
