"""What is true of a handwritten digit: scikit-learn's digits with six attributes each; multilabel."""

from __future__ import annotations

import numpy as np

from coordinator.jobs.data import digits_split
from fleet_sim.datasets.data_set import DataSet

ATTRIBUTES = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "loop": (0, 6, 8, 9),
    "above-four": (5, 6, 7, 8, 9),
    "threefold": (0, 3, 6, 9),
    "square": (0, 1, 4, 9),
}
"""By name, the digits of which an attribute is true."""


def make_digit_attributes(seed: int = 0) -> DataSet:
    """1,797 images of 8x8; domains are the digits themselves. There is no randomness."""
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
