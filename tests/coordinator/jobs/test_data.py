"""The built-in data set."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

from coordinator.jobs.data import digits


def test_digits_are_those_of_scikit_learn() -> None:
    x, y = digits()
    bunch = load_digits()
    assert (x.dtype, y.dtype) == (np.dtype(np.float32), np.dtype(np.int64))
    np.testing.assert_array_equal(x, bunch.images[:, None])
    np.testing.assert_array_equal(y, bunch.target)


def test_reading_them_does_not_load_scikit_learn() -> None:
    code = "import sys, coordinator.jobs.data as data; data.digits(); print({'sklearn', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
