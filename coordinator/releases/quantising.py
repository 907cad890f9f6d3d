"""Convert a prediction graph to int8: quarter-size weights, integer arithmetic, and a measured loss of accuracy."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata

from coordinator.releases.adopting import check, graphs_within
from sojourn.errors import ModelError
from sojourn.model.exemplars import Exemplars
from sojourn.model.session import RUNTIME_ERRORS, open_session, session_options
from sojourn.randomness import generator

KINDS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "MaxPool", "Relu")
"""Operators with weights, and operators that pass on their results. Norms in int8 make `resnet8` half as large again,
and slower.
"""
BATCH = 64


def quantised(graph: bytes, rows: NDArray[np.generic]) -> bytes:
    """Return the graph in int8, with the value ranges that these rows give."""
    with tempfile.TemporaryDirectory(prefix="sojourn-int8-") as folder:
        made = Path(folder) / "int8.onnx"
        try:
            quantize_static(
                _folded(graph, Path(folder) / "folded.onnx"),
                made,
                _Rows(rows),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=list(KINDS),
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                # Weights have 7 bits: x86 without VNNI adds pairs of 8-bit products in 16 bits, which would overflow.
                reduce_range=True,
            )
        except (*RUNTIME_ERRORS, ValueError, KeyError, RuntimeError) as error:
            raise ModelError(f"the graph cannot be converted to int8: {error}") from error
        model = onnx.load_model(made, load_external_data=False)
    if not any(node.op_type == "DequantizeLinear" for node in model.graph.node):
        raise ModelError(f"the graph has no operator that can be int8 ({', '.join(KINDS)} with fixed weights)")
    _remove_unused_opsets(model)
    check(model, "the int8 graph")
    data: bytes = model.SerializeToString()
    return data


def _folded(graph: bytes, path: Path) -> onnx.ModelProto:
    """Return the graph after constant folding, mainly of batch normalisations into convolutions."""
    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    open_session(graph, options)
    model = onnx.load_model(path, load_external_data=False)
    add_pre_process_metadata(model)  # otherwise the quantiser logs a warning
    return model


def _remove_unused_opsets(model: onnx.ModelProto) -> None:
    """List only operator sets that are used: an older onnxruntime refuses a graph that lists an unknown one."""
    nodes = [node for graph in graphs_within(model.graph) for node in graph.node]
    used = {node.domain for node in [*nodes, *(each for function in model.functions for each in function.node)]}
    kept = [each for each in model.opset_import if each.domain in used or not each.domain]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    del model.metadata_props[:]


def halves(samples: Exemplars) -> tuple[Exemplars, Exemplars]:
    """Split samples for calibration and for testing, half of each class."""
    _, y = samples.packed()
    order = generator(0, "calibration").permutation(len(y))
    ranks = {int(label): order[y[order] == label] for label in np.unique(y)}
    first = np.sort(np.concatenate([rows[: (len(rows) + 1) // 2] for rows in ranks.values()]))
    rest = np.setdiff1d(np.arange(len(y)), first)
    if not len(rest):
        raise ModelError(f"{len(y)} samples are too few for int8: some calibrate, others measure the loss of quality")
    return _some(samples, first), _some(samples, rest)


def _some(samples: Exemplars, rows: NDArray[np.int64]) -> Exemplars:
    """Return some of the samples, with their targets and fault marks."""
    x, y = samples.packed()
    faulty, targets = samples.faulty_mask(), samples.expected()[rows] if samples.targets else None
    some = Exemplars.of(x[rows], y[rows], targets)
    marked = None if faulty is None else tuple(map(int, np.flatnonzero(faulty[rows])))
    return msgspec.structs.replace(some, faulty=marked)


class _Rows(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Supplies rows for calibration, one batch at a time."""

    def __init__(self, rows: NDArray[np.generic]) -> None:
        self._batches = iter(rows[at : at + BATCH] for at in range(0, len(rows), BATCH))

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch; None after the last."""
        batch = next(self._batches, None)
        return None if batch is None else {"x": batch}
