"""Max, average and adaptive pooling, and the gradients of ReLU, padding and embeddings, in ONNX operators."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto
from onnxscript import opset18 as op

from coordinator.compiling.operators import Value, constant, ints, mean, reshape, size

# The places of a window are bits of one number, which float32 must represent exactly.
MAX_PLACES = 16
IMAGE_AXES = 2


def threshold_backward(grad: Value, x: Value, threshold: float) -> Value:
    """Pass the gradient where `x` is above the threshold, with a product, which is faster here than Where."""
    return op.Mul(grad, op.Cast(op.Greater(x, constant(float(threshold))), to=TensorProto.FLOAT))


def max_pool_with_indices(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """Run MaxPool with two or three axes; ONNX's indices count over the batch, torch's within a plane."""
    axes = len(x.shape) - 2
    pooled, indices = op.MaxPool(
        x,
        kernel_shape=_for_axes(kernel, axes),
        strides=_for_axes(stride or kernel, axes),
        pads=_for_axes(padding, axes) * 2,
        dilations=_for_axes(dilation, axes),
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
    """Give each window's gradient to the first place with its maximum."""
    window = _for_axes(kernel, len(x.shape) - 2)
    tiled = (
        len(window) == IMAGE_AXES
        and _for_axes(stride or kernel, len(window)) == window
        and not any(padding)
        and all(step == 1 for step in dilation)
        and all(size(x, 2 + axis) == size(grad, 2 + axis) * window[axis] for axis in range(2))
        and prod(window) <= MAX_PLACES
    )
    if tiled:
        # The same call as in prediction, so that it is computed once.
        pooled, _ = max_pool_with_indices(x, kernel, stride, padding, dilation, ceil_mode)
        return _by_bits(grad, x, pooled, window)
    return _by_indices(grad, x, indices)


def _by_indices(grad: Value, x: Value, indices: Value) -> Value:
    shape = op.Shape(x)
    zeros = op.ConstantOfShape(op.ReduceProd(shape, keepdims=1))
    # Windows may overlap: gradients of a shared maximum add up.
    summed = op.ScatterElements(zeros, reshape(indices, -1), reshape(grad, -1), axis=0, reduction="add")
    return op.Reshape(summed, shape)


def _by_bits(grad: Value, x: Value, pooled: Value, window: list[int]) -> Value:
    """For windows that tile the input, avoid indices, which make onnxruntime's MaxPool ten times slower."""
    width, places = size(grad, 3), prod(window)
    # One row per row of windows; `spread` copies a window's value to all of its places.
    spread = np.tile(np.repeat(np.eye(width, dtype=np.float32), window[1], axis=1), (1, window[0]))
    powers = 2.0 ** np.arange(places)[::-1].reshape(window[0], 1, window[1])
    worth = np.broadcast_to(powers, (window[0], width, window[1])).reshape(1, -1).astype(np.float32)
    copied = op.MatMul(reshape(pooled, -1, width), constant(spread))
    largest = op.Equal(reshape(x, -1, spread.shape[1]), copied)
    # For ties each place is a bit, the first place the highest, and only the highest set bit passes the gradient. The
    # number divided by that place's value is below 2; at later places it is larger.
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


def _for_axes(values: Sequence[int], axes: int) -> list[int]:
    """Return one number for each axis after batch and channels; a single number is used for all."""
    return list(values) if len(values) > 1 else [values[0]] * axes


def adaptive_max_pool(x: Value, cells: Sequence[int]) -> tuple[Value, Value]:
    """Return the largest value of each cell, and its place in the map."""
    table = _places([size(x, 2 + axis) for axis in range(len(cells))], cells)
    seen = op.Gather(reshape(x, 0, 0, -1), constant(table), axis=2)
    largest = op.ReduceMax(seen, ints(3), keepdims=0)
    rows = constant(np.arange(len(table), dtype=np.int64) * table.shape[1])
    places = op.Gather(constant(table.reshape(-1)), op.Add(op.ArgMax(seen, axis=3, keepdims=0), rows))
    return reshape(largest, 0, 0, *cells), reshape(places, 0, 0, *cells)


def adaptive_max_pool_backward(grad: Value, x: Value, places: Value) -> Value:
    """Give each cell's gradient to its place; gradients of overlapping cells add up."""
    zeros = op.ConstantOfShape(op.Shape(reshape(x, 0, 0, -1)))
    summed = op.ScatterElements(zeros, reshape(places, 0, 0, -1), reshape(grad, 0, 0, -1), axis=2, reduction="add")
    return op.Reshape(summed, op.Shape(x))


def _places(lengths: Sequence[int], cells: Sequence[int]) -> NDArray[np.int64]:
    """Return the places of each cell's window; smaller windows are padded with their first place."""
    flat = np.arange(prod(lengths)).reshape(lengths)
    windows = [flat[spans].reshape(-1) for spans in product(*map(_spans, lengths, cells))]
    width = max(map(len, windows))
    return np.array([[*window, *(window[:1].repeat(width - len(window)))] for window in windows], np.int64)


def _spans(length: int, cells: int) -> list[slice]:
    return [slice(cell * length // cells, -(-(cell + 1) * length // cells)) for cell in range(cells)]


def adaptive_avg_pool(x: Value, cells: Sequence[int]) -> Value:
    """Translate `aten._adaptive_avg_pool2d` and its variant with three axes, for any sizes."""
    if all(n == 1 for n in cells):
        return mean(x, *range(2, 2 + len(cells)))
    return _apply([_adaptive(length, n) for length, n in zip(_map(x), cells, strict=True)], x)


def adaptive_avg_pool_backward(grad: Value, x: Value) -> Value:
    """Spread each cell's gradient over its window."""
    if all(n == 1 for n in _map(grad)):
        share = constant(1.0 / prod(_map(x)))
        return op.Expand(op.Mul(grad, share), op.Shape(x))
    return _apply([_adaptive(length, n).T for length, n in zip(_map(x), _map(grad), strict=True)], grad)


def avg_pool(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Value:
    """Translate `aten.avg_pool2d` and `aten.avg_pool3d`."""
    sums, share = _windows(_map(x), kernel, stride, padding, ceil_mode, count_padding, divisor)
    return op.Mul(_apply(sums, x), constant(share))


def avg_pool_backward(
    grad: Value,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None = None,
) -> Value:
    """Spread each window's gradient over its cells."""
    sums, share = _windows(_map(x), kernel, stride, padding, ceil_mode, count_padding, divisor)
    return _apply([each.T for each in sums], op.Mul(grad, constant(share)))


def replication_pad_backward(grad: Value, x: Value, padding: Sequence[int]) -> Value:
    """Add the gradients of the copies of an edge to the edge's; `padding` starts with the last axis."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    copies = [
        np.eye(length, dtype=np.float32)[np.clip(np.arange(-before, length + after), 0, length - 1)].T
        for length, (before, after) in zip(_map(x), pairs, strict=True)
    ]
    return _apply(copies, grad)


def _map(value: Value) -> list[int]:
    """Return the sizes after batch and channels."""
    return [size(value, axis) for axis in range(2, len(value.shape))]


def _apply(matrices: Sequence[NDArray[np.float32]], x: Value) -> Value:
    """Apply a matrix along each axis after batch and channels: one, two or three."""
    *outer, columns = matrices
    if outer:
        x = op.MatMul(constant(outer[-1]), x)
    x = op.MatMul(x, constant(columns.T))
    if len(outer) > 1:
        depth, rest = outer[0], (len(outer[1]), len(columns))
        x = reshape(op.MatMul(constant(depth), reshape(x, 0, 0, depth.shape[1], -1)), 0, 0, len(depth), *rest)
    return x


def _adaptive(length: int, cells: int) -> NDArray[np.float32]:
    """Return the weights that average `length` values into `cells` cells."""
    weights = np.zeros((cells, length), np.float32)
    for row, span in zip(weights, _spans(length, cells), strict=True):
        row[span] = 1.0 / (span.stop - span.start)
    return weights


def _windows(
    lengths: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
    """Return the values that each window sums along each axis, and the factor from the sum to its average."""
    sums, counts = [], np.ones((), np.float64)
    walks = (_for_axes(each, len(lengths)) for each in (kernel, stride or kernel, padding))
    for length, width, step, pad in zip(lengths, *walks, strict=True):
        inside, along = _window_sums(length, width, step, pad, ceil_mode, count_padding)
        sums.append(np.array(inside, np.float32))
        counts = counts[..., None] * np.array(along, np.float64)
    return sums, (1.0 / (divisor or counts) * np.ones_like(counts)).astype(np.float32)


def _window_sums(
    length: int, kernel: int, stride: int, padding: int, ceil_mode: bool, count_padding: bool
) -> tuple[list[list[float]], list[int]]:
    room = length + 2 * padding - kernel
    cells = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (cells - 1) * stride >= length + padding:
        cells -= 1  # torch drops a last window that would start in the padding
    rows, counts = [], []
    for cell in range(cells):
        start = cell * stride - padding
        end = min(start + kernel, length + padding)
        inside = [1.0 if start <= at < end else 0.0 for at in range(length)]
        rows.append(inside)
        counts.append(end - start if count_padding else int(sum(inside)))
    return rows, counts
