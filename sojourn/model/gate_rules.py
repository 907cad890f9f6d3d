"""The gate's rules for the norm and the direction of an update.

Edge servers apply them to visits, and the coordinator to tours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.model.exemplar_view import ExemplarView
from sojourn.parts import Gate, TourBounds, Training
from sojourn.protocol.spec import ModelSpec
from sojourn.protocol.wire import Task

Vector = NDArray[np.float32]

BLOCK = 8192
"""Numbers per product: for more, BLAS would start threads, which wait for cores that train and sum in an order that
depends on the number of threads."""
MAX_STATE = 1e15
"""The largest plausible number in a model's state, a mean or variance of a layer's inputs."""
MAX_NORMS = 4096
"""The maximum number of cached norms, which a site and its coordinator in one process share."""
_NORMS: dict[tuple[bytes, bytes], float] = {}
MORE_SAMPLES = 16
"""The gate assumes at most this many times the usual samples for a device, whatever it reports.

An honest device with 100 times the data moves 10 times as far, by the root of its steps. Four times, by the root of 16,
times the norm factor of 10 accepts it.
"""


LEAP = 5.0
"""A classifier's loss may rise by this many times `loss_factor`, wherever its update points."""
RISE_COUNTS = 0.25
"""The weight of the logarithm of the loss increase in the evidence."""
UNLIKE_EVIDENCE = 0.1
"""The evidence allowed if the loss rose by far more than at the other devices (`TourBounds.most_rise`)."""
UPHILL = -0.15
"""A loss that rose by more than `loss_factor` is refused if the update's cosine to the descent is less than this."""
ALIKE = 0.4
"""If the allowed increase is within this of the usual one, the devices have the same mix of classes: no skew explains a
larger increase, and no other evidence is required."""
PUSHED = 0.01
"""The update teaches a class if the class's mean probability rises by more than this."""
DAMAGED = "training diverged on a device or a result was damaged: check the device's data, or lower training.lr"
"""The advice for a result that no gate setting accepts."""


class Refusal(NamedTuple):
    """The reason for rejecting a result, and advice. damage: whether it is also rejected with `gate = "report"`."""

    why: str
    advice: str
    damage: bool = False

    def __str__(self) -> str:
        return f"{self.why}; {self.advice}"


def damaged(why: str) -> Refusal:
    """Return the refusal of a result that would damage the model."""
    return Refusal(why, DAMAGED, damage=True)


def by_rule(why: str, setting: str) -> Refusal:
    """Return the refusal of a result that breaks the rule of this setting."""
    advice = f'if you trust the device and its data is just different, raise gate.{setting} or set gate = "report"'
    return Refusal(why, advice)


@dataclass(frozen=True, eq=False)
class Update:
    """The models before and after an update, with their digests.

    trainable_size: the count of trained numbers, if not all. The difference and its norm cover only these: the state,
    such as running statistics, follows the data, and its norm cannot be compared.
    """

    before: Vector
    after: Vector
    digests: tuple[bytes, bytes]
    trainable_size: int | None = None

    @cached_property
    def difference(self) -> NDArray[np.float64]:
        """The difference of the trained numbers."""
        with np.errstate(all="ignore"):
            return np.subtract(self.after[: self.trainable_size], self.before[: self.trainable_size], dtype=np.float64)

    @property
    def norm(self) -> float:
        """The norm of the difference, cached by digests; infinite or NaN if a number is not finite."""
        known = _NORMS.get(self.digests)
        if known is None:
            known = self._norm
            if all(self.digests):
                if len(_NORMS) >= MAX_NORMS:
                    _NORMS.clear()
                _NORMS[self.digests] = known
        return known

    @cached_property
    def _norm(self) -> float:
        total = 0.0
        with np.errstate(all="ignore"):
            after, before = self.after[: self.trainable_size], self.before[: self.trainable_size]
            for at in range(0, len(after), BLOCK):
                piece = np.subtract(after[at : at + BLOCK], before[at : at + BLOCK], dtype=np.float64)
                total += float(piece @ piece)
        return math.sqrt(total)


def not_finite(vector: Vector, name: str = "") -> str | None:
    """Return a message with the count of non-finite numbers, or None if all are finite."""
    with np.errstate(all="ignore"):
        if math.isfinite(float(np.einsum("i->", vector))):  # a non-finite number makes the sum non-finite
            return None
    count = int((~np.isfinite(vector)).sum())  # the sum can overflow float32 although all numbers are finite
    return f"{count} of {len(vector)} numbers{f' of {name}' if name else ''} are not finite" if count else None


def unsound_state(vector: Vector, spec: ModelSpec) -> str | None:
    """Return why a model's state is invalid (not finite, enormous, or a negative variance), or None."""
    if not spec.state:
        return None
    state = vector[spec.trainable_size :]
    if fault := not_finite(state, "the state"):
        return fault
    if state.size and (largest := float(np.abs(state).max())) > MAX_STATE:
        return f"the state contains {largest:.3g}, more than the {MAX_STATE:.0e} possible for running statistics"
    negative = sum(int((vector[where] < 0).sum()) for where in spec.variances)
    return f"{negative} running variances of the state are negative" if negative else None


def counted_samples(samples: int, bounds: TourBounds) -> int:
    """Return the samples that count for a device: those it reports, up to the job's limit."""
    return samples if bounds.most_samples is None else min(samples, bounds.most_samples)


def granted_samples(samples: int, bounds: TourBounds) -> int:
    """Return the samples from which the gate computes a device's steps, limited against false reports."""
    counted = counted_samples(samples, bounds)
    return counted if bounds.usual_samples is None else min(counted, MORE_SAMPLES * bounds.usual_samples)


def longest_update(gate: Gate, norms: Sequence[float], steps: float, training: Training, slope: Vector | None) -> float:
    """Return the maximum norm of an update of N steps; infinite if there is nothing to compare with.

    norms: those of earlier updates, each divided by the root of its steps. Without any, the limit follows from `slope`,
    the exemplars' gradient: every step may be as long as the first step there would be, all in the same direction.
    """
    if gate.norm_factor is None:
        return math.inf
    if norms:
        return gate.norm_factor * median(norms) * math.sqrt(max(1.0, steps))
    if slope is None:
        return math.inf
    return gate.norm_factor * max(1.0, steps) * _first_step(training, slope)


def _first_step(training: Training, slope: Vector) -> float:
    """Return the length of a first step; at least as for a gradient of norm 1, which a trained model may have."""
    if training.optimiser == "adam":
        return training.lr * math.sqrt(len(slope))
    return training.lr / (1 - training.momentum) * max(1.0, float(np.linalg.norm(slope.astype(np.float64))))


def too_long(norm: float, longest: float) -> str | None:
    """Return why an update is too long, or None."""
    return None if norm <= longest else f"the update's norm, {norm:.3g}, is over the {longest:.3g} that its steps allow"


def rise_of(update: Update, view: ExemplarView) -> float:
    """Return the factor by which an update changes the loss on the exemplars; below 1 if it falls."""
    old, new = _losses(update, view)
    before = max(old, view.trained) if math.isfinite(old) else math.inf
    rise = new / before
    return rise if math.isfinite(rise) else math.inf


def _losses(update: Update, view: ExemplarView) -> tuple[float, float]:
    return view.loss(update.before, update.digests[0]), view.loss(update.after, update.digests[1])


def against(update: Update, view: ExemplarView | None, gate: Gate, bounds: TourBounds, task: Task) -> Refusal | None:
    """Return a refusal if an update contradicts the exemplars; None if it does not, or without exemplars.

    Neither the loss increase nor the cosine suffices alone: a device with few classes learns them at the cost of the
    others. For classifications, both are combined with the confusion of classes (`_judged_by_evidence`). Otherwise the
    loss must not jump, and may rise only a little if the update points against the descent.
    """
    if view is None or (gate.loss_factor is None and bounds.against_factor is None):
        return None
    (old, new), rise = _losses(update, view), rise_of(update, view)
    words = f"the loss on the exemplars went from {old:.3g} to {new:.3g}"
    # The direction of an update means nothing if the visit did not start at `before`.
    least = math.inf if task.objective.starts_elsewhere or bounds.against_factor is None else bounds.against_factor
    directed = math.isfinite(least)
    # An objective that corrects drift deliberately departs from a device's own descent.
    plain = directed and not task.objective.returns and not task.objective.keeps
    if plain and bounds.most_evidence is not None and view.shows_classes:
        if rise <= min(least * bounds.usual_rise, bounds.most_rise or math.inf):
            return None
        return _judged_by_evidence(update, view, gate, bounds, words)
    most = _most_rise(gate, bounds, well=old < view.advanced)
    if rise > most and not view.lost <= old < math.inf:
        return by_rule(f"{words}, {rise:.3g} times, over the {most:.3g} allowed", "loss_factor")
    if not directed or rise <= least * bounds.usual_rise:
        return None
    cosine = cosine_to_descent(update.difference, view.gradient(update.before, update.digests[0]))
    if cosine >= bounds.least_cosine:
        return None
    return by_rule(f"{words}, and the update points against them (cosine {cosine:.2f})", "against_factor")


def _judged_by_evidence(
    update: Update, view: ExemplarView, gate: Gate, bounds: TourBounds, words: str
) -> Refusal | None:
    """Judge an update of a classifier that increased the loss.

    The evidence measures what false labels, reversed and random updates have in common and skewed honest updates do
    not: the update points uphill, and raises the probability of a class more for other classes than for that class
    itself. The loss increase counts a little.
    """
    (old, _), rise = _losses(update, view), rise_of(update, view)
    leap = LEAP * gate.loss_factor * bounds.usual_rise if gate.loss_factor is not None else math.inf
    if rise > leap and not view.lost <= old < math.inf:
        return by_rule(f"{words}, {rise:.3g} times, over the {leap:.3g} allowed", "loss_factor")
    cosine = cosine_to_descent(update.difference, view.gradient(update.before, update.digests[0]))
    if rise > leap / LEAP and cosine < UPHILL and not view.lost <= old < math.inf:
        why = f"{words}, {rise:.3g} times, and the update points against them (cosine {cosine:.2f})"
        return by_rule(why, "loss_factor")
    confused = confusion(view.beliefs(update.before), view.beliefs(update.after))
    evidence = confused - cosine + RISE_COUNTS * math.log(rise / bounds.usual_rise)
    most = bounds.most_evidence or 0.0
    usual_most = bounds.most_rise or math.inf
    if old < view.advanced and rise > usual_most:
        if usual_most <= bounds.usual_rise + ALIKE:
            times = f"{rise:.3g} times, and devices as alike as these stay below {usual_most:.3g}"
            return by_rule(f"{words}, {times}", "spread_factor")
        most = min(most, UNLIKE_EVIDENCE)
    # A model that hardly beats a guess confuses all classes: then the update must also point against the exemplars.
    if evidence <= most or (old >= view.guessing and cosine >= bounds.least_cosine):
        return None
    why = f"{words}, and the update looks like false labels or a wrong direction"
    return by_rule(f"{why} (evidence {evidence:.2f}, over the {most:g} allowed)", "most_evidence")


def confusion(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Return how much an update confuses classes; below 0 for a device that learns its own classes at others' cost.

    before, after: the mean probability of each class (column) for the exemplars of each class (row), with the right
    class on the diagonal. Over the classes that become more likely on average: how much more another class gains than
    the class itself, plus how far another class is above it afterwards.
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
    """Return the maximum factor of the loss in any direction; smaller if the model is `well` advanced."""
    if gate.loss_factor is None:
        return math.inf
    return min(gate.loss_factor * bounds.usual_rise, bounds.most_rise if well and bounds.most_rise else math.inf)


def cosine_to_descent(difference: NDArray[np.float64], gradient: Vector) -> float:
    """Return the cosine between an update and the steepest descent; 0 if one of them is zero."""
    slope = gradient.astype(np.float64)
    with np.errstate(all="ignore"):
        lengths = math.sqrt(difference @ difference) * math.sqrt(slope @ slope)
        return float(-(difference @ slope) / lengths) if 0 < lengths < math.inf else 0.0
