"""From traced operators to ONNX bytes."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from coordinator.compiling.tidying import tidied
from coordinator.compiling.tracing import Trainee, trace
from coordinator.compiling.translations import TRANSLATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPSET = 18


class TrainGraph(nn.Module):
    """(vector, [x, y, noise...]) -> (loss, gradient)."""

    def __init__(self, graph: fx.GraphModule, trainee: Trainee) -> None:
        """Wrap the traced loss and gradients."""
        super().__init__()
        # Not "graph", which torch's own graph modules use for something else.
        self.traced, self._split = graph, trainee.split

    def forward(self, vector: Tensor, batched: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss, and the gradient as one vector."""
        # Taken per tensor and joined: differentiating through slices would pad a full vector per tensor.
        loss, *gradients = self.traced(self._split(vector), batched)
        return loss, torch.cat([gradient.reshape(-1) for gradient in gradients])


class PredictGraph(nn.Module):
    """(vector, [x]) -> logits."""

    def __init__(self, graph: fx.GraphModule, trainee: Trainee) -> None:
        """Wrap the traced prediction."""
        super().__init__()
        # Not "graph", which torch's own graph modules use for something else.
        self.traced, self._split = graph, trainee.split

    def forward(self, vector: Tensor, batched: list[Tensor]) -> Tensor:
        """The logits of a batch."""
        out: Tensor = self.traced(self._split(vector), batched)
        return out


def export_train(trainee: Trainee, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> bytes:
    """The training graph."""

    def function(tensors: list[Tensor], batched: list[Tensor]) -> list[Tensor]:
        loss, gradients = trainee.loss_and_gradient(tensors, batched[0], batched[1], batched[2:])
        return [loss, *gradients]

    batched = [x, y, *noise]
    graph = TrainGraph(trace(function, trainee.split(trainee.initial), batched), trainee)
    names = ["vector", "x", "y", *(f"noise_{at}" for at in range(len(noise)))]
    return _export(graph, trainee.initial, batched, names, ["loss", "gradient"])


def export_predict(trainee: Trainee, x: Tensor) -> bytes:
    """The prediction graph."""

    def function(tensors: list[Tensor], batched: list[Tensor]) -> Tensor:
        return trainee.logits(tensors, batched[0])

    graph = PredictGraph(trace(function, trainee.split(trainee.initial), [x]), trainee)
    return _export(graph, trainee.initial, [x], ["vector", "x"], ["logits"])


def _export(graph: nn.Module, vector: Tensor, batched: list[Tensor], names: list[str], results: list[str]) -> bytes:
    batch = torch.export.Dim("batch", min=1)
    shapes = (None, [{0: batch} for _ in batched])
    with _quiet(), torch.no_grad():
        program = torch.export.export(graph, (vector, batched), dynamic_shapes=shapes, strict=False)
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=names,
            output_names=results,
            custom_translation_table=TRANSLATIONS,
            verbose=False,
            optimize=False,
        )
    if exported is None:
        raise RuntimeError("the exporter gave no program")
    return tidied(exported.model)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and advice away from the terminal."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            log.setLevel(level)
