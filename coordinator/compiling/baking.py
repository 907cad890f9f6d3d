"""A prediction model for anyone: plain ONNX with its weights inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import compose, numpy_helper
from onnxscript import optimizer

from sojourn.errors import ModelError
from sojourn.model.frozen import whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.protocol.spec import Kit


def bake(kit: Kit, vector: NDArray[np.float32]) -> bytes:
    """The kit's prediction graph with `vector` as its weights and `x` as its only input."""
    if vector.shape != (kit.model.size,):
        raise ModelError(f"the vector holds {vector.size} numbers, the model {kit.model.size}")
    model = _whole(kit)
    graph = model.graph
    inputs = [value for value in graph.input if value.name != "vector"]
    del graph.input[:]
    graph.input.extend(inputs)
    # Weights are cut and shaped here, so that other tools see an ordinary model.
    for node in [node for node in graph.node if node.input[:1] == ["vector"]]:
        graph.initializer.extend(_cut(node, kit, vector.astype(np.float32)))
        graph.node.remove(node)
    room = 4 * (vector.nbytes + sum(len(tensor.data) for tensor in kit.frozen)) + (1 << 20)
    baked: onnx.ModelProto = optimizer.optimize(model, input_size_limit=room, output_size_limit=room)
    onnx.checker.check_model(baked, full_check=True)
    return baked.SerializeToString()


def _whole(kit: Kit) -> onnx.ModelProto:
    """The prediction graph from samples to logits: behind its trunk, if the model was cut."""
    behind = onnx.load_from_string(whole(kit, "predict"))
    if not kit.trunk:
        return behind
    trunk = onnx.load_from_string(whole(kit, "trunk"))
    return compose.merge_models(
        compose.add_prefix(trunk, "trunk/", rename_inputs=False, rename_outputs=False),
        behind,
        io_map=[("features", "x")],
    )


def _cut(node: onnx.NodeProto, kit: Kit, vector: NDArray[np.float32]) -> list[onnx.TensorProto]:
    """The outputs of the node that splits the vector, as constants."""
    if node.op_type != "Split" or len(node.output) != len(kit.model.tensors):
        raise ModelError(f"the prediction graph begins with {node.op_type}, not with a split of the vector")
    parts = np.split(vector, np.cumsum(kit.model.sizes)[:-1])
    return [numpy_helper.from_array(part, name) for name, part in zip(node.output, parts, strict=True) if name]
