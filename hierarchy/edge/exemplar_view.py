"""What a model makes of the coordinator's exemplars: its loss on them, and the slope of that, remembered for a few."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import InvalidBlob
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.randomness import noise

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sojourn.model.exemplars import Exemplars
    from sojourn.model.graphs import Graphs
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]

VIEWS = 2
"""Graphs and exemplars of at most this many kits are kept ready."""
SHOWN = 256
"""Of more exemplars than this, so many are looked at, evenly from all of them."""
BATCH = 64
REMEMBERED, BYTES = 64, 64 << 20
"""Of at most this many models the slope is remembered, and of fewer where they take more memory than this."""
LEARNT = 0.1
"""A loss under this part of a blind guess's counts as that: below it, a factor of the loss means nothing."""
LOST = 2.0
"""A model with a loss over so many times a blind guess's answers at random: a leap of its loss means nothing, too."""


@dataclass(frozen=True, eq=False)
class Slope:
    """The mean loss on the exemplars at a model, and its gradient."""

    loss: float
    gradient: Vector


class ExemplarView:
    """The exemplars through one kit's training graph: dropout draws the same at every look."""

    def __init__(self, kit: Kit, graphs: Graphs, exemplars: Exemplars) -> None:
        self._graphs, self._noise = graphs, kit.noise
        x, y = exemplars.packed()
        rows = np.linspace(0, len(y) - 1, SHOWN).astype(np.int64) if len(y) > SHOWN else np.arange(len(y))
        self._x, self._y = exemplars.unpacked(x[rows]), y[rows]
        if not len(y) or x.shape[1:] != kit.input.shape:
            raise InvalidBlob(f"{len(y)} exemplars of shape {x.shape[1:]} are none for a model of {kit.input.shape}")
        blind = math.log(max(2, len(kit.classes)))
        self.learnt, self.lost = LEARNT * blind, LOST * blind
        """A loss that counts as learnt, and one of a model that has nothing to lose."""
        self._known: dict[bytes, Slope] = {}
        self._lock = threading.Lock()

    def at(self, vector: Vector, digest: bytes) -> Slope:
        """The slope at a model, which is known by its digest."""
        with self._lock:
            known = self._known.pop(digest, None) or self._look(vector)
            self._known[digest] = known  # the last that was asked for is the last to be forgotten
            most = min(REMEMBERED, max(2, BYTES // max(1, known.gradient.nbytes)))
            while len(self._known) > most:
                del self._known[next(iter(self._known))]
            return known

    def _look(self, vector: Vector) -> Slope:
        total, gradient = 0.0, np.zeros(len(vector))
        with np.errstate(all="ignore"):
            for at in range(0, len(self._y), BATCH):
                x, y = self._x[at : at + BATCH], self._y[at : at + BATCH]
                loss, slope = self._graphs.loss_and_gradient(vector, x, y, noise(0, at, len(y), self._noise))
                total += len(y) * loss
                gradient += len(y) * slope.astype(np.float64)
            return Slope(total / len(self._y), (gradient / len(self._y)).astype(np.float32))


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
