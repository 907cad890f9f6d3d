"""Data sets included in scikit-learn: diabetes for regression, and digits with six attributes for multilabel."""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np

from coordinator.jobs.data import digits_split
from fleet_sim.datasets.data_set import DataSet, every_fifth
from sojourn.errors import DataError

FEATURES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
SEX = FEATURES.index("sex")


def make_diabetes(seed: int = 0) -> DataSet:
    """442 patients (Efron et al., 2004), standardised features; the domains are the two sexes. Not random."""
    del seed
    # From its file: importing sklearn takes two seconds.
    folder = distribution("scikit-learn").locate_file("sklearn/datasets/data")
    try:
        raw = np.loadtxt(str(folder / "diabetes_data_raw.csv.gz"))
        target = np.loadtxt(str(folder / "diabetes_target.csv.gz"))
    except OSError as error:
        raise DataError(f"scikit-learn's diabetes cannot be read ({error}): install scikit-learn again") from error
    x = ((raw - raw.mean(axis=0)) / raw.std(axis=0)).astype(np.float32)
    y = target.astype(np.float32)[:, None]
    sex = raw[:, SEX].astype(np.int64)
    whole = DataSet("diabetes", x, y, x[:0], y[:0], (), domains=sex, kind="regression", names=("progression",))
    return every_fifth(whole)


ATTRIBUTES = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "loop": (0, 6, 8, 9),
    "above-four": (5, 6, 7, 8, 9),
    "threefold": (0, 3, 6, 9),
    "square": (0, 1, 4, 9),
}
"""The digits that have each attribute, by its name."""


def make_digit_attributes(seed: int = 0) -> DataSet:
    """1,797 images of 8x8; the domains are the digits. There is no randomness."""
    del seed
    table = np.array([[digit in those for those in ATTRIBUTES.values()] for digit in range(10)], np.float32)
    (x, digit), (x_test, digit_test) = digits_split(train=True), digits_split(train=False)
    return DataSet(
        "digit-attributes",
        x,
        table[digit],
        x_test,
        table[digit_test],
        tuple(ATTRIBUTES),
        domains=digit,
        kind="multilabel",
    )
