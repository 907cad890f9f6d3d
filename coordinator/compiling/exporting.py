"""From a module to ONNX bytes: traced once, then translated operator by operator."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch import Tensor, fx
from torch.onnx._internal.exporter import _core, _fx_passes, _ir_passes

from coordinator.compiling.tidying import tidied
from coordinator.compiling.tracing import Trainee, trace
from coordinator.compiling.translations import decompositions, registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# onnxruntime 1.20 reads up to 10.
IR_VERSION = 9


def export_train(trainee: Trainee, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> bytes:
    """The training graph: (vector, x, y, noise...) -> (loss, gradient)."""

    def function(vector: Tensor, batched: list[Tensor]) -> tuple[Tensor, Tensor]:
        # Taken per tensor and joined: differentiating through slices would pad a full vector per tensor.
        loss, gradients = trainee.loss_and_gradient(trainee.split(vector), batched[0], batched[1], batched[2:])
        return loss, torch.cat([gradient.reshape(-1) for gradient in gradients])

    names = ["vector", "x", "y", *(f"noise_{at}" for at in range(len(noise)))]
    return _export(function, trainee.initial, [x, y, *noise], names, ["loss", "gradient"])


def export_predict(trainee: Trainee, x: Tensor) -> bytes:
    """The prediction graph: (vector, x) -> logits."""

    def function(vector: Tensor, batched: list[Tensor]) -> tuple[Tensor]:
        return (trainee.logits(trainee.split(vector), batched[0]),)

    return _export(function, trainee.initial, [x], ["vector", "x"], ["logits"])


def _export(
    function: Callable[..., Any], vector: Tensor, batched: list[Tensor], names: list[str], results: list[str]
) -> bytes:
    with _quiet(), torch.no_grad():
        graph = trace(function, vector, batched, decompositions())
        # Where numbers of two types meet, ONNX wants one of them cast.
        _fx_passes.insert_type_promotion_nodes(graph)
        model = _translated(graph)
    _ir_passes.rename_inputs(model, names)
    _ir_passes.rename_outputs(model, results)
    return tidied(model)


def _translated(graph: fx.GraphModule) -> onnx_ir.Model:
    """By the exporter's own walk over a graph.

    Its front door, `torch.onnx.export`, would trace twice more what is traced and taken apart already; that took half
    of the time of compiling.
    """
    for node in graph.graph.find_nodes(op="get_attr"):
        node.meta["val"] = getattr(graph, node.target)  # the numbers themselves, where a trace has only their shape
    model = onnx_ir.Model(onnx_ir.Graph([], [], nodes=[], name="main_graph"), ir_version=IR_VERSION)
    _core._translate_fx_graph(
        graph.graph, model, graph_like=model.graph, owned_graphs={}, lower="at_conversion", registry=registry()
    )
    _ir_passes.add_opset_imports(model)
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's advice away from the terminal."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            log.setLevel(level)
