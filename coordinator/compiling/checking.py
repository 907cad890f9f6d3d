"""Every compiled kit is compared with torch on several batches; one that is wrong never starts.

Two engines that compute in float32 never agree to the last bit, and at a kink (a ReLU whose input is nearly zero, a
pooling whose two largest values are nearly equal) rounding alone may turn a whole share of the gradient on or off. So
the truth is torch in double precision, and what is allowed beside it is what torch's own float32 does there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from coordinator.compiling.reference import TorchAnswer, exact, nudged, rounded
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs
from sojourn.model.session import REFUSED
from sojourn.randomness import derive, generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from coordinator.compiling.samples import Batch, ProbeSamples
    from coordinator.compiling.tracing import Trainee
    from sojourn.protocol.spec import Kit

ROUNDING = 2e-5
"""Of a tensor's length. Two float32 engines come to 5e-6 at most where there is no kink; a wrong gradient is off by a
good part of its length."""
FACTOR = 4.0
"""So many times torch's own error in float32 is allowed where that is more."""
DRAWS = 5
"""Batches of a kind that are compared where the first disagrees: a wrong graph is wrong on most of them."""
MOVED = 0.3
MOVED_FROM_ZERO = 0.05
RATE = 0.05
OTHERS = 0.8
"""A further model is so many times the one before."""
MOST_SAMPLES = 32
"""As many samples as a batch has at most that is compared: a graph is one for all sizes."""


@dataclass(frozen=True)
class Kind:
    """A kind of batch, and of vector, on which graph and torch are compared."""

    size: int
    coarse: bool = False
    """Whether values are rounded, so that maxima tie as they do in real images."""
    steps: int | None = None
    """So many steps of training from the start; None is a vector at which no tensor is zero."""

    def __str__(self) -> str:
        where = {None: "", 0: " at the start"}.get(self.steps, f" after {self.steps} steps")
        return f"a batch of {self.size}{where}"


def kinds(batch: int) -> tuple[Kind, ...]:
    """What a kit is compared on, for a job with batches of this size."""
    moved = (Kind(1), Kind(2), Kind(7, coarse=True), Kind(min(batch, MOST_SAMPLES)))
    return (*moved, Kind(3, steps=0), Kind(5, steps=3))


def models_beside(trainee: Trainee) -> tuple[NDArray[np.float32], ...]:
    """Further models for a step: the start, and after it others, for between two of one kind nothing is learnt."""
    return tuple(trainee.initial.numpy() * np.float32(OTHERS**at) for at in range(len(trainee.beside)))


class Exam:
    """What torch says of every batch that a kit is compared on; worked out when it is first needed."""

    def __init__(self, trainee: Trainee, samples: ProbeSamples, seed: int, batch: int) -> None:
        """Compare on batches like `samples`, also of the size `batch`."""
        self.kinds = kinds(batch)
        names = [name.removeprefix("module.") for name in trainee.names]
        self.names = [f"the gradient of {name}" for name in names[: trainee.trained]]
        self.names += [f"the new {name}" for name in names[trainee.trained :]]
        self.learnt = sum(trainee.sizes[: trainee.trained])
        self.sizes = trainee.sizes
        self.scored = not trainee.learning.plain
        self._trainee, self._samples, self._seed = trainee, samples, seed
        self._beside = models_beside(trainee)
        self.question = cache(self._question)
        self.rounded = cache(lambda kind, draw: rounded(trainee, *self.question(kind, draw)))
        self.exact = cache(lambda kind, draw: exact(trainee, *self.question(kind, draw)))
        self.nudged = cache(lambda kind, draw: nudged(trainee, *self.question(kind, draw), derive(seed, "draw", draw)))

    def _question(self, kind: Kind, draw: int) -> tuple[NDArray[np.float32], Batch]:
        seed = derive(self._seed, "draw", draw)
        beside = self._beside
        batch = replace(self._samples.batch(kind.size, seed, coarse=kind.coarse), beside=beside)
        if kind.steps is None:
            return self._moved(seed), batch
        vector = self._trainee.initial.numpy().copy()
        for step in range(kind.steps):
            before = replace(self._samples.batch(kind.size, derive(seed, "step", step)), beside=beside)
            answer = rounded(self._trainee, vector, before)
            vector[: self.learnt] -= np.float32(RATE) * answer.gradient.astype(np.float32)
            vector[self.learnt :] = answer.state
        return vector, batch

    def _moved(self, seed: int) -> NDArray[np.float32]:
        """Off the start, where zeros (biases, last layers of a block) would hide wrong gradients behind them."""
        draw = generator(seed, "moved")
        parts: list[NDArray[np.float32]] = []
        for part in np.split(self._trainee.initial.numpy(), np.cumsum(self.sizes)[:-1]):
            size = float(np.sqrt(np.mean(np.square(part, dtype=np.float64)))) if part.size else 0.0
            by = np.float32(MOVED * size or MOVED_FROM_ZERO)
            moved = part + by * draw.standard_normal(part.size, dtype=np.float32)
            # A variance is never negative, and state may as well be positive as not.
            parts.append(moved if len(parts) < self._trainee.trained else np.abs(moved) + np.float32(MOVED_FROM_ZERO))
        return np.concatenate(parts)


def check_kit(
    kit: Kit,
    exam: Exam,
    report: Callable[[int, int], None] = lambda _done, _all: None,
    make: Callable[[Kit], Graphs] | None = None,
) -> None:
    """Raise ModelError, with by how much, where onnxruntime and torch disagree; `report` is told how far it is."""
    graphs = make(kit) if make else Graphs(kit, threads=1)
    try:
        for at, kind in enumerate(exam.kinds):
            report(at, len(exam.kinds))
            _check_kind(graphs, exam, kind)
    except REFUSED as error:
        raise ModelError(f"onnxruntime refuses the compiled model: {error}") from error


def _check_kind(graphs: Graphs, exam: Exam, kind: Kind) -> None:
    first = _disagreement(graphs, exam, kind, 0)
    if first is None:
        return
    others = [_disagreement(graphs, exam, kind, draw) for draw in range(1, DRAWS)]
    wrong = [first, *(each for each in others if each is not None)]
    if len(wrong) > DRAWS // 2:
        raise ModelError(
            f"compiled and torch disagree for {kind}: {first}; and so for {len(wrong)} of {DRAWS} such batches. "
            "The model is not to blame: one of its layers is translated wrongly; write that layer in another way "
            "(docs/models.md), and please report it"
        )


def _disagreement(graphs: Graphs, exam: Exam, kind: Kind, draw: int) -> str | None:
    """What is off, and by how much; None where graph and torch agree."""
    here = _by_graphs(graphs, exam, kind, draw)
    # Where two engines agree in float32, nothing needs to be worked out twice as exactly.
    torch_says = list(_parts(exam.rounded(kind, draw)))
    if all(_apart(a, b) <= ROUNDING * _length(b) for a, b in zip(here, torch_says, strict=True)):
        return None
    truth = list(_parts(exam.exact(kind, draw)))
    rounding = [exam.rounded(kind, draw), *exam.nudged(kind, draw)]
    errors = [[_apart(part, true) for part, true in zip(_parts(it), truth, strict=True)] for it in rounding]
    names = ["the loss", "the prediction", "the loss of each sample", *exam.names]
    for name, part, true, *own in zip(names, here, truth, *errors, strict=True):
        allowed = max(ROUNDING * _length(true), FACTOR * max(own))
        if not _apart(part, true) <= allowed:  # so that a NaN is off too
            return _describe(name, part, true, allowed)
    return None


def _by_graphs(graphs: Graphs, exam: Exam, kind: Kind, draw: int) -> list[NDArray[np.float64]]:
    vector, batch = exam.question(kind, draw)
    x = graphs.features(batch.x)
    loss, gradient, state = graphs.loss_gradient_and_state(vector, x, batch.y, batch.noise, batch.beside)
    parts = np.split(np.concatenate([gradient, state]).astype(np.float64), np.cumsum(exam.sizes)[:-1])
    outputs = graphs.outputs(vector, x).astype(np.float64)
    losses = graphs.losses(vector, x, batch.y, batch.beside) if exam.scored else np.zeros(0)
    return [np.array([loss], np.float64), outputs.reshape(-1), losses, *parts]


def _parts(answer: TorchAnswer) -> Iterator[NDArray[np.float64]]:
    yield answer.loss.reshape(1)
    yield answer.outputs.reshape(-1)
    yield answer.losses
    yield from (part.reshape(-1) for part in (*answer.gradients, *answer.states))


def _length(values: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(values))


def _apart(here: NDArray[np.float64], there: NDArray[np.float64]) -> float:
    return _length(here - there)


def _describe(name: str, here: NDArray[np.float64], true: NDArray[np.float64], allowed: float) -> str:
    length, truth = _length(here), _length(true)
    if here.size == 1:
        return f"{name} is {here[0]:.7g}, by torch {true[0]:.7g} (allowed: {allowed:.2g} apart)"
    if not length or not truth:
        return f"{name} has length {length:.3g}, by torch {truth:.3g} (allowed: {allowed:.2g} apart)"
    return (
        f"{name} is off by {_apart(here, true) / truth:.3g} of its length (allowed: {allowed / truth:.2g}; "
        f"it is {length / truth:.3g} times as long as by torch, and the cosine between them is "
        f"{float(here @ true) / length / truth:.4f})"
    )
