"""Export a module as a small ONNX graph: traced once, translated operator by operator, then simplified."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from onnx_ir.passes import Sequential, common
from onnxscript import optimizer
from torch import Tensor, fx
from torch.onnx._internal.exporter import _core, _ir_passes
from torch.onnx._internal.fx.passes import type_promotion

from coordinator.compiling.tracing import Trainee, trace
from coordinator.compiling.translations import decompositions, registry

if TYPE_CHECKING:
    from coordinator.compiling.two_streams import TwoStreamTrainee


# onnxruntime 1.20 reads up to 10.
IR_VERSION = 9


def simplified(model: onnx_ir.Model) -> bytes:
    """Return the bytes of the simplified graph."""
    # The exporter's own optimisation tries hundreds of rewrites, which takes longer than all other work together.
    common.InlinePass()(model)
    optimizer.fold_constants_ir(model)
    _remove_copies(model.graph)
    Sequential(
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
        common.ClearMetadataAndDocStringPass(),
    )(model)
    proto = onnx_ir.to_proto(model)
    proto.ir_version = IR_VERSION
    # Shapes of intermediate values are not needed: onnxruntime infers them.
    del proto.graph.value_info[:]
    return proto.SerializeToString(deterministic=True)


def _remove_copies(graph: onnx_ir.Graph) -> None:
    """Let matrix products broadcast an operand over the batch, instead of copying it first.

    torch writes a layer on samples with steps as a batch of products, with a copy of the weights for each. If the
    weights are constants, a loaded graph would keep all copies in memory.
    """
    for node in graph:
        if node.op_type == "MatMul":
            for at, other in ((0, 1), (1, 0)):
                if (source := _repeated(node.inputs[at], node.inputs[other])) is not None:
                    node.replace_input_with(at, source)
                    break


def _repeated(value: onnx_ir.Value | None, other: onnx_ir.Value | None) -> onnx_ir.Value | None:
    """Return the value that another one copies for each matrix of the batch; None if it is not such a copy."""
    made = value.producer() if value is not None else None
    if value is None or other is None or made is None or made.op_type != "Expand":
        return None
    source = made.inputs[0]
    shapes = [each.shape for each in (source, value, other) if each is not None and each.shape is not None]
    if len(shapes) < 3:  # a shape is unknown
        return None
    before, after, beyond = (list(shape) for shape in shapes)
    same = before[-2:] == after[-2:] and len(before) <= len(after) == len(beyond) and after[:-2] == beyond[:-2]
    return source if same else None


@dataclass(frozen=True)
class Traced:
    """The operators of a graph, and the names of its inputs and results."""

    graph: fx.GraphModule
    names: list[str]
    results: list[str]


def trace_train(trainee: Trainee, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> Traced:
    """Trace the training graph: (vector, x, y, noise..., reference models...) -> (loss, gradient[, new state]).

    There is no y if a sample is its own target. With a second stream there are also frozen models and numbers.
    """
    targets = [y] if trainee.learning.task.target else []
    models = len(trainee.reference_models)

    def function(vector: Tensor, batched: list[Tensor], fixed: list[Tensor]) -> tuple[Tensor, ...]:
        # Gradients are taken per tensor and joined: differentiating through slices would pad a full vector per tensor.
        x, drawn = batched[0], batched[1 + len(targets) :]
        others, scalars = [trainee.split(each) for each in fixed[:models]], fixed[models:]
        loss, *parts = trainee.loss_and_gradient(trainee.split(vector), x, (*batched, x)[1], drawn, others, scalars)
        return loss, *(torch.cat([each.reshape(-1) for each in part]) for part in parts if part)

    names = ["vector", "x", *("y" for _ in targets), *(f"noise_{at}" for at in range(len(noise)))]
    results = ["loss", "gradient", "state"][: 3 if len(trainee.names) > trainee.trained else 2]
    fixed = [trainee.initial] * models + [torch.ones(())] * trainee.scalars
    return _traced(function, trainee, [x, *targets, *noise], [*names, *trainee.fixed_inputs], results, fixed)


def trace_predict(trainee: Trainee, x: Tensor) -> Traced:
    """Trace the prediction graph: (vector, x) -> the predictions."""

    def function(vector: Tensor, batched: list[Tensor], _reference_models: list[Tensor]) -> tuple[Tensor]:
        return (trainee.outputs(trainee.split(vector), batched[0]),)

    return _traced(function, trainee, [x], ["vector", "x"], [trainee.learning.task.answers])


def trace_outputs(
    outputs: Callable[[list[Tensor], Tensor], tuple[Tensor, ...]], trainee: Trainee, x: Tensor, results: list[str]
) -> Traced:
    """Trace a further graph, (vector, x) -> results: `outputs` computes them from a model's tensors and a batch."""

    def function(vector: Tensor, batched: list[Tensor], _reference_models: list[Tensor]) -> tuple[Tensor, ...]:
        return outputs(trainee.split(vector), batched[0])

    return _traced(function, trainee, [x], ["vector", "x"], results)


def trace_with(
    function: Callable[[Tensor, list[Tensor]], tuple[Tensor, ...]],
    trainee: Trainee,
    batched: list[Tensor],
    names: list[str],
    results: list[str],
) -> Traced:
    """Trace a further graph of a model's vector and of tensors with a row for each sample."""
    return _traced(lambda vector, rows, _reference_models: function(vector, rows), trainee, batched, names, results)


def trace_fused(trainee: TwoStreamTrainee, x: Tensor) -> Traced:
    """Trace the graph of a fused model: (vector, x, anchor) -> the predictions."""

    def function(vector: Tensor, batched: list[Tensor], fixed: list[Tensor]) -> tuple[Tensor]:
        return (trainee.fused_outputs(trainee.split(vector), trainee.split(fixed[0]), batched[0]),)

    names, results = ["vector", "x", "anchor_0"], [trainee.learning.task.answers]
    return _traced(function, trainee, [x], names, results, [trainee.initial])


def trace_score(trainee: Trainee, x: Tensor, y: Tensor) -> Traced:
    """Trace the scoring graph: (vector, x, y, reference models...) -> the loss of each sample."""
    targets = [y] if trainee.learning.task.target else []

    def function(vector: Tensor, batched: list[Tensor], reference_models: list[Tensor]) -> tuple[Tensor]:
        others = [trainee.split(each) for each in reference_models]
        return (trainee.losses(trainee.split(vector), batched[0], (*batched, x)[1], others),)

    models = len(trainee.learning.task.reference_models)
    names = ["vector", "x", *("y" for _ in targets), *(f"reference_{at}" for at in range(models))]
    return _traced(function, trainee, [x, *targets], names, ["losses"], [trainee.initial] * models)


def _traced(
    function: Callable[..., Any],
    trainee: Trainee,
    batched: list[Tensor],
    names: list[str],
    results: list[str],
    fixed: Sequence[Tensor] = (),
) -> Traced:
    def without_fixed(vector: Tensor, batched: list[Tensor]) -> Any:
        return function(vector, batched, [])

    with _quiet(), torch.no_grad():
        graph = trace(function if fixed else without_fixed, trainee.initial, batched, decompositions(), fixed)
        _cast_mixed_types(graph)
    return Traced(graph, names, results)


def _cast_mixed_types(graph: fx.GraphModule) -> None:
    """Insert casts between operands of two types: ONNX operators take one type."""
    casting = type_promotion.InsertTypePromotion(graph)
    casting.interpreter = _Casting(graph, type_promotion.TypePromotionTable())
    casting.run()


class _Casting(type_promotion._TypePromotionInterpreter):
    """The exporter's own pass, with the values of the trace, because casts do not change them."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        with self._set_current_node(n):
            if rule := type_promotion.get_type_promotion_rule(n, self.type_promotion_table):
                self._maybe_promote_node(n, rule)
        return n.meta["val"]


def exported(traced: Traced) -> bytes:
    """Return the graph as ONNX."""
    with _quiet(), torch.no_grad():
        model = _translated(traced.graph)
    _ir_passes.rename_inputs(model, traced.names)
    _ir_passes.rename_outputs(model, traced.results)
    return simplified(model)


def _translated(graph: fx.GraphModule) -> onnx_ir.Model:
    """Translate a graph with the exporter's internal function.

    The public `torch.onnx.export` would trace the graph twice more, which took half of the time of compiling.
    """
    for node in graph.graph.find_nodes(op="get_attr"):
        node.meta["val"] = getattr(graph, node.target)  # the values, if the trace has only their shape
    model = onnx_ir.Model(onnx_ir.Graph([], [], nodes=[], name="main_graph"), ir_version=IR_VERSION)
    with _signatures_kept():
        _core._translate_fx_graph(
            graph.graph, model, graph_like=model.graph, owned_graphs={}, lower="at_conversion", registry=registry()
        )
    _ir_passes.add_opset_imports(model)
    return model


@contextlib.contextmanager
def _signatures_kept() -> Iterator[None]:
    """Read the schema of each ONNX operator once; the exporter reads it at each use."""
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
    """Suppress the exporter's warnings and log messages."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            log.setLevel(level)
