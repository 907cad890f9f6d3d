"""The visit of FedGen: the model's last layer also trains on features that the received generator makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_agent.training.descent import Batches, Prepared, Progress, descended, metrics
from edge_agent.training.messages import Train, Trained
from edge_agent.training.objectives import Plain
from edge_agent.training.visit_vectors import Unsupported, companions_of, model_of, save_model
from sojourn.model import vectors
from sojourn.model.generator import GeneratorLayout, last_layer
from sojourn.model.graphs import Graphs, Streams
from sojourn.model.metrics import softmax
from sojourn.model.vectors import flat
from sojourn.parts import Generated
from sojourn.protocol.spec import Kit
from sojourn.randomness import generator
from sojourn.store.blobs import BlobStore

Vector = NDArray[np.float32]


def train_generated(
    work: Train, settings: Generated, blobs: BlobStore, prepared: Prepared, progress: Progress
) -> Trained:
    """Train with the received generator, and send how many samples of each class were trained on."""
    visit, kit = work.visit, prepared.kit
    start = model_of(visit, blobs, kit.model)
    made_by = companions_of(visit, blobs, kit)["generator"]
    a, b = settings.weights(visit.id.round - 1)
    if a or b:
        share = settings.made / visit.task.training.batch
        steps = GeneratedSteps(kit, settings, made_by, (share * a, b), visit.seed, prepared.graphs)
        prepared = replace(prepared, graphs=steps)
    end, passed = descended(start, Plain(), prepared, visit.task.training, visit.seed, progress)
    counts = seen_of_each(prepared.samples, len(kit.classes), visit.task.training.epochs)
    sent = {
        "model": save_model(blobs, start, end, visit.task, kit.model),
        "class-counts": vectors.save(blobs, counts, "float32", flat(len(counts))),
    }
    return Trained(sent, len(prepared.samples), metrics(passed), None, {})


def seen_of_each(samples: Batches, classes: int, epochs: int) -> Vector:
    """Return, for each class, one plus the number of its samples in all steps of a visit."""
    counts = np.bincount(np.asarray(samples.y, np.int64), minlength=classes)[:classes]
    return (1 + epochs * counts).astype(np.float32)


class GeneratedSteps(Graphs):
    """A kit's graphs whose training steps add a generator's terms, with a separate random stream."""

    def __init__(
        self,
        kit: Kit,
        settings: Generated,
        made_by: Vector,
        weights: tuple[float, float],
        seed: int,
        graphs: Graphs,
    ) -> None:
        """`graphs` are the kit's own, whose sessions are shared."""
        super().__init__(kit, graphs.threads, graphs)
        if weights[1] and not (kit.more and kit.more.soft):
            raise Unsupported("the kit has no training graph with soft targets")
        self._layout, self._last = GeneratorLayout.of(settings, kit), last_layer(kit)
        self._settings, self._made_by, self._weights = settings, made_by, weights
        self._seed, self._step = seed, 0
        present = np.flatnonzero(self._layout.split(made_by)["there"] > 0)
        self._present = present if len(present) else np.arange(len(kit.classes))

    def loss_gradient_and_state(
        self,
        vector: Vector,
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[Vector] = (),
        reference_models: Sequence[Vector] = (),
        streams: Streams | None = None,
    ) -> tuple[float, Vector, Vector]:
        """Return the loss of a batch, and the gradient with the generator's terms."""
        draw = generator(self._seed, "generated", self._step)
        self._step += 1
        labels = y.astype(np.int64)
        here = draw.random((len(x), self._settings.noise), dtype=np.float32)
        a, b = self._weights
        if b:
            like = softmax(self._last.logits(vector, self._layout.make(self._made_by, here, labels)))
            loss, gradient = self.soft_loss_and_gradient(vector, x, y, (b * like).astype(np.float32), noise)
        else:
            loss, gradient, _ = super().loss_gradient_and_state(vector, x, y, noise, reference_models, streams)
        if a:
            self._learn_last(vector, gradient, a, draw)
        return loss, gradient, np.zeros(0, np.float32)

    def _learn_last(self, vector: Vector, gradient: Vector, weight: float, draw: np.random.Generator) -> None:
        """Add weight l(h(z'), y') to the gradient of the last layer, in place."""
        count, last = self._settings.made, self._last
        classes = self._present[draw.integers(0, len(self._present), count)]
        z = self._layout.make(self._made_by, draw.random((count, self._settings.noise), dtype=np.float32), classes)
        apart = softmax(last.logits(vector, z))
        apart[np.arange(count), classes] -= 1
        apart *= weight / count
        gradient[last.weight] += (apart.T @ z).reshape(-1).astype(np.float32)
        if last.bias:
            gradient[last.bias] += apart.sum(0).astype(np.float32)
