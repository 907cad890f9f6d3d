"""The probe of a kit: what torch says about one small batch, for devices to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.compiling.checking import by_torch
from sojourn.errors import ModelError
from sojourn.model.graphs import probe_vector
from sojourn.protocol.spec import Probe

if TYPE_CHECKING:
    from coordinator.compiling.samples import ProbeSamples
    from coordinator.compiling.tracing import Trainee

SAMPLES = 4
SPREAD_PLACES = 24
LARGEST_PLACES = 8


def take_probe(trainee: Trainee, samples: ProbeSamples, seed: int) -> Probe:
    """Loss and gradient by torch at the probe vector, told at spread places and at the largest values."""
    batch = samples.batch(SAMPLES, seed)
    loss, gradients = by_torch(trainee, probe_vector(trainee.initial.numel()), batch)
    gradient = np.concatenate([part.reshape(-1) for part in gradients]).astype(np.float64)
    norm = float(np.linalg.norm(gradient))
    if not np.isfinite(loss) or not np.isfinite(norm):
        raise ModelError(f"the model's loss at the probe is {loss}, its gradient's norm {norm}: they must be finite")
    spread = np.linspace(0, gradient.size - 1, min(SPREAD_PLACES, gradient.size)).astype(np.int64)
    largest = np.argsort(-np.abs(gradient), kind="stable")[:LARGEST_PLACES]
    places = np.union1d(spread, largest)
    return Probe(
        x=np.ascontiguousarray(batch.x).tobytes(),
        y=tuple(int(label) for label in batch.y),
        noise_seed=seed,
        loss=loss,
        norm=norm,
        places=tuple(int(place) for place in places),
        values=tuple(float(value) for value in gradient[places]),
    )
