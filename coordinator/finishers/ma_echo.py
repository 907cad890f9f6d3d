"""MA-Echo's server half, in numpy: models move along the directions that each device's data leaves free.

Shangchao Su, Bin Li and Xiangyang Xue: "One-Shot Federated Learning without Server-Side Training", Neural Networks
2023. For each layer of weights except the last, with W the uniform mean of the w_i, tau times:

    W   <- W + lam (1/N) sum (W - w_i)(P_i - I)
    w_i <- w_i + lam (W - w_i) P_i              norm: each row of the step first scaled to length 1

The result is the mean of the moved w_i. Row c of the last layer is the mean over the devices that have class c, or over
all devices if none has it. A bias is one more column of its layer's weights; all other tensors are the plain mean.
Layers are processed one after another, so that only the projections of one layer are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.finishers.task import MEGABYTE, Finished, FinishTask, Vector
from sojourn.errors import JobError
from sojourn.model.vectors import reported_sizes
from sojourn.parts import Echo, EchoServer
from sojourn.protocol.spec import TapLayer

Matrix = NDArray[np.float64]
Along = Callable[[Matrix], Matrix]
"""Projects rows: D -> D P."""

FLOAT64 = 8
REPORTED = "projections"


def echo(settings: EchoServer, task: FinishTask) -> Finished:
    """Move the members' models together, without changing their outputs on each device's data."""
    more = task.kit.more
    objective = task.job.parts().objective
    if not more or not more.taps or not isinstance(objective, Echo):
        raise JobError("the kit has no graph of its layers' inputs: the finisher echo needs the objective echo")
    layers, sizes = more.taps.layers, reported_sizes(objective, task.kit)
    models = [task.kit.model.split(each.load()) for each in task.members]
    result = _mean([each.load() for each in task.members])
    merged = task.kit.model.split(result)
    at = 0
    for number, (layer, size) in enumerate(zip(layers, sizes, strict=False)):
        task.notify(f"echo: layer {number + 1} of {len(layers)}")
        _check_room(settings, layer, size, len(models))
        along = [_projection(each.reported[REPORTED]()[at : at + size], layer.inputs) for each in task.members]
        moved = move([_rows(model, layer) for model in models], along, settings)
        _put(merged, layer, moved)
        at += size
    had = [each.reported[REPORTED]()[at:] > 0 for each in task.members]
    _put(merged, layers[-1], by_class([_rows(model, layers[-1]) for model in models], had))
    return Finished(result)


def move(models: Sequence[Matrix], along: Sequence[Along], settings: EchoServer) -> Matrix:
    """Move one layer of all members tau times, and return the mean of the results."""
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
    """Return the last layer: each row is the mean over the devices that have its class, or over all if none has."""
    rows = np.stack(models)
    weights = np.stack([each.astype(np.float64) for each in had])
    weights[:, weights.sum(0) == 0] = 1.0
    found: Matrix = (rows * weights[:, :, None]).sum(0) / weights.sum(0)[:, None]
    return found


def _projection(reported: Vector, width: int) -> Along:
    """Return the projection that a device reported for a layer: P itself, or Q with P = I - Q Q^T."""
    matrix = reported.astype(np.float64).reshape(width, -1)
    if matrix.shape[1] == width:
        return lambda rows: rows @ matrix
    return lambda rows: rows - (rows @ matrix) @ matrix.T


def _unit(step: Matrix) -> Matrix:
    """Scale each row to length 1; rows of length 0 stay."""
    length = np.linalg.norm(step, axis=1, keepdims=True)
    found: Matrix = step / np.where(length > 0, length, 1.0)
    return found


def _rows(model: dict[str, Vector], layer: TapLayer) -> Matrix:
    """Return a layer's weights, one row for each output; the bias is the last column."""
    weight = model[layer.weight].astype(np.float64)
    rows = weight.reshape(len(weight), -1)
    return np.column_stack([rows, model[layer.bias].astype(np.float64)]) if layer.bias else rows


def _put(model: dict[str, Vector], layer: TapLayer, rows: Matrix) -> None:
    """Write a layer's weights back, in place."""
    weight = model[layer.weight]
    weight[...] = (rows[:, :-1] if layer.bias else rows).reshape(weight.shape)
    if layer.bias:
        model[layer.bias][...] = rows[:, -1]


def _mean(models: Sequence[Vector]) -> Vector:
    """Return the uniform mean, independently of the aggregator."""
    found: Vector = np.stack(models).mean(0, dtype=np.float64).astype(np.float32)
    return found


def _check_room(settings: EchoServer, layer: TapLayer, size: int, members: int) -> None:
    room = FLOAT64 * size * members / MEGABYTE
    if room > settings.memory:
        raise JobError(
            f"the projections of the layer {layer.weight} take {room:,.0f} MB for {members} devices, and "
            f"finisher.memory = {settings.memory:g} allows less: raise it, or send fewer directions (objective.rank)"
        )
