"""What the coordinator can say of a model without a device: accuracy on the test set, signatures on the exemplars."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from hierarchy.edge.exemplar_view import ExemplarView
from sojourn.errors import Fault
from sojourn.model.exemplars import Exemplars, signature
from sojourn.model.graphs import Graphs
from sojourn.model.scoring import accuracy_and_loss
from sojourn.model.vectors import CORES
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from coordinator.state import JobState
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore


class Evaluator:
    """Graphs and samples of the job that runs, read once; `make` makes the graphs of a kit."""

    def __init__(self, blobs: BlobStore, make: Callable[[Kit, int], Graphs] = Graphs) -> None:
        self._blobs = blobs
        self._make = make
        self._digest: bytes | None = None
        self._kit: Kit
        self._graphs: Graphs
        self._samples: dict[bytes, Exemplars] = {}
        self._view: ExemplarView | None = None

    def kit(self, state: JobState) -> Kit:
        """The job's kit."""
        if state.kit is None:
            raise Fault(f"{state.name} has not been compiled")
        if state.kit.digest != self._digest:
            self._kit = unpack_blob(self._blobs.read(state.kit.digest), Kit)
            self._graphs = self._make(self._kit, 1)
            self._digest, self._samples, self._view = state.kit.digest, {}, None
        return self._kit

    def evaluate(self, state: JobState, vector: NDArray[np.float32]) -> tuple[float, float]:
        """Accuracy and mean loss on the test set; NaN without one."""
        self.kit(state)
        if state.test is None:
            return nan, nan
        return accuracy_and_loss(self._graphs, vector, self._read(state.test), cores=CORES)

    def signature(self, state: JobState, vector: NDArray[np.float32]) -> tuple[float, ...]:
        """A device's signature, from the model that it trained."""
        if state.exemplars is None:
            raise Fault(f"{state.name} has no exemplars")
        classes = len(self.kit(state).classes)
        return signature(self._graphs, vector, self._read(state.exemplars), classes)

    def graphs(self, state: JobState) -> Graphs:
        """The job's graphs."""
        self.kit(state)
        return self._graphs

    def exemplars(self, state: JobState) -> Exemplars | None:
        """The job's exemplars, if it has any."""
        self.kit(state)
        return self._read(state.exemplars) if state.exemplars else None

    def view(self, state: JobState) -> ExemplarView | None:
        """The job's exemplars as the gate looks at them, if it has any."""
        exemplars = self.exemplars(state)
        if self._view is None and exemplars is not None:
            self._view = ExemplarView(self._kit, self._graphs, exemplars)
        return self._view

    def _read(self, ref: Ref) -> Exemplars:
        if ref.digest not in self._samples:
            self._samples[ref.digest] = unpack_blob(self._blobs.read(ref.digest), Exemplars)
        return self._samples[ref.digest]
