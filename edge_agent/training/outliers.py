"""A visit of FedOV: a model with a class for what is unknown learns from samples, outliers and mixtures of two."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edge_agent.training.descent import descended, metrics
from edge_agent.training.handover import model_of, save_model
from edge_agent.training.model_pool import shuffled
from edge_agent.training.objectives import Plain
from edge_agent.training.outlier_images import outliers
from edge_agent.training.reasons import Unsupported
from edge_agent.training.work import Trained
from sojourn.model.graphs import Graphs
from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edge_agent.training.descent import Prepared, Progress
    from edge_agent.training.work import Train
    from sojourn.model.graphs import Streams
    from sojourn.parts import Outliers
    from sojourn.protocol.spec import Kit, OutlierGraphs
    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]


def train_with_outliers(
    work: Train, settings: Outliers, blobs: BlobStore, prepared: Prepared, progress: Progress
) -> Trained:
    """Train from a model of the device's own; without any further term, as any device does."""
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
    """A kit's graphs whose training steps add outliers, drawn with a stream of their own, step after step."""

    def __init__(
        self, kit: Kit, own: OutlierGraphs, settings: Outliers, seed: int, beside: Graphs | None = None
    ) -> None:
        super().__init__(kit, beside.threads if beside else 1, beside)
        self._own, self._settings, self._seed, self._step = own, settings, seed, 0
        self._unknown = len(kit.classes)
        self._reach = np.float32(settings.reach) * np.array(own.scale, np.float32).reshape(-1, 1, 1)

    def loss_gradient_and_state(
        self,
        vector: Vector,
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[Vector] = (),
        beside: Sequence[Vector] = (),
        streams: Streams | None = None,
    ) -> tuple[float, Vector, Vector]:
        """The loss of a batch, and the gradient and the state with all further terms."""
        del beside, streams
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
        """What the graph is given besides, by its terms."""
        terms, found = self._own.terms, dict[str, "NDArray[np.generic]"]()
        order, share = draw.permutation(len(x)), draw.random()  # drawn in any case: a term less changes no other
        if "outlier" in terms:
            found["outlier"] = made
        if "mix" in terms:
            found |= {"other": x[order], "unlike": (y != y[order]).astype(np.float32)}
            found["share"] = np.full(len(x), share, np.float32)
        if "adversarial" in terms:
            found["adversarial"] = self._adversarial(vector, made)
        return found

    def _adversarial(self, vector: Vector, made: Vector) -> Vector:
        """Outliers changed so as to look less unknown."""
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
        """Samples and outliers as one batch: the sum of both means is twice the mean of all."""
        labels = np.concatenate([y.astype(np.int64), np.full(len(y), self._unknown)])
        drawn = [np.concatenate([each, draw.random(each.shape, dtype=np.float32)]) for each in noise]
        both = np.concatenate([x.astype(np.float32), made])
        loss, gradient, state = self.loss_with_unknown(vector, both, labels, drawn)
        return 2 * loss, 2 * gradient, state
