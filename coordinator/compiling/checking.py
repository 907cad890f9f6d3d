"""Compare every compiled kit with torch on several batches; a kit that disagrees is refused.

Two engines that compute in float32 never agree to the last bit. At a kink (a ReLU whose input is nearly zero, a pooling
whose two largest values are nearly equal) rounding alone may switch a whole share of the gradient on or off. So the
reference is torch in double precision, and the tolerance is the error of torch's float32 there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from coordinator.compiling.probes import Batch, ProbeSamples, TorchResult, exact, nudged, rounded
from coordinator.compiling.tracing import Trainee
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs
from sojourn.model.session import RUNTIME_ERRORS
from sojourn.protocol.spec import Kit
from sojourn.randomness import derive, generator

ROUNDING = 2e-5
"""The tolerance, relative to a tensor's norm. Without a kink two float32 engines differ by at most 5e-6; a wrong
gradient differs by a large part of its norm.
"""
ERROR_FACTOR = 4.0
"""The tolerance as a multiple of torch's own float32 error, if that is larger."""
BATCHES_PER_KIND = 5
"""How many batches of a kind are compared if the first disagrees: a wrong graph is wrong on most of them."""
MOVED = 0.3
MOVED_FROM_ZERO = 0.05
LEARNING_RATE = 0.05
REFERENCE_FACTOR = 0.8
"""The factor between the parameters of one reference model and the next."""
MAX_SAMPLES = 32
"""The maximum size of a compared batch; one graph serves all sizes."""


@dataclass(frozen=True)
class Kind:
    """A kind of batch, and of parameter vector, on which graph and torch are compared."""

    size: int
    coarse: bool = False
    """Whether values are rounded, so that maxima tie as in real images."""
    steps: int | None = None
    """The number of training steps from the start; None is a vector in which no tensor is zero."""

    def __str__(self) -> str:
        where = {None: "", 0: " at the start"}.get(self.steps, f" after {self.steps} steps")
        return f"a batch of {self.size}{where}"


def kinds(batch: int) -> tuple[Kind, ...]:
    """Return the kinds of batches on which a kit is compared, for a job with batches of this size."""
    moved = (Kind(1), Kind(2), Kind(7, coarse=True), Kind(min(batch, MAX_SAMPLES)))
    return (*moved, Kind(3, steps=0), Kind(5, steps=3))


def reference_vectors(trainee: Trainee) -> tuple[NDArray[np.float32], ...]:
    """Return the start and scaled copies of it as reference models: between equal models there is no gradient."""
    start, count = trainee.initial.numpy(), len(trainee.reference_models)
    return tuple(start * np.float32(REFERENCE_FACTOR**at) for at in range(count))


class Exam:
    """Torch's results for every batch on which a kit is compared; each is computed when it is first needed."""

    def __init__(self, trainee: Trainee, samples: ProbeSamples, seed: int, batch: int) -> None:
        """Compare on batches like `samples`, including one of the size `batch`."""
        self.kinds = kinds(batch)
        names = [name.removeprefix("module.") for name in trainee.names]
        self.names = [f"the gradient of {name}" for name in names[: trainee.trained]]
        self.names += [f"the new {name}" for name in names[trainee.trained :]]
        self.trainable_size = sum(trainee.sizes[: trainee.trained])
        self.sizes = trainee.sizes
        self.scored = not trainee.learning.plain
        self._trainee, self._samples, self._seed = trainee, samples, seed
        self._reference_models = reference_vectors(trainee)
        self.question = cache(self._question)
        self.rounded = cache(lambda kind, draw: rounded(trainee, *self.question(kind, draw)))
        self.exact = cache(lambda kind, draw: exact(trainee, *self.question(kind, draw)))
        self.nudged = cache(lambda kind, draw: nudged(trainee, *self.question(kind, draw), derive(seed, "draw", draw)))

    def _question(self, kind: Kind, draw: int) -> tuple[NDArray[np.float32], Batch]:
        seed = derive(self._seed, "draw", draw)
        reference_models = self._reference_models
        batch = replace(self._samples.batch(kind.size, seed, coarse=kind.coarse), reference_models=reference_models)
        if kind.steps is None:
            return self._moved(seed), batch
        vector = self._trainee.initial.numpy().copy()
        for step in range(kind.steps):
            before = replace(
                self._samples.batch(kind.size, derive(seed, "step", step)), reference_models=reference_models
            )
            result = rounded(self._trainee, vector, before)
            vector[: self.trainable_size] -= np.float32(LEARNING_RATE) * result.gradient.astype(np.float32)
            vector[self.trainable_size :] = result.state
        return vector, batch

    def _moved(self, seed: int) -> NDArray[np.float32]:
        """Move the parameters off the start, whose zeros (biases, last layers) would hide wrong gradients."""
        draw = generator(seed, "moved")
        parts: list[NDArray[np.float32]] = []
        for part in np.split(self._trainee.initial.numpy(), np.cumsum(self.sizes)[:-1]):
            size = float(np.sqrt(np.mean(np.square(part, dtype=np.float64)))) if part.size else 0.0
            by = np.float32(MOVED * size or MOVED_FROM_ZERO)
            moved = part + by * draw.standard_normal(part.size, dtype=np.float32)
            # A variance is never negative, and other state may be positive.
            parts.append(moved if len(parts) < self._trainee.trained else np.abs(moved) + np.float32(MOVED_FROM_ZERO))
        return np.concatenate(parts)


def check_kit(
    kit: Kit,
    exam: Exam,
    report: Callable[[int, int], None] = lambda _done, _all: None,
    make: Callable[[Kit], Graphs] | None = None,
) -> None:
    """Raise ModelError with the difference if onnxruntime and torch disagree; `report` receives the progress."""
    graphs = make(kit) if make else Graphs(kit, threads=1)
    try:
        for at, kind in enumerate(exam.kinds):
            report(at, len(exam.kinds))
            _check_kind(graphs, exam, kind)
    except RUNTIME_ERRORS as error:
        raise ModelError(f"onnxruntime refuses the compiled model: {error}") from error


def _check_kind(graphs: Graphs, exam: Exam, kind: Kind) -> None:
    first = _disagreement(graphs, exam, kind, 0)
    if first is None:
        return
    others = [_disagreement(graphs, exam, kind, draw) for draw in range(1, BATCHES_PER_KIND)]
    wrong = [first, *(each for each in others if each is not None)]
    if len(wrong) > BATCHES_PER_KIND // 2:
        raise ModelError(
            f"compiled and torch disagree for {kind}: {first}; {len(wrong)} of {BATCHES_PER_KIND} such batches "
            "disagree. This is not an error of the model: one of its layers is translated wrongly. Write that layer in "
            "another way (docs/models.md), and please report it"
        )


def _disagreement(graphs: Graphs, exam: Exam, kind: Kind, draw: int) -> str | None:
    """Describe what differs, and by how much; None if graph and torch agree."""
    here = _by_graphs(graphs, exam, kind, draw)
    # If the two engines agree in float32, the computation in double precision is not needed.
    by_torch = list(_parts(exam.rounded(kind, draw)))
    if all(_apart(a, b) <= ROUNDING * _length(b) for a, b in zip(here, by_torch, strict=True)):
        return None
    truth = list(_parts(exam.exact(kind, draw)))
    rounding = [exam.rounded(kind, draw), *exam.nudged(kind, draw)]
    errors = [[_apart(part, true) for part, true in zip(_parts(it), truth, strict=True)] for it in rounding]
    names = ["the loss", "the prediction", "the loss of each sample", *exam.names]
    for name, part, true, *own in zip(names, here, truth, *errors, strict=True):
        allowed = max(ROUNDING * _length(true), ERROR_FACTOR * max(own))
        if not _apart(part, true) <= allowed:  # also refuses NaN
            return _describe(name, part, true, allowed)
    return None


def _by_graphs(graphs: Graphs, exam: Exam, kind: Kind, draw: int) -> list[NDArray[np.float64]]:
    vector, batch = exam.question(kind, draw)
    x = graphs.features(batch.x)
    loss, gradient, state = graphs.loss_gradient_and_state(vector, x, batch.y, batch.noise, batch.reference_models)
    parts = np.split(np.concatenate([gradient, state]).astype(np.float64), np.cumsum(exam.sizes)[:-1])
    outputs = graphs.outputs(vector, x).astype(np.float64)
    losses = graphs.losses(vector, x, batch.y, batch.reference_models) if exam.scored else np.zeros(0)
    return [np.array([loss], np.float64), outputs.reshape(-1), losses, *parts]


def _parts(result: TorchResult) -> Iterator[NDArray[np.float64]]:
    yield result.loss.reshape(1)
    yield result.outputs.reshape(-1)
    yield result.losses
    yield from (part.reshape(-1) for part in (*result.gradients, *result.states))


def _length(values: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(values))


def _apart(here: NDArray[np.float64], there: NDArray[np.float64]) -> float:
    return _length(here - there)


def _describe(name: str, here: NDArray[np.float64], true: NDArray[np.float64], allowed: float) -> str:
    length, truth = _length(here), _length(true)
    if here.size == 1:
        return f"{name} is {here[0]:.7g}, by torch {true[0]:.7g} (allowed difference: {allowed:.2g})"
    if not length or not truth:
        return f"{name} has norm {length:.3g}, by torch {truth:.3g} (allowed difference: {allowed:.2g})"
    return (
        f"{name} differs by {_apart(here, true) / truth:.3g} of its norm (allowed: {allowed / truth:.2g}; "
        f"its norm is {length / truth:.3g} times torch's, and the cosine between them is "
        f"{float(here @ true) / length / truth:.4f})"
    )
