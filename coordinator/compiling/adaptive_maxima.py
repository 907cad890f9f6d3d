"""Adaptive max pooling and its gradient: each cell's places are looked up in a table, right for every size."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnxscript import opset18 as op

from coordinator.compiling.operators import Value, constant, ints, reshape, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def adaptive_max_pool(x: Value, cells: Sequence[int]) -> tuple[Value, Value]:
    """The largest value of each cell, and its place within the map."""
    table = _places([size(x, 2 + axis) for axis in range(len(cells))], cells)
    seen = op.Gather(reshape(x, 0, 0, -1), constant(table), axis=2)
    largest = op.ReduceMax(seen, ints(3), keepdims=0)
    rows = constant(np.arange(len(table), dtype=np.int64) * table.shape[1])
    places = op.Gather(constant(table.reshape(-1)), op.Add(op.ArgMax(seen, axis=3, keepdims=0), rows))
    return reshape(largest, 0, 0, *cells), reshape(places, 0, 0, *cells)


def adaptive_max_pool_backward(grad: Value, x: Value, places: Value) -> Value:
    """Give each cell's gradient to its place; cells may overlap, and then gradients add up."""
    zeros = op.ConstantOfShape(op.Shape(reshape(x, 0, 0, -1)))
    summed = op.ScatterElements(zeros, reshape(places, 0, 0, -1), reshape(grad, 0, 0, -1), axis=2, reduction="add")
    return op.Reshape(summed, op.Shape(x))


def _places(lengths: Sequence[int], cells: Sequence[int]) -> NDArray[np.int64]:
    """For each cell the places of its window; smaller windows are filled up with their first place."""
    flat = np.arange(prod(lengths)).reshape(lengths)
    windows = [flat[spans].reshape(-1) for spans in product(*map(_spans, lengths, cells))]
    width = max(map(len, windows))
    return np.array([[*window, *(window[:1].repeat(width - len(window)))] for window in windows], np.int64)


def _spans(length: int, cells: int) -> list[slice]:
    return [slice(cell * length // cells, -(-(cell + 1) * length // cells)) for cell in range(cells)]
