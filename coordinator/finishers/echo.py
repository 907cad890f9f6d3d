"""MA-Echo's server half, in numpy: models move along what each device's data leaves free.

Shangchao Su, Bin Li and Xiangyang Xue: "One-Shot Federated Learning without Server-Side Training", Neural Networks
2023. For each layer of weights but the last, with W the uniform mean of the w_i, tau times:

    W   <- W + lam (1/N) sum (W - w_i)(P_i - I)
    w_i <- w_i + lam (W - w_i) P_i              norm: each row of the step first scaled to length 1

The result is the mean of the moved w_i. Of the last layer row c is the mean over the devices that have class c, or over
all where nobody has it. A bias is one more column of its layer's weights; all other tensors are the plain mean. Layers
come one after another, so that the projections of one layer are in memory at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.finishers.task import MEGABYTE, Finished
from sojourn.errors import JobError
from sojourn.model.lengths import told_numbers
from sojourn.parts import Echo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from coordinator.finishers.task import FinishTask, Vector
    from sojourn.parts import EchoServer
    from sojourn.protocol.spec import TapLayer

    Matrix = NDArray[np.float64]
    Along = Callable[[Matrix], Matrix]
    """A row's part along a projection: D -> D P."""

FLOAT64 = 8
TOLD = "projections"


def echo(settings: EchoServer, task: FinishTask) -> Finished:
    """The members' models moved together without forgetting what each device's data needs."""
    more = task.kit.more
    objective = task.job.parts().objective
    if not more or not more.taps or not isinstance(objective, Echo):
        raise JobError("the kit has no graph of what its layers are given: the finisher echo needs the objective echo")
    layers, sizes = more.taps.layers, told_numbers(objective, task.kit)
    models = [task.kit.model.split(each.load()) for each in task.members]
    result = _mean([each.load() for each in task.members])
    merged = task.kit.model.split(result)
    at = 0
    for number, (layer, size) in enumerate(zip(layers, sizes, strict=False)):
        task.say(f"echo: layer {number + 1} of {len(layers)}")
        _check_room(settings, layer, size, len(models))
        along = [_along(each.told[TOLD]()[at : at + size], layer.inputs) for each in task.members]
        moved = move([_rows(model, layer) for model in models], along, settings)
        _put(merged, layer, moved)
        at += size
    had = [each.told[TOLD]()[at:] > 0 for each in task.members]
    _put(merged, layers[-1], by_class([_rows(model, layers[-1]) for model in models], had))
    return Finished(result)


def move(models: Sequence[Matrix], along: Sequence[Along], settings: EchoServer) -> Matrix:
    """One layer of all members, moved tau times; the mean of where they end."""
    whole = np.mean(models, axis=0)
    w = list(models)
    for _ in range(settings.tau):
        apart = [whole - each for each in w]
        whole = whole + settings.lam * np.mean([p(d) - d for p, d in zip(along, apart, strict=True)], axis=0)
        steps = [p(whole - each) for p, each in zip(along, w, strict=True)]
        steps = [_unit(step) for step in steps] if settings.norm else steps
        w = [each + settings.lam * step for each, step in zip(w, steps, strict=True)]
    found: Matrix = np.mean(w, axis=0)
    return found


def by_class(models: Sequence[Matrix], had: Sequence[NDArray[np.bool_]]) -> Matrix:
    """The last layer: each row the mean over those that have its class; over all where nobody has it."""
    rows = np.stack(models)
    weights = np.stack([each.astype(np.float64) for each in had])
    weights[:, weights.sum(0) == 0] = 1.0
    found: Matrix = (rows * weights[:, :, None]).sum(0) / weights.sum(0)[:, None]
    return found


def _along(told: Vector, width: int) -> Along:
    """What a device told of a layer: P itself, or Q with P = I - Q Q^T."""
    matrix = told.astype(np.float64).reshape(width, -1)
    if matrix.shape[1] == width:
        return lambda rows: rows @ matrix
    return lambda rows: rows - (rows @ matrix) @ matrix.T


def _unit(step: Matrix) -> Matrix:
    """Each row with length 1; one of length 0 stays."""
    length = np.linalg.norm(step, axis=1, keepdims=True)
    found: Matrix = step / np.where(length > 0, length, 1.0)
    return found


def _rows(model: dict[str, Vector], layer: TapLayer) -> Matrix:
    """A layer's weights, a row for each of its answers; the bias is the last column."""
    weight = model[layer.weight].astype(np.float64)
    rows = weight.reshape(len(weight), -1)
    return np.column_stack([rows, model[layer.bias].astype(np.float64)]) if layer.bias else rows


def _put(model: dict[str, Vector], layer: TapLayer, rows: Matrix) -> None:
    """Put a layer back, in place."""
    weight = model[layer.weight]
    weight[...] = (rows[:, :-1] if layer.bias else rows).reshape(weight.shape)
    if layer.bias:
        model[layer.bias][...] = rows[:, -1]


def _mean(models: Sequence[Vector]) -> Vector:
    """The uniform mean, whatever the aggregator."""
    found: Vector = np.stack(models).mean(0, dtype=np.float64).astype(np.float32)
    return found


def _check_room(settings: EchoServer, layer: TapLayer, size: int, members: int) -> None:
    room = FLOAT64 * size * members / MEGABYTE
    if room > settings.memory:
        raise JobError(
            f"the projections of the layer {layer.weight} take {room:,.0f} MB for {members} devices, and "
            f"finisher.memory = {settings.memory:g} allows less: raise it, or tell fewer directions (objective.rank)"
        )
