"""Training with a second stream: frozen models see the same samples, and the objective compares what they make of them.

One trace holds all streams. A frozen model is run as in prediction: with its own running statistics, and without
dropout. So is the model that is trained, where its layers run otherwise in training: for the comparison it then goes
through the samples once more, which costs a pass forward and one back. Else the streams would differ where the models
do not, and the first step of a visit would be pulled by noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from coordinator.compiling.fusing import fused_with, fusion_in
from coordinator.compiling.learning import ForwardPass, watched
from coordinator.compiling.reference import exact
from coordinator.compiling.samples import Batch
from coordinator.compiling.stream_terms import term_of
from coordinator.compiling.taps import LOGITS, tap_of
from coordinator.compiling.tracing import Trainee
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs, Streams, probe_anchors, probe_targets, probe_vector, state_places
from sojourn.parts import Fusion, name_of
from sojourn.protocol.spec import TwoStreamGraph
from sojourn.randomness import noise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from sojourn.parts import TwoStreamPart
    from sojourn.protocol.spec import Kit

TAP = "the second stream's"
"""Under this name a pass keeps what it gave at the objective's layer."""


class TwoStreamTrainee(Trainee):
    """A module that is trained beside frozen models; `beside` are those of the loss, and after them the anchors."""

    def __init__(self, plain: Trainee, objective: TwoStreamPart, x: Tensor) -> None:
        """Train what `plain` does, for an objective with a second stream; `x` are some samples."""
        super().__init__(plain.module, plain.feed, plain.learning)
        self.scalars = len(objective.scalars)
        self._anchors = tuple(f"anchor_{at}" for at in range(len(objective.anchors)))
        inner = plain.module.get_submodule("module")
        self._fusion = fusion_in(inner) if isinstance(objective, Fusion) else None
        self._term = None if self._fusion else term_of(objective)
        layer = LOGITS if self._fusion else objective.layer
        self._tap = tap_of(layer, inner, x, f"objective.layer of {name_of(objective)}")
        self._again = bool(plain.feed.draws or self._with_state)

    @property
    def beside(self) -> tuple[str, ...]:
        """The further models that a training step is given, by name."""
        return (*super().beside, *self._anchors)

    @property
    def fixed_inputs(self) -> list[str]:
        """What the graph calls further models, and numbers after them."""
        own = [f"beside_{at}" for at in range(len(super().beside))]
        return [*own, *self._anchors, *(f"scalar_{at}" for at in range(self.scalars))]

    @property
    def fuses(self) -> bool:
        """Whether a model is tested together with a frozen one."""
        return self._fusion is not None and self.learning.plain

    def fused_outputs(self, tensors: Sequence[Tensor], anchor: Sequence[Tensor], x: Tensor) -> Tensor:
        """The answers of the model fused with the trunk of another one, as in prediction."""
        assert self._fusion  # noqa: S101  # only such are asked
        self.module.eval()
        frozen = self._pass(anchor, x).features[TAP]
        with fused_with(self._fusion, frozen):
            return self.learning.answers(self._pass(tensors, x).outputs)

    def _minimised(
        self,
        tensors: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        others: Mapping[str, ForwardPass],
        scalars: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The plain loss, and that with the term that compares the streams; numbers are 1 unless told."""
        frozen = [others[name].features[TAP] for name in self._anchors]
        if self._fusion:
            with fused_with(self._fusion, frozen[0]):
                loss = self.learning.batch_loss(self._pass(tensors, x), x, y, others)
            return loss, loss
        assert self._term  # noqa: S101  # there is one, or a fusion
        compared = None
        if self._again:
            self.module.eval()
            compared = self._pass(tensors, x).features[TAP]
            self.module.train()
        passed = self._pass(tensors, x)
        loss = self.learning.batch_loss(passed, x, y, others)
        here = passed.features[TAP] if compared is None else compared
        numbers = scalars or [torch.ones((), dtype=loss.dtype)] * self.scalars
        return loss, loss + self._term(here, frozen, numbers)

    def _pass(self, tensors: Sequence[Tensor], x: Tensor) -> ForwardPass:
        """The outputs, and what the layers gave that the loss and the objective ask for."""
        inner = self.module.get_submodule("module")
        with watched(self.module, self.learning.features) as seen, self._tap.watched(inner) as tapped:
            outputs = self._call(tensors, x)
        if self._fusion and self._fusion.seen is not None:
            return ForwardPass(outputs, {**seen, TAP: self._fusion.seen})
        return ForwardPass(outputs, {**seen, TAP: tapped[-1].flatten(1)})


class TwoStreamGraphs(Graphs):
    """A kit's graphs, with the second one for training: of the models beside, the last are anchors; numbers are 1."""

    def loss_gradient_and_state(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[NDArray[np.float32]] = (),
        beside: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """The plain loss, the objective's gradient, and the new state."""
        own, graph = len(self.learns.beside), self._kit.two_stream
        numbers = (1.0,) * (graph.scalars if graph else 0)
        streams = streams or Streams(beside[own:], numbers)
        return super().loss_gradient_and_state(vector, x, y, noise, beside[:own], streams)


def at_the_probe(graph: bytes, fused: bytes, kit: Kit, trainee: TwoStreamTrainee) -> TwoStreamGraph:
    """The graphs with what torch says of the first at the kit's probe, for devices to compare with."""
    probe, model = kit.probe, kit.model
    x = np.frombuffer(probe.x, dtype=kit.input.dtype).reshape(len(probe.y), *kit.input.shape).copy()
    vector = probe_vector(model.sizes, probe.spread, model.state)
    anchors = len(trainee.beside) - len(kit.learns.beside)
    beside = (*(vector for _ in kit.learns.beside), *probe_anchors(vector, anchors))
    drawn = noise(probe.noise_seed, 0, len(probe.y), kit.noise)
    answer = exact(trainee, vector, Batch(x, probe_targets(kit).copy(), drawn, beside))
    if not np.isfinite(answer.loss) or not np.isfinite(answer.gradient).all():
        raise ModelError("the objective's second stream has a loss or a gradient that is not finite on made-up samples")
    return TwoStreamGraph(
        graph,
        anchors,
        trainee.scalars,
        float(answer.loss),
        float(np.linalg.norm(answer.gradient)),
        tuple(float(value) for value in answer.gradient[list(probe.places)]),
        tuple(float(value) for value in answer.state[state_places(answer.state.size)]),
        fused,
    )
