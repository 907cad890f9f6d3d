"""A prediction model for anyone: plain ONNX with its weights inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper
from onnxscript import optimizer

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.spec import Kit


def bake(kit: Kit, vector: NDArray[np.float32]) -> bytes:
    """The kit's prediction graph with `vector` as its weights and `x` as its only input."""
    if vector.shape != (kit.model.size,):
        raise ModelError(f"the vector holds {vector.size} numbers, the model {kit.model.size}")
    model = onnx.load_from_string(kit.predict)
    inputs = [value for value in model.graph.input if value.name != "vector"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.append(numpy_helper.from_array(vector.astype(np.float32), "vector"))
    # Folding cuts the vector into the layers' weights, so that other tools see an ordinary model.
    room = 4 * vector.nbytes + (1 << 20)
    baked: onnx.ModelProto = optimizer.optimize(model, input_size_limit=room, output_size_limit=room)
    onnx.checker.check_model(baked, full_check=True)
    return baked.SerializeToString()
