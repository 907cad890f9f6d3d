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
IMAGE_AXES = 2


def threshold_backward(grad: Value, x: Value, threshold: float) -> Value:
    """Pass the gradient where `x` is above the threshold: a product, which is faster here than Where."""
    return op.Mul(grad, op.Cast(op.Greater(x, constant(float(threshold))), to=TensorProto.FLOAT))


def max_pool_with_indices(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """MaxPool of two or three axes; its indices count over the whole batch, where torch's count within a plane."""
    pooled, indices = op.MaxPool(
        x,
        kernel_shape=_for_axes(kernel, x),
        strides=_for_axes(stride or kernel, x),
        pads=_for_axes(padding, x) * 2,
        dilations=_for_axes(dilation, x),
        ceil_mode=int(ceil_mode),
    )
    return pooled, indices


def max_pool_with_indices_backward(
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
    window = _for_axes(kernel, x)
    tiled = (
        len(window) == IMAGE_AXES
        and _for_axes(stride or kernel, x) == window
        and not any(padding)
        and all(step == 1 for step in dilation)
        and all(size(x, 2 + axis) == size(grad, 2 + axis) * window[axis] for axis in range(2))
        and prod(window) <= MOST_PLACES
    )
    if tiled:
        # As the prediction asks for it, so that it is worked out once.
        pooled, _ = max_pool_with_indices(x, kernel, stride, padding, dilation, ceil_mode)
        return _by_bits(grad, x, pooled, window)
    return _by_indices(grad, x, indices)


def _by_indices(grad: Value, x: Value, indices: Value) -> Value:
    shape = op.Shape(x)
    zeros = op.ConstantOfShape(op.ReduceProd(shape, keepdims=1))
    # Windows may overlap: where two share a maximum their gradients add up.
    summed = op.ScatterElements(zeros, reshape(indices, -1), reshape(grad, -1), axis=0, reduction="add")
    return op.Reshape(summed, shape)


def _by_bits(grad: Value, x: Value, pooled: Value, window: list[int]) -> Value:
    """Without indices, which make onnxruntime's MaxPool ten times slower, for windows that tile the input."""
    width, places = size(grad, 3), prod(window)
    # One row per row of windows; `spread` copies a window's value to all of its places.
    spread = np.tile(np.repeat(np.eye(width, dtype=np.float32), window[1], axis=1), (1, window[0]))
    powers = 2.0 ** np.arange(places)[::-1].reshape(window[0], 1, window[1])
    worth = np.broadcast_to(powers, (window[0], width, window[1])).reshape(1, -1).astype(np.float32)
    copied = op.MatMul(reshape(pooled, -1, width), constant(spread))
    largest = op.Equal(reshape(x, -1, spread.shape[1]), copied)
    # Ties: each place is a bit, the first place the highest, and only the highest bit that is set passes the gradient.
    # Divided by its worth, that place's number is below 2: at later places it is more.
    bits = op.MatMul(op.Cast(largest, to=TensorProto.FLOAT), constant((spread * worth).T))
    first = op.And(largest, op.Less(op.MatMul(bits, constant(spread / worth)), constant(2.0)))
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


def _for_axes(values: Sequence[int], x: Value) -> list[int]:
    """One number for each axis after batch and channels, where one alone stands for all."""
    return list(values) if len(values) > 1 else [values[0]] * (len(x.shape) - 2)
