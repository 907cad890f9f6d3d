"""What a model makes of the coordinator's exemplars: its loss on them and its gradient, remembered for a few."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn.errors import InvalidBlob
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.randomness import noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from sojourn.model.exemplars import Exemplars
    from sojourn.model.graphs import Graphs
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]

VIEWS = 2
"""Graphs and exemplars of at most this many kits are kept ready."""
SHOWN = 128
"""Of more exemplars than this, so many are looked at, evenly from all of them."""
BATCH = 64
LOSSES, BYTES = 256, 16 << 20
"""Of at most this many models the loss is remembered, and gradients that take at most this much memory."""
LEARNT = 0.1
"""A loss under this part of a blind guess's counts as that: below it, a factor of the loss means nothing."""
LEARNT_OF_VALUES = 0.5
"""The same where values are learnt: there the loss grows with the square of what is off, and a device that knows one
range of them, or one machine, makes it leap for the others without meaning ill."""
VALUES = frozenset({"regression", "forecast", "reconstruction"})
"""The kinds of tasks that learn values."""
ON_ITS_WAY = 0.5
"""Of a model with a loss over this part of a blind guess's, devices change the loss in turns: none is alike yet."""
GUESSING = 0.9
"""A loss of at least this share of a blind guess's: the model has hardly learned which class is which."""
LOST = 2.0
"""A model with a loss over so many times a blind guess's answers at random: a leap of its loss means nothing, too."""


class ExemplarView:
    """The exemplars through one kit's graphs: models are known by their digests, and looked at once."""

    def __init__(self, kit: Kit, graphs: Graphs, exemplars: Exemplars) -> None:
        self._graphs, self._noise, self._learnt = graphs, kit.noise, kit.model.learnt
        x, y = exemplars.packed()
        rows = np.linspace(0, len(y) - 1, SHOWN).astype(np.int64) if len(y) > SHOWN else np.arange(len(y))
        if not len(y) or x.shape[1:] != kit.input.shape:
            raise InvalidBlob(f"{len(y)} exemplars of shape {x.shape[1:]} are none for a model of {kit.input.shape}")
        self._x, self._y = graphs.features(exemplars.unpacked(x[rows])), exemplars.compared()[rows]
        blind, learnt = kit.learns.blind, LEARNT_OF_VALUES if kit.learns.kind in VALUES else LEARNT
        self.learnt, self.on_its_way, self.lost = learnt * blind, ON_ITS_WAY * blind, LOST * blind
        """A loss that counts as learnt, one of a model that is well on its way, and one that has nothing to lose."""
        self.guessing = GUESSING * blind
        """The loss of a model that is hardly better than a guess."""
        self._classes = np.unique(self._y) if kit.learns.kind == "classification" else np.empty(0, np.int64)
        self.shows_classes = len(self._classes) > 1
        """Whether classes are learned and at least two of them are shown."""
        self._losses: dict[bytes, float] = {}
        self._gradients: dict[bytes, Vector] = {}
        self._lock = threading.Lock()

    def loss(self, vector: Vector, digest: bytes) -> float:
        """The mean loss of a model."""
        with self._lock:
            known = self._losses.pop(digest, None)
            self._losses[digest] = found = self._mean_loss(vector) if known is None else known
            _forget(self._losses, LOSSES)
            return found

    def gradient(self, vector: Vector, digest: bytes) -> Vector:
        """The gradient of that loss; dropout draws the same at every look."""
        with self._lock:
            known = self._gradients.pop(digest, None)
            self._gradients[digest] = found = self._mean_gradient(vector) if known is None else known
            _forget(self._gradients, max(1, BYTES // max(1, found.nbytes)))
            return found

    def beliefs(self, vector: Vector) -> NDArray[np.float64]:
        """The mean probability that a model gives each shown class (column), for the exemplars of each class (row)."""
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
        total = np.zeros(self._learnt)
        with np.errstate(all="ignore"):
            for x, y, at in self._batches():
                _, gradient = self._graphs.loss_and_gradient(vector, x, y, noise(0, at, len(y), self._noise))
                total += len(y) * gradient.astype(np.float64)
            return (total / len(self._y)).astype(np.float32)

    def _batches(self) -> Iterator[tuple[NDArray[np.generic], NDArray[np.generic], int]]:
        for at in range(0, len(self._y), BATCH):
            yield self._x[at : at + BATCH], self._y[at : at + BATCH], at


def _forget(known: dict[bytes, Any], most: int) -> None:
    """Forget those that were longest not asked for."""
    while len(known) > most:
        del known[next(iter(known))]


class ExemplarViews:
    """The views of the jobs that are under way; `make` makes the graphs of a kit, onnxruntime's if it is None."""

    def __init__(self, make: Callable[[Kit, int], Graphs] | None = None) -> None:
        self._make = make
        self._views: dict[tuple[bytes, bytes], ExemplarView] = {}
        self._lock = threading.Lock()

    def of(self, kit: Ref, exemplars: Ref, blobs: BlobStore) -> ExemplarView:
        """The view of these exemplars with this kit, made ready once."""
        place = kit.digest, exemplars.digest
        with self._lock:
            found = self._views.pop(place, None) or self._read(kit, exemplars, blobs)
            while len(self._views) >= VIEWS:
                del self._views[next(iter(self._views))]
            self._views[place] = found
            return found

    def _read(self, kit: Ref, exemplars: Ref, blobs: BlobStore) -> ExemplarView:
        # Imported here: onnxruntime only on an edge server that is asked to look at exemplars.
        from sojourn.model.exemplars import Exemplars  # noqa: PLC0415
        from sojourn.model.graphs import Graphs  # noqa: PLC0415

        shown = unpack_blob(blobs.read(exemplars.digest), Exemplars)
        content = unpack_blob(blobs.read(kit.digest), Kit)
        return ExemplarView(content, (self._make or Graphs)(content, 1), shown)
