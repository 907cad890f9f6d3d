"""Mini-batch descent in float32 on the device's own data, with a kit's graphs: what every training here is made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edge_agent.training import optimisers
from edge_agent.training.second_stream import TwoStream
from sojourn.model.graphs import Streams
from sojourn.protocol.limits import MOST_FIGURE
from sojourn.randomness import batches, noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from edge_agent.training.objectives import Objective
    from sojourn.model.graphs import Graphs
    from sojourn.parts import Training
    from sojourn.protocol.spec import Kit

    Progress = Callable[[int, int], None]
    """Told the step and of how many."""


class Batches(Protocol):
    """Samples, or a part of them, to be had in batches."""

    @property
    def y(self) -> NDArray[Any]:
        """What every sample is compared with: its class number, or its target."""

    def __len__(self) -> int:
        """How many samples there are."""

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """The samples with these numbers as the graph takes them: inputs, and what they are compared with."""


@dataclass(frozen=True)
class Prepared:
    """What a visit needs besides its vectors, ready to use; the samples as the graphs take them.

    note: what the job's operator should know of the data, if something is odd; warnings: the same for its owner.
    """

    kit: Kit
    graphs: Graphs
    samples: Batches
    note: str = ""
    warnings: tuple[str, ...] = ()
    content: bytes = b""
    """What tells these samples from others, where features of them may be kept."""


@dataclass(frozen=True)
class EpochResult:
    """One pass over the samples: the mean loss, as the model met them, and how many steps it took."""

    loss: float
    steps: int


class BatchWithState:
    """The slope of one step's batch for a model with state: asked with its trained numbers, it adds the state.

    `left` is the state after the step: that of the first question, which is asked where the model is. An objective
    that asks again, as SAM does a step uphill, leaves no trace of it.
    """

    def __init__(  # all that a step is made of
        self,
        graphs: Graphs,
        w: NDArray[np.float32],
        learnt: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[Any],
        drawn: Sequence[NDArray[np.float32]],
        beside: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> None:
        """`learnt` are the first numbers of `w`, in the same memory."""
        self._ask = partial(graphs.loss_gradient_and_state, x=x, y=y, noise=drawn, beside=beside, streams=streams)
        self._w, self._learnt, self._left = w, learnt, w[len(learnt) :]
        self._asked = False

    def __call__(self, at: NDArray[np.float32]) -> tuple[float, NDArray[np.float32]]:
        """The plain loss and its gradient."""
        whole = self._w if at is self._learnt else np.concatenate([at, self._w[len(at) :]])
        loss, gradient, state = self._ask(whole)
        if not self._asked:
            self._asked, self._left = True, state
        return loss, gradient

    @property
    def left(self) -> NDArray[np.float32]:
        """The state after the step; as it was, if nobody asked."""
        return self._left


def descend(
    start: NDArray[np.float32],
    objective: Objective,
    prepared: Prepared,
    training: Training,
    seed: int,
    progress: Progress,
) -> Iterator[tuple[NDArray[np.float32], EpochResult]]:
    """Train from `start`, order and noise from the seed: after each epoch the model, which the next one changes.

    The objective and the optimiser see the trained numbers alone; a model's state becomes what each step leaves.
    """
    kit, samples, w = prepared.kit, prepared.samples, start.copy()
    learnt = w[: kit.model.learnt]
    optimiser = optimisers.begin(training)
    per_epoch = steps_of(samples, training)
    losses: list[tuple[int, float]] = []
    beside: dict[str, Any] = {"beside": (start.copy(),)} if kit.learns.beside else {}
    if isinstance(objective, TwoStream):
        beside["streams"] = Streams(objective.anchors, objective.scalars)
    progress(0, per_epoch * training.epochs)
    for step, index in enumerate(batches(seed, len(samples), training.batch, training.epochs)):
        x, y = samples.batch(index, kit.input.dtype)
        drawn = noise(seed, step, len(index), kit.noise)
        batch = partial(prepared.graphs.loss_and_gradient, x=x, y=y, noise=drawn, **beside)
        stateful = BatchWithState(prepared.graphs, w, learnt, x, y, drawn, **beside) if kit.model.state else None
        with np.errstate(over="ignore", invalid="ignore"):  # the gate stops a model that diverges
            loss, direction = objective.direction(learnt, stateful or batch)
            optimiser.move(learnt, direction)
        if stateful:
            w[kit.model.learnt :] = stateful.left
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
    """Train from `start` to the end: the model after the last epoch, and what each epoch was."""
    end, passed = start, []
    for w, epoch in descend(start, objective, prepared, training, seed, progress):
        end = w
        passed.append(epoch)
    return end, passed


def steps_of(samples: Batches, training: Training) -> int:
    """How many steps an epoch takes."""
    return -(-len(samples) // training.batch)


def metrics(epochs: Sequence[EpochResult]) -> dict[str, float]:
    """The mean loss over the first and over the last epoch, and the steps of all.

    No message holds a loss that is not finite: in place of one it says that training `diverged`.
    """
    measured = {
        "loss_first": epochs[0].loss,
        "loss": epochs[-1].loss,
        "steps": float(sum(epoch.steps for epoch in epochs)),
    }
    finite = {name: figure for name, figure in measured.items() if abs(figure) <= MOST_FIGURE}
    return finite if len(finite) == len(measured) else {**finite, "diverged": 1.0}
