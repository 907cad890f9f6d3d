"""Gradients that pass where a maximum stood: max pooling and ReLU."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto
from onnxscript import opset18 as op

from coordinator.compiling.operators import Value, constant, ints, reshape, size

if TYPE_CHECKING:
    from collections.abc import Sequence

# The places of a window are bits of one number, which float32 must hold exactly.
MOST_PLACES = 16


def threshold_backward(grad: Value, x: Value, threshold: float) -> Value:
    """Pass the gradient where `x` is above the threshold: a product, which is faster here than Where."""
    return op.Mul(grad, op.Cast(op.Greater(x, constant(float(threshold))), to=TensorProto.FLOAT))


def max_pool2d_with_indices(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """MaxPool; its indices count over the whole batch, where torch's count within a plane."""
    pooled, indices = op.MaxPool(
        x,
        kernel_shape=_pair(kernel),
        strides=_pair(stride or kernel),
        pads=_pair(padding) * 2,
        dilations=_pair(dilation),
        ceil_mode=int(ceil_mode),
    )
    return pooled, indices


def max_pool2d_with_indices_backward(
    grad: Value,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    """Give each window's gradient to the first place that holds its maximum."""
    window = _pair(kernel)
    tiled = (
        _pair(stride or kernel) == window
        and not any(padding)
        and all(step == 1 for step in dilation)
        and all(size(x, 2 + axis) == size(grad, 2 + axis) * window[axis] for axis in range(2))
        and prod(window) <= MOST_PLACES
    )
    if tiled:
        return _by_bits(grad, x, window)
    return _by_indices(grad, x, indices)


def _by_indices(grad: Value, x: Value, indices: Value) -> Value:
    shape = op.Shape(x)
    zeros = op.ConstantOfShape(op.ReduceProd(shape, keepdims=1))
    # Windows may overlap: where two share a maximum their gradients add up.
    summed = op.ScatterElements(zeros, reshape(indices, -1), reshape(grad, -1), axis=0, reduction="add")
    return op.Reshape(summed, shape)


def _by_bits(grad: Value, x: Value, window: list[int]) -> Value:
    """Without indices, which make onnxruntime's MaxPool ten times slower, for windows that tile the input."""
    width, places = size(grad, 3), prod(window)
    # One row per row of windows; `spread` copies a window's value to all of its places.
    spread = np.tile(np.repeat(np.eye(width, dtype=np.float32), window[1], axis=1), (1, window[0]))
    powers = 2.0 ** np.arange(places)[::-1].reshape(window[0], 1, window[1])
    worth = np.broadcast_to(powers, (window[0], width, window[1])).reshape(1, -1).astype(np.float32)
    pooled, _ = op.MaxPool(x, kernel_shape=window, strides=window)
    copied = op.MatMul(reshape(pooled, -1, width), constant(spread))
    largest = op.Cast(op.Equal(reshape(x, -1, spread.shape[1]), copied), to=TensorProto.FLOAT)
    # Ties: each place is a bit, the first place the highest, and only the highest bit that is set passes the gradient.
    # Divided by its worth, that place's number lies in [1, 2): later places hold more, earlier ones less.
    bits = op.MatMul(op.MatMul(largest, constant((spread * worth).T)), constant(spread / worth))
    first = op.Equal(op.Floor(bits), constant(1.0))
    sent = op.MatMul(reshape(grad, -1, width), constant(spread))
    return op.Reshape(op.Mul(sent, op.Cast(first, to=TensorProto.FLOAT)), op.Shape(x))


def embedding_dense_backward(grad: Value, indices: Value, rows: int, padding_idx: int, by_frequency: bool) -> Value:
    """Add each position's gradient to the row that was looked up."""
    if by_frequency:
        raise NotImplementedError("an embedding with scale_grad_by_freq")
    width = size(grad, -1)
    if padding_idx >= 0:
        kept = op.Cast(op.Not(op.Equal(indices, op.Constant(value_int=padding_idx))), to=TensorProto.FLOAT)
        grad = op.Mul(grad, op.Unsqueeze(kept, ints(-1)))
    zeros = op.ConstantOfShape(ints(rows, width))
    return op.ScatterND(zeros, reshape(indices, -1, 1), reshape(grad, -1, width), reduction="add")


def _pair(values: Sequence[int]) -> list[int]:
    return [values[0], values[-1]]
