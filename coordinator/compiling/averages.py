"""Average pooling and its gradient as two small constant matrices, one per axis: right for every window."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnxscript import opset18 as op

from coordinator.compiling.operators import Value, constant, mean, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def adaptive_avg_pool2d(x: Value, cells: Sequence[int]) -> Value:
    """Like `aten._adaptive_avg_pool2d`, also where the sizes do not divide."""
    if all(n == 1 for n in cells):
        return mean(x, 2, 3)
    rows, columns = (_adaptive(size(x, 2 + axis), n) for axis, n in enumerate(cells))
    return _apply(rows, x, columns)


def adaptive_avg_pool2d_backward(grad: Value, x: Value) -> Value:
    """Spread each cell's gradient over its window."""
    if all(size(grad, axis) == 1 for axis in (2, 3)):
        share = constant(1.0 / (size(x, 2) * size(x, 3)))
        return op.Expand(op.Mul(grad, share), op.Shape(x))
    rows, columns = (_adaptive(size(x, axis), size(grad, axis)) for axis in (2, 3))
    return _apply(rows.T, grad, columns.T)


def avg_pool2d(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Value:
    """Like `aten.avg_pool2d`."""
    area = size(x, 2), size(x, 3)
    rows, columns, share = _windows(area, kernel, stride, padding, ceil_mode, count_padding, divisor)
    return op.Mul(_apply(rows, x, columns), constant(share))


def avg_pool2d_backward(
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
    area = size(x, 2), size(x, 3)
    rows, columns, share = _windows(area, kernel, stride, padding, ceil_mode, count_padding, divisor)
    return _apply(rows.T, op.Mul(grad, constant(share)), columns.T)


def _apply(rows: NDArray[np.float32], x: Value, columns: NDArray[np.float32]) -> Value:
    """rows x columns^T for every plane of `x`."""
    return op.MatMul(op.MatMul(constant(rows), x), constant(columns.T))


def _adaptive(length: int, cells: int) -> NDArray[np.float32]:
    """The weights with which `length` values make `cells` averages."""
    return np.array([_adaptive_row(length, cells, cell) for cell in range(cells)], np.float32)


def _adaptive_row(length: int, cells: int, cell: int) -> list[float]:
    start, end = cell * length // cells, -(-(cell + 1) * length // cells)
    return [1.0 / (end - start) if start <= at < end else 0.0 for at in range(length)]


def _windows(
    area: tuple[int, int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Which values each window sums along either axis, and what share of the sum is its average."""
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride else kernel
    rows, high = _window_sums(area[0], kernel[0], stride[0], padding[0], ceil_mode, count_padding)
    columns, wide = _window_sums(area[1], kernel[1], stride[1], padding[1], ceil_mode, count_padding)
    counts = [[1.0 / (divisor or h * w) for w in wide] for h in high]
    return np.array(rows, np.float32), np.array(columns, np.float32), np.array(counts, np.float32)


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


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[-1])
