"""Makes an exported graph small: nothing computed twice, nothing unused, no notes of the exporter."""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes import Sequential, common
from onnxscript import optimizer

# onnxruntime 1.20 reads up to 10.
IR_VERSION = 9


def tidied(model: onnx_ir.Model) -> bytes:
    """The graph's bytes."""
    # The exporter's own optimisation also tries hundreds of rewrites, which takes longer than all else together.
    common.InlinePass()(model)
    optimizer.fold_constants_ir(model)
    _spare_copies(model.graph)
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
    # Shapes of values in between are notes too: onnxruntime infers its own.
    del proto.graph.value_info[:]
    return proto.SerializeToString(deterministic=True)


def _spare_copies(graph: onnx_ir.Graph) -> None:
    """Let products of matrices repeat one of theirs for the whole batch, instead of making copies of it before.

    torch writes a layer on samples by steps as a batch of products, with the weights once for each: where these are
    constants, whoever loads the graph would keep all copies in memory.
    """
    for node in graph:
        if node.op_type == "MatMul":
            for at, other in ((0, 1), (1, 0)):
                if (source := _repeated(node.inputs[at], node.inputs[other])) is not None:
                    node.replace_input_with(at, source)
                    break


def _repeated(value: onnx_ir.Value | None, other: onnx_ir.Value | None) -> onnx_ir.Value | None:
    """What a value holds a copy of for each of the other's matrices; None if it does not."""
    made = value.producer() if value is not None else None
    if value is None or other is None or made is None or made.op_type != "Expand":
        return None
    source = made.inputs[0]
    shapes = [each.shape for each in (source, value, other) if each is not None and each.shape is not None]
    if len(shapes) < 3:  # not all are known
        return None
    before, after, beside = (list(shape) for shape in shapes)
    same = before[-2:] == after[-2:] and len(before) <= len(after) == len(beside) and after[:-2] == beside[:-2]
    return source if same else None
