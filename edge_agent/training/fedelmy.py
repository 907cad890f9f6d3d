"""The visit of FedELMY: trains a pool of diverse models, and sends their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_agent.training.descent import Batches, EpochResult, Prepared, Progress, descend, metrics, steps_of
from edge_agent.training.held_out import correct_predictions, parted
from edge_agent.training.messages import Train, Trained
from edge_agent.training.objectives import Array, LossAndGrad, Objective, Plain
from edge_agent.training.visit_vectors import model_of, save_model
from sojourn import parts
from sojourn.model.scoring import BATCH
from sojourn.model.vectors import weighted_mean
from sojourn.parts import Elmy
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import ModelSpec
from sojourn.randomness import derive, generator
from sojourn.store.blobs import BlobStore

# FedELMY's terms of the gradient: away from the models of the pool, and not too far from the first of them.
#
# l(w) - alpha s d1 + beta s d2, where d1 is the mean squared distance of w to the models of the pool, and
# d2 = |w - m_0|^2. The gradient of d1 is 2 (w - mean of the pool), so the pool itself is not needed.
#
# Like `edge_agent.training.objectives`, this works on vectors of shape (..., P) and uses only operators that numpy and
# torch share.

_ORDERS = range(-44, 39)
"""The orders of magnitude of float32."""


class Diverse(Plain):
    """The objective of one model of the pool."""

    def __init__(self, settings: parts.Elmy, first: Array, mean: Array) -> None:
        self._alpha, self._beta = settings.alpha, settings.beta
        self._first, self._mean = first, mean

    def direction(self, w: Array, loss_and_grad: LossAndGrad) -> tuple[Array, Array]:
        """Follow g - alpha s 2 (w - mean) + beta s 2 (w - m_0)."""
        loss, gradient = loss_and_grad(w)
        far = w - self._first
        scale = distance_scale(loss, (far * far).sum(-1))
        away = w - self._mean
        away *= self._alpha
        far *= self._beta
        far -= away
        far *= 2.0 * scale[..., None]  # in place: it keeps its type, whatever the scale's
        gradient += far
        return loss, gradient


def distance_scale(loss: Any, d2: Any) -> Any:
    """Return s = min(1, 10^(floor(log10 l) - 1 - floor(log10 d2))), which scales d2 below the loss's magnitude.

    Example: l = 6.02 and d2 = 45 give s = 0.01, so s d2 = 0.45. If d2 or l is 0, s = 1. The gradient treats s as a
    constant.
    """
    exponent = _order(loss) - 1 - _order(d2)
    return 10.0 ** (exponent * (exponent < 0) * (loss > 0) * (d2 > 0))


def _order(value: Any) -> Any:
    """Return floor(log10 value) by comparisons: exact at powers of ten, for one value or an array."""
    return sum(value >= 10.0**order for order in _ORDERS) + _ORDERS.start - 1


# FedELMY's visit: a pool of diverse models, whose mean is sent.
#
# "One-Shot Sequential Federated Learning for Non-IID Data by Enhancing Local Model Diversity" (Wang et al., ACM MM
# 2024). The pool starts with the received model m_0. S times, a model starts at the pool's mean, is trained away from
# the pool, and joins it in its state after the epoch with the best accuracy on a local validation split (for a task
# without classes, with the lowest loss).
#
# What the paper leaves open:
# - The validation split is the same at every visit (`edge_agent.training.held_out`).
# - The warm-up, too, trains on the training part only; it keeps its last epoch.
# - Among epochs of the same accuracy the earliest counts. Without a validation split the last one does.
# - Every training in a visit has its own order, noise and optimiser state.


def train_model_pool(work: Train, settings: Elmy, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train a pool of models, and send its mean."""
    visit, spec = work.visit, prepared.kit.model
    start = model_of(visit, blobs, spec)
    end, passed = train_pool(start, settings, prepared, visit, progress)
    sent = {"model": save_model(blobs, start, end, visit.task, spec)}
    return Trained(sent, len(prepared.samples), metrics(passed), None, {})


def train_pool(
    received: NDArray[np.float32],
    settings: Elmy,
    prepared: Prepared,
    visit: Visit,
    progress: Progress,
) -> tuple[NDArray[np.float32], list[EpochResult]]:
    """Return the mean of the pool trained from the received model, and the results of all epochs."""
    training = _PoolTraining(settings, prepared, visit, progress)
    first = received
    if not visit.earlier and settings.start == "own":
        first = shuffled(first, prepared.kit.model, visit.seed)
    for w in training.train(first, Plain(), training.warmup, "warm-up"):
        first = w
    pool, size = [first], prepared.kit.model.trainable_size
    for number in range(1, settings.models + 1):
        start = _middle(pool)
        pool.append(training.best(start, Diverse(settings, first[:size], start[:size]), f"model {number}"))
    return _middle(pool), training.passed


class _PoolTraining:
    """The trainings of one visit, and their common progress."""

    def __init__(self, settings: Elmy, prepared: Prepared, visit: Visit, progress: Progress) -> None:
        parts = parted(prepared.samples, settings.validation)
        samples, self._held_out = parts.training, parts.validation
        self._prepared = replace(prepared, samples=samples)
        self._training, self._seed, self._progress = visit.task.training, visit.seed, progress
        self.warmup = 0 if visit.earlier else settings.warmup
        epochs = self.warmup + settings.models * self._training.epochs
        self._steps = epochs * steps_of(samples, self._training)
        self.passed: list[EpochResult] = []

    def train(
        self, start: NDArray[np.float32], objective: Objective, epochs: int, name: str
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the model after each epoch of a training; the next epoch changes it in place."""
        done = sum(epoch.steps for epoch in self.passed)
        training = msgspec.structs.replace(self._training, epochs=epochs)
        progress = partial(self._report_progress, done)
        for w, epoch in descend(start, objective, self._prepared, training, derive(self._seed, name), progress):
            self.passed.append(epoch)
            yield w

    def best(self, start: NDArray[np.float32], objective: Objective, name: str) -> NDArray[np.float32]:
        """Return the model after the epoch with the best validation score; without a split, after the last one."""
        best, highest = start, -np.inf
        for number, w in enumerate(self.train(start, objective, self._training.epochs, name)):
            score = validation_score(self._prepared, w, self._held_out) if self._held_out else float(number)
            if score > highest:
                best, highest = w.copy(), score
        return best

    def _report_progress(self, done: int, step: int, _: int) -> None:
        self._progress(done + step, self._steps)


def shuffled(model: NDArray[np.float32], spec: ModelSpec, seed: int) -> NDArray[np.float32]:
    """Return the model with each trained tensor's values shuffled: a new random initialisation of the same scale."""
    made = model.copy()
    for name, tensor in islice(spec.split(made).items(), len(spec.trainable_sizes)):
        tensor[...] = generator(seed, "shuffle", name).permutation(tensor.reshape(-1)).reshape(tensor.shape)
    return made


def validation_score(prepared: Prepared, w: NDArray[np.float32], held_out: Batches) -> float:
    """Return the score of a model on the held-out samples: a classifier's correct predictions, otherwise minus loss."""
    if not prepared.kit.task:
        return correct_predictions(prepared, w, held_out)
    loss, dtype = 0.0, prepared.kit.input.dtype
    for at in range(0, len(held_out), BATCH):
        x, y = held_out.batch(np.arange(at, min(at + BATCH, len(held_out))), dtype)
        loss += float(prepared.graphs.losses(w, x, y).sum())
    return -loss


def _middle(pool: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return weighted_mean(pool, [1.0] * len(pool))
