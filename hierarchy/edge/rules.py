"""The gate's rules on an update: how long it may be, where it may lead. The coordinator judges tours by them, too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from sojourn.parts import Elmy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hierarchy.edge.exemplar_view import ExemplarView
    from sojourn.parts import Gate, TourBounds, Training
    from sojourn.protocol.wire import Task

    Vector = NDArray[np.float32]

MORE_SAMPLES = 16
"""A device is granted the steps of at most so many times the usual samples, whatever it says that it has.

An honest device with a hundred times the data goes ten times as far, by the root of its steps. Four times, by the root
of 16, times the norm factor of 10 lets it pass.
"""


@dataclass(frozen=True, eq=False)
class Update:
    """A model that came from another one: the models with their digests, the way between them and its length."""

    before: Vector
    after: Vector
    digests: tuple[bytes, bytes]

    @cached_property
    def way(self) -> NDArray[np.float64]:
        """From before to after."""
        with np.errstate(all="ignore"):
            return np.subtract(self.after, self.before, dtype=np.float64)

    @cached_property
    def norm(self) -> float:
        """How far it is; infinite or NaN if a number is not finite."""
        with np.errstate(all="ignore"):
            return math.sqrt(self.way @ self.way)


def not_finite(vector: Vector, name: str = "") -> str | None:
    """How many numbers of a vector are not finite; None if all are."""
    of = f" of {name}" if name else ""
    wrong = int((~np.isfinite(vector)).sum())
    return f"{wrong} of {len(vector)} numbers{of} are not finite" if wrong else None


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
    elsewhere = isinstance(task.objective, Elmy) and task.objective.start == "own"  # it did not start at `before`
    if bounds.against_factor is None or elsewhere or rise <= bounds.against_factor * bounds.usual_rise:
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
