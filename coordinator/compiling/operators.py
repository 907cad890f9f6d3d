"""ONNX operators with plain Python arguments, for the translations."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray
from onnxscript import opset18 as op

# A value of the graph that is being built.
Value = Any


def ints(*values: int) -> Value:
    """Return a constant list of integers: a shape, axes, places."""
    return op.Constant(value_ints=list(values))


def constant(values: NDArray[np.generic] | float) -> Value:
    """Return a constant tensor; a float becomes a float32 scalar."""
    array = np.asarray(values, dtype=np.float32) if isinstance(values, float) else values
    return op.Constant(value=onnx_ir.tensor(np.ascontiguousarray(array)))


def size(value: Value, axis: int) -> int:
    """Return a size that does not depend on the batch."""
    return int(value.shape[axis])


def count(value: Value) -> Value:
    """Return the number of elements of a tensor."""
    return op.Size(value)


def reshape(value: Value, *shape: int) -> Value:
    """Reshape a value; 0 keeps an axis, and -1 infers one."""
    return op.Reshape(value, ints(*shape))


def total(value: Value, *axes: int, keep: bool = False) -> Value:
    """Return the sum over axes."""
    return op.ReduceSum(value, ints(*axes), keepdims=int(keep))


def mean(value: Value, *axes: int) -> Value:
    """Return the mean over axes, which stay with size 1."""
    return op.ReduceMean(value, ints(*axes), keepdims=1)


def cut(value: Value, starts: Sequence[int], lengths: Sequence[int], steps: Sequence[int]) -> Value:
    """Return a block of the axes after batch and channels, with steps."""
    ends = [start + (length - 1) * step + 1 for start, length, step in zip(starts, lengths, steps, strict=True)]
    return op.Slice(value, ints(*starts), ints(*ends), ints(*range(2, 2 + len(starts))), ints(*steps))
