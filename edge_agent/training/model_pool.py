"""FedELMY's visit: a pool of diverse models, of which the mean is handed on.

"One-Shot Sequential Federated Learning for Non-IID Data by Enhancing Local Model Diversity" (Wang et al., ACM MM 2024).
The pool starts with the received model m_0; S times a model starts at the pool's mean, is trained away from the pool
(`edge_agent.training.diversity`), and joins it as it was after the epoch with the best accuracy on a local
validation split; of a task without classes, with the least loss on it.

What the paper leaves open:
- The validation split is the same at every visit (`edge_agent.training.held_out`).
- The warm-up, too, trains on the training part only; it keeps its last epoch.
- Among epochs of the same accuracy the earliest counts. Without a validation split the last one does.
- Every training at a visit has its own order and noise, and its optimiser starts anew.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from edge_agent.training.descent import descend, steps_of
from edge_agent.training.diversity import Diverse
from edge_agent.training.held_out import parted, right_answers
from edge_agent.training.objectives import Plain
from sojourn.model.scoring import BATCH
from sojourn.model.vectors import mean
from sojourn.randomness import derive, generator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from edge_agent.training.descent import Batches, EpochResult, Prepared, Progress
    from edge_agent.training.objectives import Objective
    from sojourn.parts import Elmy
    from sojourn.protocol.messages import Visit
    from sojourn.protocol.spec import ModelSpec


def train_pool(
    received: NDArray[np.float32],
    settings: Elmy,
    prepared: Prepared,
    visit: Visit,
    progress: Progress,
) -> tuple[NDArray[np.float32], list[EpochResult]]:
    """The mean of the pool that the received model grows here, and all epochs of all its trainings."""
    course = _Course(settings, prepared, visit, progress)
    first = received
    if not visit.earlier and settings.start == "own":
        first = shuffled(first, prepared.kit.model, visit.seed)
    for w in course.train(first, Plain(), course.warmup, "warm-up"):
        first = w
    pool, learnt = [first], prepared.kit.model.learnt
    for number in range(1, settings.models + 1):
        start = _middle(pool)
        pool.append(course.best(start, Diverse(settings, first[:learnt], start[:learnt]), f"model {number}"))
    return _middle(pool), course.passed


class _Course:
    """The trainings of one visit, one after another, and how far they are."""

    def __init__(self, settings: Elmy, prepared: Prepared, visit: Visit, progress: Progress) -> None:
        parts = parted(prepared.samples, settings.validation)
        learnt, self._held_out = parts.learnt, parts.validation
        self._prepared = replace(prepared, samples=learnt)
        self._training, self._seed, self._progress = visit.task.training, visit.seed, progress
        self.warmup = 0 if visit.earlier else settings.warmup
        epochs = self.warmup + settings.models * self._training.epochs
        self._steps = epochs * steps_of(learnt, self._training)
        self.passed: list[EpochResult] = []

    def train(
        self, start: NDArray[np.float32], objective: Objective, epochs: int, name: str
    ) -> Iterator[NDArray[np.float32]]:
        """The model after each epoch of a training, which the next epoch changes."""
        done = sum(epoch.steps for epoch in self.passed)
        training = msgspec.structs.replace(self._training, epochs=epochs)
        progress = partial(self._tell, done)
        for w, epoch in descend(start, objective, self._prepared, training, derive(self._seed, name), progress):
            self.passed.append(epoch)
            yield w

    def best(self, start: NDArray[np.float32], objective: Objective, name: str) -> NDArray[np.float32]:
        """The model after the epoch with the best answers; without samples to ask, after the last one."""
        best, most = start, -np.inf
        for number, w in enumerate(self.train(start, objective, self._training.epochs, name)):
            good = goodness(self._prepared, w, self._held_out) if self._held_out else float(number)
            if good > most:
                best, most = w.copy(), good
        return best

    def _tell(self, done: int, step: int, _: int) -> None:
        self._progress(done + step, self._steps)


def shuffled(model: NDArray[np.float32], spec: ModelSpec, seed: int) -> NDArray[np.float32]:
    """The numbers of each trained tensor in another order: of a random model, another one of the same kind."""
    made = model.copy()
    for name, tensor in islice(spec.split(made).items(), len(spec.learnt_sizes)):
        tensor[...] = generator(seed, "shuffle", name).permutation(tensor.reshape(-1)).reshape(tensor.shape)
    return made


def goodness(prepared: Prepared, w: NDArray[np.float32], held_out: Batches) -> float:
    """How good a model is on the samples held out: right answers of a classifier, else the less loss the better."""
    if not prepared.kit.task:
        return right_answers(prepared, w, held_out)
    loss, dtype = 0.0, prepared.kit.input.dtype
    for at in range(0, len(held_out), BATCH):
        x, y = held_out.batch(np.arange(at, min(at + BATCH, len(held_out))), dtype)
        loss += float(prepared.graphs.losses(w, x, y).sum())
    return -loss


def _middle(pool: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return mean(pool, [1.0] * len(pool))
