"""Average pooling, edges that are repeated, and their gradients as small constant matrices, one per axis."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnxscript import opset18 as op

from coordinator.compiling.operators import Value, constant, mean, reshape, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def adaptive_avg_pool(x: Value, cells: Sequence[int]) -> Value:
    """Like `aten._adaptive_avg_pool2d` and its like of three axes, also where the sizes do not divide."""
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
    """Like `aten.avg_pool2d` and `aten.avg_pool3d`."""
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
    """Add the gradients of the copies of an edge to that of the edge; `padding` names the last axis first."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    copies = [
        np.eye(length, dtype=np.float32)[np.clip(np.arange(-before, length + after), 0, length - 1)].T
        for length, (before, after) in zip(_map(x), pairs, strict=True)
    ]
    return _apply(copies, grad)


def _map(value: Value) -> list[int]:
    """The sizes after batch and channels."""
    return [size(value, axis) for axis in range(2, len(value.shape))]


def _apply(matrices: Sequence[NDArray[np.float32]], x: Value) -> Value:
    """A matrix along each axis after batch and channels: one, two or three."""
    *outer, columns = matrices
    if outer:
        x = op.MatMul(constant(outer[-1]), x)
    x = op.MatMul(x, constant(columns.T))
    if len(outer) > 1:
        depth, rest = outer[0], (len(outer[1]), len(columns))
        x = reshape(op.MatMul(constant(depth), reshape(x, 0, 0, depth.shape[1], -1)), 0, 0, len(depth), *rest)
    return x


def _adaptive(length: int, cells: int) -> NDArray[np.float32]:
    """The weights with which `length` values make `cells` averages."""
    return np.array([_adaptive_row(length, cells, cell) for cell in range(cells)], np.float32)


def _adaptive_row(length: int, cells: int, cell: int) -> list[float]:
    start, end = cell * length // cells, -(-(cell + 1) * length // cells)
    return [1.0 / (end - start) if start <= at < end else 0.0 for at in range(length)]


def _windows(
    lengths: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
    """Which values each window sums along each axis, and what share of the sum is its average."""
    sums, counts = [], np.ones((), np.float64)
    walks = zip(lengths, *(_for_axes(each, lengths) for each in (kernel, stride or kernel, padding)), strict=True)
    for length, width, step, pad in walks:
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


def _for_axes(values: Sequence[int], lengths: Sequence[int]) -> Sequence[int]:
    return values if len(values) > 1 else [values[0]] * len(lengths)
