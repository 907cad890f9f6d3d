"""Windows yield the same rows as a full copy, and never cross a gap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sojourn.data.series import Windows, window_starts

STEPS = np.arange(20.0, dtype=np.float32).reshape(10, 2)
ALL = np.stack([STEPS[at : at + 3] for at in (0, 1, 5, 7)])
CUT = Windows(STEPS, np.array([0, 1, 5, 7]), 3, (3, 2), np.float32)


@pytest.mark.parametrize(
    "index", [slice(None), slice(1, 3), np.array([3, 0, 0]), np.array([True, False, False, True]), 2, slice(0, 0)]
)
def test_rows_equal_those_of_a_copied_array(index: Any) -> None:
    assert CUT[index].tolist() == ALL[index].tolist()
    assert CUT[index].shape == ALL[index].shape


def test_windows_behave_like_an_array() -> None:
    assert (len(CUT), CUT.shape, CUT.ndim, CUT.dtype) == (4, ALL.shape, 3, np.dtype(np.float32))
    assert np.asarray(CUT).tolist() == ALL.tolist()
    assert np.ascontiguousarray(CUT[np.array([1])], dtype="int64").dtype == np.int64
    assert CUT.astype(np.float64).dtype == np.float64


def test_rows_are_converted_to_shape_and_type() -> None:
    flat = Windows(STEPS, np.array([0, 5]), 3, (6,), np.int64)
    assert flat[:].tolist() == ALL[[0, 2]].reshape(2, 6).tolist()
    assert flat[:].dtype == np.int64


@pytest.mark.parametrize(
    ("pieces", "length", "stride", "starts"),
    [
        ([[0, 10]], 3, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        ([[0, 10]], 3, 3, [0, 3, 6]),
        ([[0, 4], [4, 6], [7, 12]], 3, 1, [0, 1, 7, 8, 9]),
        ([[2, 7], [7, 13]], 2, 2, [2, 4, 7, 9, 11]),
        ([[0, 3], [5, 8]], 3, 100, [0, 5]),
        ([[0, 2]], 3, 1, []),
        (np.empty((0, 2)), 3, 1, []),
    ],
)
def test_window_starts_follow_length_and_stride(pieces: Any, length: int, stride: int, starts: list[int]) -> None:
    assert window_starts(np.array(pieces, np.int64), length, stride).tolist() == starts
