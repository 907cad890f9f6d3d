"""Mini-batch descent in float32 on the device's own data, with SGD with momentum or Adam."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_agent.training.objectives import Objective, TwoStream
from sojourn.model.graphs import Graphs, Streams
from sojourn.parts import Training
from sojourn.protocol.limits import MAX_NUMBER
from sojourn.protocol.spec import Kit
from sojourn.randomness import batches, noise

Array = Any
Progress = Callable[[int, int], None]
"""Called with the step and the number of steps."""

# The optimisers: SGD with momentum, or Adam, with the same arithmetic as torch; their state starts at zero in each
# visit.
#
# Like `edge_agent.training.objectives`, they use only operators that numpy and torch share, for one model or many.

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Optimiser(Protocol):
    """Updates a model; weight decay is an L2 term that is added to the direction."""

    def move(self, w: Array, direction: Array) -> None:
        """Make one step, in place. The direction is overwritten."""


class MomentumOptimiser:
    """v <- momentum v + direction; w <- w - lr v."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._velocity: Array = None

    def move(self, w: Array, direction: Array) -> None:
        """Make one step."""
        training = self._training
        if training.weight_decay:
            direction += training.weight_decay * w
        if training.momentum:
            self._velocity = direction * 0.0 if self._velocity is None else self._velocity
            self._velocity *= training.momentum
            self._velocity += direction
            direction[...] = self._velocity
        direction *= training.lr
        w -= direction


class AdamOptimiser:
    """m and v are running means of the direction and of its square; w <- w - lr m' / (sqrt(v') + epsilon).

    m' and v' are m and v over 1 - beta^step, which undoes their start at zero.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._m: Array = None
        self._v: Array = None
        self._step = 0

    def move(self, w: Array, direction: Array) -> None:
        """Make one step."""
        if self._training.weight_decay:
            direction += self._training.weight_decay * w
        if not self._step:
            self._m, self._v = direction * 0.0, direction * 0.0
        self._step += 1
        self._m *= BETA1
        self._m += (1 - BETA1) * direction
        direction *= direction
        direction *= 1 - BETA2
        self._v *= BETA2
        self._v += direction
        root = self._v**0.5
        root /= (1 - BETA2**self._step) ** 0.5
        root += EPSILON
        direction[...] = self._m
        direction /= root
        direction *= self._training.lr / (1 - BETA1**self._step)
        w -= direction


def begin(training: Training) -> Optimiser:
    """Return the optimiser for one descent."""
    return AdamOptimiser(training) if training.optimiser == "adam" else MomentumOptimiser(training)


class Batches(Protocol):
    """Samples, or a part of them, readable in batches."""

    @property
    def y(self) -> NDArray[Any]:
        """The class index or the target of every sample."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Return the inputs, as the graph takes them, and the targets of the samples with these indices."""


@dataclass(frozen=True)
class Prepared:
    """The loaded kit, graphs and samples of a visit.

    note: problems of the data, without values, for the job's operator; warnings: in full, for the data's owner.
    """

    kit: Kit
    graphs: Graphs
    samples: Batches
    note: str = ""
    warnings: tuple[str, ...] = ()
    content: bytes = b""
    """A digest of the samples, if features of them may be stored."""


@dataclass(frozen=True)
class EpochResult:
    """One pass over the samples: the mean loss before each update, and the number of steps."""

    loss: float
    steps: int


class BatchWithState:
    """The loss and gradient of one step's batch, for a model with state: called with the trained parameters only.

    `left` is the state after the step. It comes from the first call, which is made at the model itself; further calls,
    such as SAM's step uphill, do not change it.
    """

    def __init__(  # all inputs of a step
        self,
        graphs: Graphs,
        w: NDArray[np.float32],
        trained: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[Any],
        drawn: Sequence[NDArray[np.float32]],
        reference_models: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> None:
        """`trained` is a view of the first parameters of `w`."""
        self._compute = partial(
            graphs.loss_gradient_and_state, x=x, y=y, noise=drawn, reference_models=reference_models, streams=streams
        )
        self._w, self._trained, self._left = w, trained, w[len(trained) :]
        self._called = False

    def __call__(self, at: NDArray[np.float32]) -> tuple[float, NDArray[np.float32]]:
        """Return the plain loss and its gradient."""
        whole = self._w if at is self._trained else np.concatenate([at, self._w[len(at) :]])
        loss, gradient, state = self._compute(whole)
        if not self._called:
            self._called, self._left = True, state
        return loss, gradient

    @property
    def left(self) -> NDArray[np.float32]:
        """The state after the step; unchanged if there was no call."""
        return self._left


def descend(
    start: NDArray[np.float32],
    objective: Objective,
    prepared: Prepared,
    training: Training,
    seed: int,
    progress: Progress,
) -> Iterator[tuple[NDArray[np.float32], EpochResult]]:
    """Train from `start`, and yield the model after each epoch; the next epoch changes it in place.

    The seed determines order and noise. The objective and the optimiser see only the trained parameters; the model's
    state is updated after each step.
    """
    kit, samples, w = prepared.kit, prepared.samples, start.copy()
    trained = w[: kit.model.trainable_size]
    optimiser = begin(training)
    per_epoch = steps_of(samples, training)
    losses: list[tuple[int, float]] = []
    frozen: dict[str, Any] = {"reference_models": (start.copy(),)} if kit.learns.reference_models else {}
    if isinstance(objective, TwoStream):
        frozen["streams"] = Streams(objective.anchors, objective.scalars)
    progress(0, per_epoch * training.epochs)
    for step, index in enumerate(batches(seed, len(samples), training.batch, training.epochs)):
        x, y = samples.batch(index, kit.input.dtype)
        drawn = noise(seed, step, len(index), kit.noise)
        batch = partial(prepared.graphs.loss_and_gradient, x=x, y=y, noise=drawn, **frozen)
        stateful = BatchWithState(prepared.graphs, w, trained, x, y, drawn, **frozen) if kit.model.state else None
        with np.errstate(over="ignore", invalid="ignore"):  # the gate stops a model that diverges
            loss, direction = objective.direction(trained, stateful or batch)
            optimiser.move(trained, direction)
        if stateful:
            w[kit.model.trainable_size :] = stateful.left
        losses.append((len(index), float(loss)))
        progress(step + 1, per_epoch * training.epochs)
        if len(losses) == per_epoch:
            yield w, EpochResult(sum(size * loss for size, loss in losses) / len(samples), per_epoch)
            losses.clear()


def descended(
    start: NDArray[np.float32],
    objective: Objective,
    prepared: Prepared,
    training: Training,
    seed: int,
    progress: Progress,
) -> tuple[NDArray[np.float32], list[EpochResult]]:
    """Train from `start`; return the model after the last epoch, and the result of every epoch."""
    end, passed = start, []
    for w, epoch in descend(start, objective, prepared, training, seed, progress):
        end = w
        passed.append(epoch)
    return end, passed


def steps_of(samples: Batches, training: Training) -> int:
    """Return the number of steps of an epoch."""
    return -(-len(samples) // training.batch)


def metrics(epochs: Sequence[EpochResult]) -> dict[str, float]:
    """Return the mean loss of the first and of the last epoch, and the total number of steps.

    A message cannot contain a loss that is not finite; `diverged` replaces it.
    """
    measured = {
        "loss_first": epochs[0].loss,
        "loss": epochs[-1].loss,
        "steps": float(sum(epoch.steps for epoch in epochs)),
    }
    finite = {name: metric for name, metric in measured.items() if abs(metric) <= MAX_NUMBER}
    return finite if len(finite) == len(measured) else {**finite, "diverged": 1.0}
