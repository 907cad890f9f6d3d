"""The probe of a kit: what torch says about one small batch, for devices to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.compiling.reference import Answer, exact, nudged, rounded
from sojourn.errors import ModelError
from sojourn.model.graphs import GRADIENT_TOLERANCE, LOSS_TOLERANCE, probe_vector
from sojourn.protocol.spec import Probe
from sojourn.randomness import derive

if TYPE_CHECKING:
    from coordinator.compiling.samples import ProbeSamples
    from coordinator.compiling.tracing import Trainee

SAMPLES = 4
SPREAD_PLACES = 24
LARGEST_PLACES = 8
CANDIDATES = 8
STEADY = 0.1
"""Of what devices allow: a batch on which rounding and small nudges do less than this is taken at once."""


def take_probe(trainee: Trainee, samples: ProbeSamples, seed: int) -> Probe:
    """Loss and gradient by torch at the probe vector, told at spread places and at the largest values.

    Of several batches it takes one on which rounding matters little: else a device whose processor rounds otherwise
    would decline a model that it computes rightly.
    """
    best: tuple[float, int, Answer] | None = None
    for number in range(CANDIDATES):
        drawn = derive(seed, "probe", number)
        answer, unsteady = _tried(trainee, samples, drawn)
        if best is None or unsteady < best[0]:
            best = unsteady, drawn, answer
        if unsteady < STEADY:
            break
    assert best is not None  # noqa: S101  # there is a first one
    return _probe(samples, best[1], best[2])


def _tried(trainee: Trainee, samples: ProbeSamples, seed: int) -> tuple[Answer, float]:
    """What torch says of a batch, and how much of what devices allow rounding takes of it already."""
    batch, vector = samples.batch(SAMPLES, seed), probe_vector(trainee.initial.numel())
    answer = exact(trainee, vector, batch)
    if not np.isfinite(answer.loss) or not np.isfinite(answer.gradient).all():
        raise ModelError(
            f"the model's loss at the probe is {float(answer.loss):.6g}, and its gradient is not finite everywhere: "
            "it cannot be trained with weights of about 0.1; normalise between its layers, e.g. with GroupNorm"
        )
    others = [rounded(trainee, vector, batch), *nudged(trainee, vector, batch, seed)]
    return answer, max(_unlike(answer, other) for other in others)


def _unlike(answer: Answer, other: Answer) -> float:
    """How far apart two answers are, in what a device allows (`sojourn.model.graphs`)."""
    loss, gradient, there = float(answer.loss), answer.gradient, other.gradient
    norm, largest = float(np.linalg.norm(gradient)), float(np.abs(gradient).max(initial=0))
    apart = [
        abs(float(other.loss) - loss) / (LOSS_TOLERANCE * max(1.0, abs(loss))),
        abs(float(np.linalg.norm(there)) - norm) / (GRADIENT_TOLERANCE * norm) if norm else 0.0,
        float(np.abs(there - gradient).max(initial=0)) / (GRADIENT_TOLERANCE * largest) if largest else 0.0,
    ]
    return max(apart) if np.isfinite(apart).all() else np.inf


def _probe(samples: ProbeSamples, seed: int, answer: Answer) -> Probe:
    batch, gradient = samples.batch(SAMPLES, seed), answer.gradient
    spread = np.linspace(0, gradient.size - 1, min(SPREAD_PLACES, gradient.size)).astype(np.int64)
    largest = np.argsort(-np.abs(gradient), kind="stable")[:LARGEST_PLACES]
    places = np.union1d(spread, largest)
    return Probe(
        x=np.ascontiguousarray(batch.x).tobytes(),
        y=tuple(int(label) for label in batch.y),
        noise_seed=seed,
        loss=float(answer.loss),
        norm=float(np.linalg.norm(gradient)),
        places=tuple(int(place) for place in places),
        values=tuple(float(value) for value in gradient[places]),
    )
