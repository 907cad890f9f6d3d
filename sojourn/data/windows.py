"""Windows of a series: samples that overlap, kept once and copied only for the batch that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class Windows:
    """Rows that are cut out of a series when they are asked for: `length` steps from each of `starts` on.

    It is asked like an array whose first axis are the samples, and what comes back is an array. Where a whole array is
    wanted, numpy makes one (`np.asarray`), which takes `length` times the memory of the series.
    """

    def __init__(
        self, steps: NDArray[Any], starts: NDArray[np.int64], length: int, shape: tuple[int, ...], dtype: DTypeLike
    ) -> None:
        """Cut from `steps`, whose first axis is time; each row gets this shape and type."""
        self.steps, self._starts, self._length = steps, starts, length
        self.shape = (len(starts), *shape)
        self.ndim = len(self.shape)
        self.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self._starts)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """The windows with these numbers: one, a slice, or an array of numbers or of truths."""
        starts = np.asarray(self._starts[index])
        rows = self.steps[starts[..., np.newaxis] + np.arange(self._length)]
        return rows.reshape(*starts.shape, *self.shape[1:]).astype(self.dtype, copy=False)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """All windows at once."""
        del copy  # it is always one
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def astype(self, dtype: DTypeLike) -> NDArray[Any]:
        """All windows at once, in this type."""
        return self[:].astype(dtype, copy=False)


def windows(
    steps: NDArray[Any], starts: NDArray[np.int64], length: int, shape: tuple[int, ...], dtype: DTypeLike
) -> NDArray[Any]:
    """Windows where an array of samples is expected: whoever takes rows of it by number cannot tell the difference."""
    return cast("NDArray[Any]", Windows(steps, starts, length, shape, dtype))


def starts_in(pieces: NDArray[np.int64], length: int, stride: int) -> NDArray[np.int64]:
    """Where windows of this length begin: one each `stride` within every piece, none across two of them.

    pieces: where each unbroken stretch begins and where it ends, a row for each.
    """
    counts = np.maximum(0, (pieces[:, 1] - pieces[:, 0] - length) // stride + 1)
    first = np.cumsum(counts) - counts  # the number of each piece's first window
    return np.asarray(np.repeat(pieces[:, 0] - first * stride, counts) + stride * np.arange(counts.sum()), np.int64)
