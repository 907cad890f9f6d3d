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
