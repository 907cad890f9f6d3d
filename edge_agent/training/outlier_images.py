"""FedOV's outliers: images that a model should not know, made of each sample with numpy alone.

Yiqun Diao, Qinbin Li and Bingsheng He: "Towards Addressing Label Skews in One-Shot Federated Learning", ICLR 2023.
crop: a tenth to a third of the image, as large as the whole. blur: nearly the mean of a small window. erase: a third to
a half of it is 0. cut: one half over another that overlaps it little, or halves exchanged. rot: two squares turned.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from sojourn.parts import Outlier

    Image = NDArray[np.float32]

CROP, ERASE = (0.10, 0.33), (0.33, 0.50)
"""Shares of an image's area."""
CROP_RATIO, ERASE_RATIO = (3 / 4, 4 / 3), (0.3, 3.3)
"""Width over height."""
LONG, SHORT = (3, 5, 7, 9), (1, 3, 5)
"""Sides of the window of a blur."""
SIGMA = (10.0, 100.0)


def outliers(
    x: NDArray[np.generic], kinds: Sequence[Outlier], zero: Sequence[float], draw: np.random.Generator
) -> NDArray[np.float32]:
    """One of each sample of a batch; `zero` is what the model sees as 0, for each channel."""
    nothing = np.array(zero, np.float32).reshape(-1, 1, 1)
    picked = draw.integers(0, len(kinds), len(x))
    made = [_MADE[kinds[kind]](image, nothing, draw) for image, kind in zip(x.astype(np.float32), picked, strict=True)]
    return np.stack(made).astype(np.float32)


def crop(image: Image, _: Image, draw: np.random.Generator) -> Image:
    """A small part of the image, as large as the whole."""
    top, left, height, width = _part(image.shape, CROP, CROP_RATIO, draw)
    part = image[:, top : top + height, left : left + width]
    return resized(part, image.shape[1], image.shape[2])


def resized(image: Image, height: int, width: int) -> Image:
    """Bilinear, with the middles of pixels as their places; the rim goes on as it is."""
    rows, columns = _places(image.shape[1], height), _places(image.shape[2], width)
    along = image[:, rows[0]] * (1 - rows[2])[None, :, None] + image[:, rows[1]] * rows[2][None, :, None]
    found = along[:, :, columns[0]] * (1 - columns[2]) + along[:, :, columns[1]] * columns[2]
    return found.astype(np.float32)


def blur(image: Image, _: Image, draw: np.random.Generator) -> Image:
    """A Gaussian over a long window, standing or lying; what lies beyond the rim is mirrored."""
    sides = [int(draw.choice(LONG)), int(draw.choice(SHORT))]
    if draw.random() < 0.5:
        sides.reverse()
    sigma = draw.uniform(*SIGMA)
    found = image.astype(np.float64)
    for axis, side in enumerate(sides, 1):
        found = _blurred(found, axis, min(side, _odd(image.shape[axis])), sigma)
    return found.astype(np.float32)


def erase(image: Image, zero: Image, draw: np.random.Generator) -> Image:
    """A large part of the image is 0."""
    made = image.copy()
    top, left, height, width = _part(image.shape, ERASE, ERASE_RATIO, draw)
    made[:, top : top + height, left : left + width] = zero
    return made


def cut(image: Image, _: Image, draw: np.random.Generator) -> Image:
    """Columns over columns, the two sides exchanged, or the same with rows."""
    axis = 2 if draw.random() < 0.5 else 1
    made, half = image.copy(), image.shape[axis] // 2
    if half == 0:
        return made
    along, source = np.moveaxis(made, axis, 0), np.moveaxis(image, axis, 0)
    if draw.random() < 1 / 3:
        end = len(source) - half
        along[:half], along[end:] = source[end:].copy(), source[:half].copy()
        return made
    p, q = _apart(half, draw)
    along[p : p + half] = source[q : q + half]
    return made


def rot(image: Image, _: Image, draw: np.random.Generator) -> Image:
    """In a band of rows both squares are turned by 90, 180 or 270 degrees."""
    made, half = image.copy(), min(image.shape[1:]) // 2
    if half == 0:
        return made
    p = int(draw.integers(0, half)) if image.shape[1] >= 2 * half else 0
    for left in (0, half):
        square = (slice(None), slice(p, p + half), slice(left, left + half))
        made[square] = np.rot90(image[square], int(draw.integers(1, 4)), (1, 2))
    return made


_MADE: dict[str, Callable[[Any, Any, np.random.Generator], Any]] = {
    "crop": crop,
    "blur": blur,
    "erase": erase,
    "cut": cut,
    "rot": rot,
}


def _part(
    shape: Sequence[int], area: tuple[float, float], ratio: tuple[float, float], draw: np.random.Generator
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a part with a share of the area."""
    size = draw.uniform(*area) * shape[1] * shape[2]
    wide = exp(draw.uniform(log(ratio[0]), log(ratio[1])))
    height = min(max(1, round(sqrt(size / wide))), shape[1])
    width = min(max(1, round(sqrt(size * wide))), shape[2])
    return (
        int(draw.integers(0, shape[1] - height + 1)),
        int(draw.integers(0, shape[2] - width + 1)),
        height,
        width,
    )


def _apart(half: int, draw: np.random.Generator) -> tuple[int, int]:
    """Two offsets below half of the side, at least half of that apart."""
    pairs = [(p, q) for p in range(half) for q in range(half) if abs(p - q) >= half / 2]
    return pairs[int(draw.integers(0, len(pairs)))] if pairs else (0, 0)


def _places(size: int, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """For each new pixel the two old ones that it lies between, and how near it is to the second."""
    at = ((np.arange(wanted) + 0.5) * size / wanted - 0.5).clip(0, size - 1)
    low = np.floor(at).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), at - low


def _odd(size: int) -> int:
    """The largest window that a mirrored side has room for."""
    return size if size % 2 else size - 1


def _blurred(image: NDArray[np.float64], axis: int, side: int, sigma: float) -> NDArray[np.float64]:
    if side <= 1:
        return image
    reach = side // 2
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    framed = np.pad(image, [(reach, reach) if at == axis else (0, 0) for at in range(3)], mode="reflect")
    pieces = (weight * framed.take(range(at, at + image.shape[axis]), axis=axis) for at, weight in enumerate(weights))
    found: NDArray[np.float64] = sum(pieces, np.zeros_like(image))
    return found
