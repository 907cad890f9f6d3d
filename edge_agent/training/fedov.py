"""The visit of FedOV: a model with a class for unknown inputs trains on samples, outliers and mixtures of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_agent.training.descent import Prepared, Progress, descended, metrics
from edge_agent.training.fedelmy import shuffled
from edge_agent.training.messages import Train, Trained
from edge_agent.training.objectives import Plain
from edge_agent.training.visit_vectors import Unsupported, model_of, save_model
from sojourn.model.graphs import Graphs, Streams
from sojourn.parts import Outlier, Outliers
from sojourn.protocol.spec import Kit, OutlierGraphs
from sojourn.randomness import generator
from sojourn.store.blobs import BlobStore

Image = NDArray[np.float32]
Vector = NDArray[np.float32]

# FedOV's outliers: images that a model should classify as unknown, made from each sample with numpy.
#
# Yiqun Diao, Qinbin Li and Bingsheng He: "Towards Addressing Label Skews in One-Shot Federated Learning", ICLR 2023.
# crop: a tenth to a third of the image, scaled to its size. blur: almost the mean of a small window. erase: a third to
# a half of the image is 0. cut: one half copied over another with little overlap, or halves exchanged. rot: two squares
# rotated.

CROP, ERASE = (0.10, 0.33), (0.33, 0.50)
"""Shares of an image's area."""
CROP_RATIO, ERASE_RATIO = (3 / 4, 4 / 3), (0.3, 3.3)
"""Width over height."""
LONG, SHORT = (3, 5, 7, 9), (1, 3, 5)
"""Sides of a blur's window."""
SIGMA = (10.0, 100.0)


def outliers(
    x: NDArray[np.generic], kinds: Sequence[Outlier], zero: Sequence[float], draw: np.random.Generator
) -> NDArray[np.float32]:
    """Return one outlier for each sample of a batch; `zero` is the pixel value that the model normalises to 0."""
    nothing = np.array(zero, np.float32).reshape(-1, 1, 1)
    picked = draw.integers(0, len(kinds), len(x))
    made = [_MADE[kinds[kind]](image, nothing, draw) for image, kind in zip(x.astype(np.float32), picked, strict=True)]
    return np.stack(made).astype(np.float32)


def crop(image: Image, _: Image, draw: np.random.Generator) -> Image:
    """Return a small part of the image, scaled to the image's size."""
    top, left, height, width = _part(image.shape, CROP, CROP_RATIO, draw)
    part = image[:, top : top + height, left : left + width]
    return resized(part, image.shape[1], image.shape[2])


def resized(image: Image, height: int, width: int) -> Image:
    """Resize bilinearly, with pixel centres as positions and the border repeated."""
    rows, columns = _places(image.shape[1], height), _places(image.shape[2], width)
    along = image[:, rows[0]] * (1 - rows[2])[None, :, None] + image[:, rows[1]] * rows[2][None, :, None]
    found = along[:, :, columns[0]] * (1 - columns[2]) + along[:, :, columns[1]] * columns[2]
    return found.astype(np.float32)


def blur(image: Image, _: Image, draw: np.random.Generator) -> Image:
    """Blur with a Gaussian over a vertical or horizontal window, with mirrored borders."""
    sides = [int(draw.choice(LONG)), int(draw.choice(SHORT))]
    if draw.random() < 0.5:
        sides.reverse()
    sigma = draw.uniform(*SIGMA)
    found = image.astype(np.float64)
    for axis, side in enumerate(sides, 1):
        found = _blurred(found, axis, min(side, _odd(image.shape[axis])), sigma)
    return found.astype(np.float32)


def erase(image: Image, zero: Image, draw: np.random.Generator) -> Image:
    """Set a large part of the image to 0."""
    made = image.copy()
    top, left, height, width = _part(image.shape, ERASE, ERASE_RATIO, draw)
    made[:, top : top + height, left : left + width] = zero
    return made


def cut(image: Image, _: Image, draw: np.random.Generator) -> Image:
    """Copy half of the columns over others, or exchange the two sides; or the same with rows."""
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
    """Rotate the two squares in a band of rows by 90, 180 or 270 degrees."""
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
    """Draw top, left, height and width of a part with a share of the area."""
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
    """Draw two offsets below half of the side, which differ by at least half of that."""
    pairs = [(p, q) for p in range(half) for q in range(half) if abs(p - q) >= half / 2]
    return pairs[int(draw.integers(0, len(pairs)))] if pairs else (0, 0)


def _places(size: int, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return, for each new pixel, its two old neighbours and the weight of the second."""
    at = ((np.arange(wanted) + 0.5) * size / wanted - 0.5).clip(0, size - 1)
    low = np.floor(at).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), at - low


def _odd(size: int) -> int:
    """Return the largest odd window for a side of this size."""
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


def train_with_outliers(
    work: Train, settings: Outliers, blobs: BlobStore, prepared: Prepared, progress: Progress
) -> Trained:
    """Train with outliers, or with the plain loss if the objective has no further terms."""
    visit, kit = work.visit, prepared.kit
    if kit.outliers is None:
        raise Unsupported("the kit has no graphs for outliers")
    received = model_of(visit, blobs, kit.model)
    start = shuffled(received, kit.model, visit.seed) if settings.start == "own" else received
    if not settings.plain:
        graphs = OutlierSteps(kit, kit.outliers, settings, visit.seed, prepared.graphs)
        prepared = replace(prepared, graphs=graphs)
    end, passed = descended(start, Plain(), prepared, visit.task.training, visit.seed, progress)
    sent = {"model": save_model(blobs, received, end, visit.task, kit.model)}
    return Trained(sent, len(prepared.samples), metrics(passed), None, {})


class OutlierSteps(Graphs):
    """A kit's graphs whose training steps add outliers, with a separate random stream for each step."""

    def __init__(self, kit: Kit, own: OutlierGraphs, settings: Outliers, seed: int, graphs: Graphs) -> None:
        """`graphs` are the kit's own, whose sessions are shared."""
        super().__init__(kit, graphs.threads, graphs)
        self._own, self._settings, self._seed, self._step = own, settings, seed, 0
        self._unknown = len(kit.classes)
        self._reach = np.float32(settings.reach) * np.array(own.scale, np.float32).reshape(-1, 1, 1)

    def loss_gradient_and_state(
        self,
        vector: Vector,
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[Vector] = (),
        reference_models: Sequence[Vector] = (),
        streams: Streams | None = None,
    ) -> tuple[float, Vector, Vector]:
        """Return the loss, the gradient and the state of a batch with all further terms."""
        del reference_models, streams
        draw = generator(self._seed, "outliers", self._step)
        self._step += 1
        made = outliers(x, self._settings.kinds, self._own.zero, draw)
        if not self._own.train:
            return self._in_one_batch(vector, x, y, noise, made, draw)
        feeds: dict[str, NDArray[np.generic]] = {f"noise_{at}": values for at, values in enumerate(noise)}
        feeds |= {"x": x, "y": y, **self._further(vector, x, y, made, draw)}
        return *self.open_loss_and_gradient(vector, feeds), np.zeros(0, np.float32)

    def _further(
        self, vector: Vector, x: NDArray[np.generic], y: NDArray[np.generic], made: Vector, draw: np.random.Generator
    ) -> dict[str, NDArray[np.generic]]:
        """Return the further inputs of the graph, for its terms."""
        terms, found = self._own.terms, dict[str, "NDArray[np.generic]"]()
        order, share = draw.permutation(len(x)), draw.random()  # always drawn, so that terms do not affect each other
        if "outlier" in terms:
            found["outlier"] = made
        if "mix" in terms:
            found |= {"other": x[order], "unlike": (y != y[order]).astype(np.float32)}
            found["share"] = np.full(len(x), share, np.float32)
        if "adversarial" in terms:
            found["adversarial"] = self._adversarial(vector, made)
        return found

    def _adversarial(self, vector: Vector, made: Vector) -> Vector:
        """Return outliers that are perturbed to look less unknown to the model."""
        changed = made.copy()
        for _ in range(self._settings.steps):
            changed += self._reach * np.sign(self.slope(vector, changed))
        return changed

    def _in_one_batch(
        self,
        vector: Vector,
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[Vector],
        made: Vector,
        draw: np.random.Generator,
    ) -> tuple[float, Vector, Vector]:
        """Compute samples and outliers as one batch: the sum of both means is twice the overall mean."""
        labels = np.concatenate([y.astype(np.int64), np.full(len(y), self._unknown)])
        drawn = [np.concatenate([each, draw.random(each.shape, dtype=np.float32)]) for each in noise]
        both = np.concatenate([x.astype(np.float32), made])
        loss, gradient, state = self.loss_with_unknown(vector, both, labels, drawn)
        return 2 * loss, 2 * gradient, state
