"""The example's data: Office-Caltech-10 if it is on this machine, otherwise a stand-in made of digits, by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.jobs.data import digits_split
from fleet_sim.datasets import DataSet, load
from sojourn.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

OFFICE = "office-caltech-10"
DOMAINS = ("as they are", "inverted", "blurred", "coloured")
"""The domains of the stand-in."""
BRIGHTEST = 16.0
"""The largest value of scikit-learn's digits."""
TIMES = 4
"""The factor by which a digit's 8x8 pixels are enlarged in both directions."""


def photographs(folder: Path) -> tuple[Path, str]:
    """A file with samples by domain below `folder`, and its description for people."""
    try:
        found = load(OFFICE)
    except DataError:
        return _stand_in(folder), (
            f"a stand-in made of digits, in four domains ({', '.join(DOMAINS)}): {OFFICE} is not on this machine"
        )
    return _written(folder, found), "Office-Caltech-10: photographs of four domains (Caltech, amazon, dslr, webcam)"


def _written(folder: Path, data: DataSet) -> Path:
    path = folder / "office.npz"
    domains = data.domains if data.domains is not None else np.zeros(len(data.y_train), np.int64)
    np.savez(path, x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test, domains=domains)
    return path


def _stand_in(folder: Path) -> Path:
    path = folder / "digits-by-domain.npz"
    (x, y), (x_test, y_test) = (digits_split(train=train) for train in (True, False))
    domains, other = (np.arange(len(labels)) % len(DOMAINS) for labels in (y, y_test))
    np.savez(path, x_train=_drawn(x, domains), y_train=y, x_test=_drawn(x_test, other), y_test=y_test, domains=domains)
    return path


def _drawn(digits: NDArray[np.float32], domains: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Each digit in colour, as its domain has it: 3 x 32 x 32, 0 to 255."""
    grey = np.kron(digits.reshape(-1, 8, 8) / BRIGHTEST, np.ones((TIMES, TIMES)))
    images = np.repeat(grey[:, None], 3, axis=1)
    images[domains == 1] = 1.0 - images[domains == 1]
    images[domains == 2] = _blurred(images[domains == 2])
    images[domains == 3] *= np.array([1.0, 0.6, 0.1])[:, None, None]
    return (255.0 * images).round().astype(np.uint8)


def _blurred(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over a small square around each pixel."""
    reach = range(-TIMES // 2, TIMES // 2 + 1)
    moved = [np.roll(images, (down, right), axis=(2, 3)) for down in reach for right in reach]
    mean: NDArray[np.float64] = np.mean(moved, axis=0)
    return mean
