"""Export a prediction model as plain ONNX with its weights inside."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import compose, numpy_helper
from onnx_ir.passes import common as passes
from onnxscript import optimizer

from sojourn.errors import ModelError
from sojourn.model.predictions import SCORE
from sojourn.model.session import complete_graph
from sojourn.protocol.spec import Kit

REFERENCE_PREFIX = "reference_"
"""The prefix of graph inputs for a loss's reference models; a served model is compared with itself."""


def bake(kit: Kit, vector: NDArray[np.float32], *, scored: bool = False) -> bytes:
    """Return the kit's prediction graph with `vector` as its weights and `x` as its only input.

    scored: also output each sample's loss as `score`; the sample must be its own target.
    """
    if vector.shape != (kit.model.size,):
        raise ModelError(f"the vector has {vector.size} numbers, and the model has {kit.model.size}")
    model = _whole(kit, scored=scored)
    graph = model.graph
    inputs = [value for value in graph.input if value.name == "x"]
    models = {value.name for value in graph.input if value.name == "vector" or value.name.startswith(REFERENCE_PREFIX)}
    del graph.input[:]
    graph.input.extend(inputs)
    # Weights are split and shaped here, so that other tools read an ordinary model.
    for node in [node for node in graph.node if node.input[:1] and node.input[0] in models]:
        graph.initializer.extend(_cut(node, kit, vector.astype(np.float32)))
        graph.node.remove(node)
    room = 4 * (vector.nbytes + sum(len(tensor.data) for tensor in kit.frozen)) + (1 << 20)
    baked: onnx.ModelProto = optimizer.optimize(model, input_size_limit=room, output_size_limit=room)
    baked = _computed_once(baked, room) if scored else baked
    onnx.checker.check_model(baked, full_check=True)
    return baked.SerializeToString()


def _whole(kit: Kit, *, scored: bool) -> onnx.ModelProto:
    """Return the prediction graph from samples to outputs, including the trunk of a model that was cut."""
    after_trunk = onnx.load_from_string(complete_graph(kit, "predict"))
    if scored:
        after_trunk = _with_score(after_trunk, onnx.load_from_string(complete_graph(kit, "score")))
    if not kit.trunk:
        return after_trunk
    trunk = onnx.load_from_string(complete_graph(kit, "trunk"))
    return compose.merge_models(
        compose.add_prefix(trunk, "trunk/", rename_inputs=False, rename_outputs=False),
        after_trunk,
        io_map=[("features", "x")],
    )


def _with_score(predict: onnx.ModelProto, score: onnx.ModelProto) -> onnx.ModelProto:
    """Join both graphs on the same inputs."""
    if any(value.name == "y" for value in score.graph.input):
        raise ModelError("a sample can be scored only if it is its own target")
    scoring = compose.add_prefix(score, f"{SCORE}/", rename_inputs=False, rename_outputs=False)
    for node in scoring.graph.node:
        node.output[:] = [SCORE if name == "losses" else name for name in node.output]
        node.input[:] = [SCORE if name == "losses" else name for name in node.input]
    graph, there = predict.graph, {value.name for value in predict.graph.input}
    graph.node.extend(scoring.graph.node)
    graph.initializer.extend(scoring.graph.initializer)
    graph.value_info.extend(scoring.graph.value_info)
    graph.input.extend(value for value in scoring.graph.input if value.name not in there)
    for value in scoring.graph.output:
        value.name = SCORE if value.name == "losses" else value.name
    graph.output.extend(value for value in scoring.graph.output if value.name == SCORE)
    return predict


def _computed_once(model: onnx.ModelProto, room: int) -> onnx.ModelProto:
    """Remove repeated computations: both the predictions and the scores compute the outputs."""
    both = ir.from_proto(model)
    passes.DeduplicateInitializersPass(size_limit=room)(both)
    passes.CommonSubexpressionEliminationPass()(both)
    passes.RemoveUnusedNodesPass()(both)
    return ir.to_proto(both)


def _cut(node: onnx.NodeProto, kit: Kit, vector: NDArray[np.float32]) -> list[onnx.TensorProto]:
    """Return the outputs of the node that splits the vector, as constants."""
    if node.op_type != "Split" or len(node.output) != len(kit.model.tensors):
        raise ModelError(f"the prediction graph begins with {node.op_type}, not with a split of the vector")
    parts = np.split(vector, np.cumsum(kit.model.sizes)[:-1])
    return [numpy_helper.from_array(part, name) for name, part in zip(node.output, parts, strict=True) if name]
