"""The gate's rules on an update: how long it may be, where it may lead. The coordinator judges tours by them, too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

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


def against(update: Update, view: ExemplarView | None, gate: Gate, bounds: TourBounds, task: Task) -> str | None:
    """Whether an update leads away from what the exemplars show; never without them.

    The loss of a model that has learnt may not leap, and may grow but little where the update points against the
    slope. Alone, neither the cosine nor a small growth says anything: what a device with few classes learns is often at
    the others' cost. So both are held against what is usual among the devices.
    """
    if view is None or (gate.loss_factor is None and bounds.against_factor is None):
        return None
    (old, new), rise = _losses(update, view), rise_of(update, view)
    words = f"the loss on the exemplars went from {old:.3g} to {new:.3g}"
    if rise > _most_rise(gate, bounds, well=old < view.on_its_way) and not view.lost <= old < math.inf:
        return words
    # Its way says nothing where it did not start at `before`.
    if bounds.against_factor is None or task.objective.elsewhere or rise <= bounds.against_factor * bounds.usual_rise:
        return None
    cosine = cosine_to_descent(update.way, view.gradient(update.before, update.digests[0]))
    return (
        f"{words}, and the update points against them (cosine {cosine:.2f})" if cosine < bounds.least_cosine else None
    )


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
