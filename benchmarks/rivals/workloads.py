"""The common workloads: two models, and random data of the right shape. Needs numpy and torch, not Sojourn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import nn

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH, RATE = 10, 0.05
CLASSES = tuple(str(number) for number in range(10))
WARM = 2
"""Rounds that are not counted: processes start in them, graphs are made, caches filled."""


class Cnn(nn.Sequential):
    """The CNN of pfl-research's benchmark, without dropout."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


class Logistic(nn.Sequential):
    """Logistic regression."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 10))


class Workload(NamedTuple):
    """A model and a fleet."""

    shape: tuple[int, ...]
    users: int
    samples: int
    cohort: int
    build: type[nn.Sequential]
    rounds: int
    """How many rounds: enough to take some seconds."""


WORKLOADS = {
    "cnn": Workload((3, 32, 32), 1000, 50, 50, Cnn, 3),
    "logistic": Workload((784,), 1000, 60, 10, Logistic, 40),
}


def data(workload: Workload) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return random pixels, small enough to avoid divergence. User u has the samples from u * workload.samples."""
    draw = np.random.default_rng(0)
    total = workload.users * workload.samples
    return draw.integers(0, 2, (total, *workload.shape), dtype=np.uint8), draw.integers(0, len(CLASSES), total)


def print_rounds(marks: list[float], version: str) -> None:
    """Print the seconds of each counted round; `marks` are the end times of all rounds."""
    seconds = [after - before for before, after in zip(marks[WARM - 1 :], marks[WARM:], strict=False)]
    print(json.dumps({"version": version, "seconds": seconds}), flush=True)
