"""From a module to ONNX bytes: traced once, then translated operator by operator."""

from __future__ import annotations

import contextlib
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch import Tensor, fx
from torch.onnx._internal.exporter import _core, _ir_passes
from torch.onnx._internal.fx.passes import type_promotion

from coordinator.compiling.tidying import tidied
from coordinator.compiling.tracing import Trainee, trace
from coordinator.compiling.translations import decompositions, registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from coordinator.compiling.two_streams import TwoStreamTrainee

# onnxruntime 1.20 reads up to 10.
IR_VERSION = 9


@dataclass(frozen=True)
class Traced:
    """The operators of a graph, and the names of its inputs and results."""

    graph: fx.GraphModule
    names: list[str]
    results: list[str]


def trace_train(trainee: Trainee, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> Traced:
    """The training graph: (vector, x, y, noise..., beside...) -> (loss, gradient), and the new state if there is one.

    Without y where a sample is its own target; with a second stream also frozen models and numbers.
    """
    targets = [y] if trainee.learning.task.target else []
    models = len(trainee.beside)

    def function(vector: Tensor, batched: list[Tensor], fixed: list[Tensor]) -> tuple[Tensor, ...]:
        # Taken per tensor and joined: differentiating through slices would pad a full vector per tensor.
        x, drawn = batched[0], batched[1 + len(targets) :]
        others, scalars = [trainee.split(each) for each in fixed[:models]], fixed[models:]
        loss, *parts = trainee.loss_and_gradient(trainee.split(vector), x, (*batched, x)[1], drawn, others, scalars)
        return loss, *(torch.cat([each.reshape(-1) for each in part]) for part in parts if part)

    names = ["vector", "x", *("y" for _ in targets), *(f"noise_{at}" for at in range(len(noise)))]
    results = ["loss", "gradient", "state"][: 3 if len(trainee.names) > trainee.trained else 2]
    fixed = [trainee.initial] * models + [torch.ones(())] * trainee.scalars
    return _traced(function, trainee, [x, *targets, *noise], [*names, *trainee.fixed_inputs], results, fixed)


def trace_predict(trainee: Trainee, x: Tensor) -> Traced:
    """The prediction graph: (vector, x) -> the answers."""

    def function(vector: Tensor, batched: list[Tensor], _beside: list[Tensor]) -> tuple[Tensor]:
        return (trainee.outputs(trainee.split(vector), batched[0]),)

    return _traced(function, trainee, [x], ["vector", "x"], [trainee.learning.task.answers])


def trace_outputs(
    outputs: Callable[[list[Tensor], Tensor], tuple[Tensor, ...]], trainee: Trainee, x: Tensor, results: list[str]
) -> Traced:
    """A graph of one's own, (vector, x) -> results: `outputs` are made of a model's tensors and a batch."""

    def function(vector: Tensor, batched: list[Tensor], _beside: list[Tensor]) -> tuple[Tensor, ...]:
        return outputs(trainee.split(vector), batched[0])

    return _traced(function, trainee, [x], ["vector", "x"], results)


def trace_with(
    function: Callable[[Tensor, list[Tensor]], tuple[Tensor, ...]],
    trainee: Trainee,
    batched: list[Tensor],
    names: list[str],
    results: list[str],
) -> Traced:
    """A graph of one's own of a model's vector and of tensors with a row for each sample."""
    return _traced(lambda vector, rows, _beside: function(vector, rows), trainee, batched, names, results)


def trace_fused(trainee: TwoStreamTrainee, x: Tensor) -> Traced:
    """The graph of a fused model: (vector, x, anchor) -> the answers."""

    def function(vector: Tensor, batched: list[Tensor], fixed: list[Tensor]) -> tuple[Tensor]:
        return (trainee.fused_outputs(trainee.split(vector), trainee.split(fixed[0]), batched[0]),)

    names, results = ["vector", "x", "anchor_0"], [trainee.learning.task.answers]
    return _traced(function, trainee, [x], names, results, [trainee.initial])


def trace_score(trainee: Trainee, x: Tensor, y: Tensor) -> Traced:
    """The scoring graph: (vector, x, y, beside...) -> the loss of each sample."""
    targets = [y] if trainee.learning.task.target else []

    def function(vector: Tensor, batched: list[Tensor], beside: list[Tensor]) -> tuple[Tensor]:
        others = [trainee.split(each) for each in beside]
        return (trainee.losses(trainee.split(vector), batched[0], (*batched, x)[1], others),)

    models = len(trainee.learning.task.beside)
    names = ["vector", "x", *("y" for _ in targets), *(f"beside_{at}" for at in range(models))]
    return _traced(function, trainee, [x, *targets], names, ["losses"], [trainee.initial] * models)


def _traced(
    function: Callable[..., Any],
    trainee: Trainee,
    batched: list[Tensor],
    names: list[str],
    results: list[str],
    fixed: Sequence[Tensor] = (),
) -> Traced:
    def alone(vector: Tensor, batched: list[Tensor]) -> Any:
        return function(vector, batched, [])

    with _quiet(), torch.no_grad():
        graph = trace(function if fixed else alone, trainee.initial, batched, decompositions(), fixed)
        _cast_mixed_types(graph)
    return Traced(graph, names, results)


def _cast_mixed_types(graph: fx.GraphModule) -> None:
    """Insert casts where operands of two types meet: ONNX operators take one type."""
    casting = type_promotion.InsertTypePromotion(graph)
    casting.interpreter = _Casting(graph, type_promotion.TypePromotionTable())
    casting.run()


class _Casting(type_promotion._TypePromotionInterpreter):
    """The exporter's own pass, which computes every value again: a trace has them, and casts do not change them."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        with self._set_current_node(n):
            if rule := type_promotion.get_type_promotion_rule(n, self.type_promotion_table):
                self._maybe_promote_node(n, rule)
        return n.meta["val"]


def exported(traced: Traced) -> bytes:
    """The graph as ONNX."""
    with _quiet(), torch.no_grad():
        model = _translated(traced.graph)
    _ir_passes.rename_inputs(model, traced.names)
    _ir_passes.rename_outputs(model, traced.results)
    return tidied(model)


def _translated(graph: fx.GraphModule) -> onnx_ir.Model:
    """By the exporter's own walk over a graph.

    Its front door, `torch.onnx.export`, would trace twice more what is traced and taken apart already; that took half
    of the time of compiling.
    """
    for node in graph.graph.find_nodes(op="get_attr"):
        node.meta["val"] = getattr(graph, node.target)  # the numbers themselves, where a trace has only their shape
    model = onnx_ir.Model(onnx_ir.Graph([], [], nodes=[], name="main_graph"), ir_version=IR_VERSION)
    with _signatures_kept():
        _core._translate_fx_graph(
            graph.graph, model, graph_like=model.graph, owned_graphs={}, lower="at_conversion", registry=registry()
        )
    _ir_passes.add_opset_imports(model)
    return model


@contextlib.contextmanager
def _signatures_kept() -> Iterator[None]:
    """Read the schema of each ONNX operator once: the exporter does so at each use, a tenth of compiling."""
    signature = onnx_ir.schemas.OpSignature
    read = signature.from_op_schema
    known: dict[tuple[str, str, int], onnx_ir.schemas.OpSignature] = {}

    def from_op_schema(schema: Any) -> onnx_ir.schemas.OpSignature:
        key = (schema.domain, schema.name, schema.since_version)
        if key not in known:
            known[key] = read(schema)
        return known[key]

    signature.from_op_schema = from_op_schema  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        signature.from_op_schema = read  # type: ignore[method-assign]


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
