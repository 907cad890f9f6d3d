"""A prediction model for anyone: plain ONNX with its weights inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
from onnx import compose, numpy_helper
from onnx_ir.passes import common as passes
from onnxscript import optimizer

from sojourn.errors import ModelError
from sojourn.model.answers import SCORE
from sojourn.model.frozen import whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.protocol.spec import Kit

BESIDE = "beside_"
"""How the further models are called that a loss looks at; a served one is compared with itself."""


def bake(kit: Kit, vector: NDArray[np.float32], *, scored: bool = False) -> bytes:
    """The kit's prediction graph with `vector` as its weights and `x` as its only input.

    scored: it also gives the loss of each sample as `score`, which must be its own target.
    """
    if vector.shape != (kit.model.size,):
        raise ModelError(f"the vector holds {vector.size} numbers, the model {kit.model.size}")
    model = _whole(kit, scored=scored)
    graph = model.graph
    inputs = [value for value in graph.input if value.name == "x"]
    models = {value.name for value in graph.input if value.name == "vector" or value.name.startswith(BESIDE)}
    del graph.input[:]
    graph.input.extend(inputs)
    # Weights are cut and shaped here, so that other tools see an ordinary model.
    for node in [node for node in graph.node if node.input[:1] and node.input[0] in models]:
        graph.initializer.extend(_cut(node, kit, vector.astype(np.float32)))
        graph.node.remove(node)
    room = 4 * (vector.nbytes + sum(len(tensor.data) for tensor in kit.frozen)) + (1 << 20)
    baked: onnx.ModelProto = optimizer.optimize(model, input_size_limit=room, output_size_limit=room)
    baked = _computed_once(baked, room) if scored else baked
    onnx.checker.check_model(baked, full_check=True)
    return baked.SerializeToString()


def _whole(kit: Kit, *, scored: bool) -> onnx.ModelProto:
    """The prediction graph from samples to answers: behind its trunk, if the model was cut."""
    behind = onnx.load_from_string(whole(kit, "predict"))
    if scored:
        behind = _with_score(behind, onnx.load_from_string(whole(kit, "score")))
    if not kit.trunk:
        return behind
    trunk = onnx.load_from_string(whole(kit, "trunk"))
    return compose.merge_models(
        compose.add_prefix(trunk, "trunk/", rename_inputs=False, rename_outputs=False),
        behind,
        io_map=[("features", "x")],
    )


def _with_score(predict: onnx.ModelProto, score: onnx.ModelProto) -> onnx.ModelProto:
    """Both graphs on the same inputs."""
    if any(value.name == "y" for value in score.graph.input):
        raise ModelError("a sample is scored by itself only where it is its own target")
    beside = compose.add_prefix(score, f"{SCORE}/", rename_inputs=False, rename_outputs=False)
    for node in beside.graph.node:
        node.output[:] = [SCORE if name == "losses" else name for name in node.output]
        node.input[:] = [SCORE if name == "losses" else name for name in node.input]
    graph, there = predict.graph, {value.name for value in predict.graph.input}
    graph.node.extend(beside.graph.node)
    graph.initializer.extend(beside.graph.initializer)
    graph.value_info.extend(beside.graph.value_info)
    graph.input.extend(value for value in beside.graph.input if value.name not in there)
    for value in beside.graph.output:
        value.name = SCORE if value.name == "losses" else value.name
    graph.output.extend(value for value in beside.graph.output if value.name == SCORE)
    return predict


def _computed_once(model: onnx.ModelProto, room: int) -> onnx.ModelProto:
    """The graph without what it would compute twice: its answers, once for themselves and once for their scores."""
    both = ir.from_proto(model)
    passes.DeduplicateInitializersPass(size_limit=room)(both)
    passes.CommonSubexpressionEliminationPass()(both)
    passes.RemoveUnusedNodesPass()(both)
    return ir.to_proto(both)


def _cut(node: onnx.NodeProto, kit: Kit, vector: NDArray[np.float32]) -> list[onnx.TensorProto]:
    """The outputs of the node that splits the vector, as constants."""
    if node.op_type != "Split" or len(node.output) != len(kit.model.tensors):
        raise ModelError(f"the prediction graph begins with {node.op_type}, not with a split of the vector")
    parts = np.split(vector, np.cumsum(kit.model.sizes)[:-1])
    return [numpy_helper.from_array(part, name) for name, part in zip(node.output, parts, strict=True) if name]
