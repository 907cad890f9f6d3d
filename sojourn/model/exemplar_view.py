"""Models' losses and gradients on the coordinator's exemplars, cached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidBlob
from sojourn.model.exemplars import Exemplars
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import drop_oldest
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref
from sojourn.randomness import noise
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    from sojourn.model.graphs import Graphs

    Vector = NDArray[np.float32]

MAX_VIEWS = 2
"""Graphs and exemplars of at most this many kits are cached."""
MAX_EXEMPLARS = 128
"""At most this many exemplars are used, evenly spaced."""
BATCH = 64
MAX_LOSSES, MAX_GRADIENT_BYTES = 256, 16 << 20
"""The maximum number of cached losses, and the maximum bytes of cached gradients."""
TRAINED = 0.1
"""Losses below this share of a blind guess's loss count as this share, because factors of tiny losses mean nothing."""
TRAINED_OF_VALUES = 0.5
"""The same for tasks with values, where the loss grows with the squared error: an honest device that knows one range of
values, or one machine, can multiply the loss on the others."""
VALUES = frozenset({"regression", "forecast", "reconstruction"})
"""The kinds of tasks that predict values."""
ADVANCED = 0.5
"""Above this share of a blind guess's loss, updates of devices differ too much to compare their losses."""
GUESSING = 0.9
"""From this share of a blind guess's loss on, the model has hardly learned to separate classes."""
LOST = 2.0
"""Above this multiple of a blind guess's loss, a model predicts at random, so that a jump of its loss means nothing."""


class ExemplarView:
    """The exemplars with one kit's graphs; results are cached by the digests of models."""

    def __init__(self, kit: Kit, graphs: Graphs, exemplars: Exemplars) -> None:
        self._graphs, self._noise, self._trainable_size = graphs, kit.noise, kit.model.trainable_size
        x, y = exemplars.packed()
        rows = (
            np.linspace(0, len(y) - 1, MAX_EXEMPLARS).astype(np.int64) if len(y) > MAX_EXEMPLARS else np.arange(len(y))
        )
        if not len(y) or x.shape[1:] != kit.input.shape:
            raise InvalidBlob(f"{len(y)} exemplars of shape {x.shape[1:]} do not fit a model of {kit.input.shape}")
        self._x, self._y = graphs.features(exemplars.unpacked(x[rows])), exemplars.expected()[rows]
        blind, trained = kit.learns.blind, TRAINED_OF_VALUES if kit.learns.kind in VALUES else TRAINED
        self.trained, self.advanced, self.lost = trained * blind, ADVANCED * blind, LOST * blind
        """The losses below which a model counts as trained and as well advanced, and above which it counts as
        random."""
        self.guessing = GUESSING * blind
        """The loss above which a model is hardly better than a guess."""
        self._classes = np.unique(self._y) if kit.learns.kind == "classification" else np.empty(0, np.int64)
        self.shows_classes = len(self._classes) > 1
        """Whether the task is a classification and the exemplars have at least two classes."""
        self._losses: dict[bytes, float] = {}
        self._gradients: dict[bytes, Vector] = {}
        self._lock = threading.Lock()

    def loss(self, vector: Vector, digest: bytes) -> float:
        """Return the mean loss of a model."""
        with self._lock:
            known = self._losses.pop(digest, None)
            self._losses[digest] = found = self._mean_loss(vector) if known is None else known
            drop_oldest(self._losses, MAX_LOSSES)
            return found

    def gradient(self, vector: Vector, digest: bytes) -> Vector:
        """Return the gradient of that loss, always with the same dropout noise."""
        with self._lock:
            known = self._gradients.pop(digest, None)
            self._gradients[digest] = found = self._mean_gradient(vector) if known is None else known
            drop_oldest(self._gradients, max(1, MAX_GRADIENT_BYTES // max(1, found.nbytes)))
            return found

    def beliefs(self, vector: Vector) -> NDArray[np.float64]:
        """Return the mean predicted probability of each class (column) over the exemplars of each class (row)."""
        with np.errstate(all="ignore"):
            outputs = np.concatenate([self._graphs.outputs(vector, x) for x, _, _ in self._batches()])
            likely = np.exp(outputs - outputs.max(axis=1, keepdims=True), dtype=np.float64)
            likely /= likely.sum(axis=1, keepdims=True)
        means = np.array([likely[self._y == each].mean(axis=0) for each in self._classes])
        return means[:, self._classes]

    def _mean_loss(self, vector: Vector) -> float:
        with np.errstate(all="ignore"):
            losses = [len(y) * self._graphs.loss(vector, x, y) for x, y, _ in self._batches()]
            return sum(losses) / len(self._y)

    def _mean_gradient(self, vector: Vector) -> Vector:
        total = np.zeros(self._trainable_size)
        with np.errstate(all="ignore"):
            for x, y, at in self._batches():
                _, gradient = self._graphs.loss_and_gradient(vector, x, y, noise(0, at, len(y), self._noise))
                total += len(y) * gradient.astype(np.float64)
            return (total / len(self._y)).astype(np.float32)

    def _batches(self) -> Iterator[tuple[NDArray[np.generic], NDArray[np.generic], int]]:
        for at in range(0, len(self._y), BATCH):
            yield self._x[at : at + BATCH], self._y[at : at + BATCH], at


class ExemplarViews:
    """The views of running jobs; `make` creates the graphs of a kit, by default for onnxruntime."""

    def __init__(self, make: Callable[[Kit, int], Graphs] | None = None) -> None:
        self._make = make
        self._views: dict[tuple[bytes, bytes], ExemplarView] = {}
        self._lock = threading.Lock()

    def of(self, kit: Ref, exemplars: Ref, blobs: BlobStore) -> ExemplarView:
        """Return the view of these exemplars with this kit, from the cache or newly loaded."""
        place = kit.digest, exemplars.digest
        with self._lock:
            found = self._views.pop(place, None) or self._read(kit, exemplars, blobs)
            drop_oldest(self._views, MAX_VIEWS - 1)
            self._views[place] = found
            return found

    def _read(self, kit: Ref, exemplars: Ref, blobs: BlobStore) -> ExemplarView:
        # Imported here: an edge server needs onnxruntime only if the gate uses exemplars.
        from sojourn.model.exemplars import Exemplars  # noqa: PLC0415
        from sojourn.model.graphs import Graphs  # noqa: PLC0415

        shown = unpack_blob(blobs.read(exemplars.digest), Exemplars)
        content = unpack_blob(blobs.read(kit.digest), Kit)
        return ExemplarView(content, (self._make or Graphs)(content, 1), shown)
