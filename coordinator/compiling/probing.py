"""The probe of a kit: what torch says about one small batch, for devices to compare with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from coordinator.compiling.reference import TorchAnswer, exact, nudged, rounded
from sojourn.errors import ModelError
from sojourn.model.graphs import GRADIENT_TOLERANCE, LOSS_TOLERANCE, probe_vector, state_places
from sojourn.protocol.spec import Probe
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from coordinator.compiling.samples import Batch, ProbeSamples
    from coordinator.compiling.tracing import Trainee

SAMPLES = 4
SPREAD_PLACES = 24
LARGEST_PLACES = 8
PLAIN = (SAMPLES,) * 2
SPREAD = (SAMPLES, 2, 1, 1, 1, 1)
"""How many samples the batches have that are tried, at the plain vector and then at one with a spread. The fewer they
are, the rarer is a kink that is near."""
STEADY = 0.1
"""Of what devices allow: a batch on which rounding and small nudges do less than this is taken at once."""
SMALL = 0.1
"""The spread of a tensor that is zero at the start."""


@dataclass(frozen=True)
class _Candidate:
    """A batch, the vector's spread, and how much of what devices allow rounding takes of it already."""

    batch: Batch
    seed: int
    spread: tuple[float, ...]
    unsteady: float


def probes(trainee: Trainee, samples: ProbeSamples, seed: int) -> Iterator[Probe]:
    """Loss and gradient by torch at the probe vector, told at spread places and at the largest values.

    The best first: of several batches, one on which rounding matters little. Else a device whose processor rounds
    otherwise would decline a model that it computes rightly. Agents from before 0.4.0 know only the plain vector: it is
    left only where it would fail them too.
    """
    tried = [(size, ()) for size in PLAIN] + [(size, _spread(trainee)) for size in SPREAD]
    others: list[_Candidate] = []
    for number, (size, spread) in enumerate(tried):
        candidate = _tried(trainee, samples, size, derive(seed, "probe", number), spread)
        if candidate.unsteady < STEADY:
            yield _probe(trainee, candidate)
        else:
            others.append(candidate)
    for candidate in sorted(others, key=lambda each: each.unsteady):
        yield _probe(trainee, candidate)


def _spread(trainee: Trainee) -> tuple[float, ...]:
    """So that each tensor is as large as at the start: numbers spread evenly up to s have a mean square of s²/3."""
    parts = torch.split(trainee.initial.double(), list(trainee.sizes))[: trainee.trained]
    return tuple(float(torch.sqrt(3 * part.square().mean())) or SMALL for part in parts)


def _tried(trainee: Trainee, samples: ProbeSamples, size: int, seed: int, spread: tuple[float, ...]) -> _Candidate:
    vector = _vector(trainee, spread)
    # A device that probes has no other model than this one.
    batch = replace(samples.batch(size, seed), beside=(vector,) * len(trainee.learning.task.beside))
    answer = rounded(trainee, vector, batch)
    # Twice to either side: one that misses a kink is made up for by the other.
    beside = [*nudged(trainee, vector, batch, seed), *nudged(trainee, vector, batch, derive(seed, "again"))]
    return _Candidate(batch, seed, spread, max(_unlike(answer, other) for other in beside))


def _vector(trainee: Trainee, spread: tuple[float, ...]) -> NDArray[np.float32]:
    return probe_vector(trainee.sizes, spread, len(trainee.sizes) - trainee.trained)


def _unlike(answer: TorchAnswer, other: TorchAnswer) -> float:
    """How far apart two answers are, in what a device allows (`sojourn.model.graphs`)."""
    loss, gradient, there = float(answer.loss), answer.gradient, other.gradient
    norm, largest = float(np.linalg.norm(gradient)), float(np.abs(gradient).max(initial=0))
    apart = [
        abs(float(other.loss) - loss) / (LOSS_TOLERANCE * max(1.0, abs(loss))),
        abs(float(np.linalg.norm(there)) - norm) / (GRADIENT_TOLERANCE * norm) if norm else 0.0,
        float(np.abs(there - gradient).max(initial=0)) / (GRADIENT_TOLERANCE * largest) if largest else 0.0,
    ]
    return max(apart) if np.isfinite(apart).all() else np.inf


def _probe(trainee: Trainee, taken: _Candidate) -> Probe:
    answer = exact(trainee, _vector(trainee, taken.spread), taken.batch)
    batch, gradient = taken.batch, answer.gradient
    if not np.isfinite(answer.loss) or not np.isfinite(gradient).all():
        raise ModelError(
            f"the model's loss on made-up samples is {float(answer.loss):.6g}, or its gradient is not finite: "
            "look at data.mean and data.std, and at divisions, logarithms and roots in the model and its loss"
        )
    spread = np.linspace(0, gradient.size - 1, min(SPREAD_PLACES, gradient.size)).astype(np.int64)
    largest = np.argsort(-np.abs(gradient), kind="stable")[:LARGEST_PLACES]
    places = np.union1d(spread, largest)
    task = trainee.learning.task
    classified = task.kind == "classification"
    return Probe(
        x=np.ascontiguousarray(batch.x).tobytes(),
        y=tuple(int(label) for label in batch.y) if classified else (0,) * len(batch.y),
        noise_seed=taken.seed,
        loss=float(answer.loss),
        norm=float(np.linalg.norm(gradient)),
        places=tuple(int(place) for place in places),
        values=tuple(float(value) for value in gradient[places]),
        spread=taken.spread,
        state=tuple(float(value) for value in answer.state[state_places(answer.state.size)]),
        targets=b"" if classified or task.target is None else np.ascontiguousarray(batch.y).tobytes(),
    )
