"""Import an ONNX file from another tool: a classifier or a regressor with one input and one output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Literal

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.inliner import inline_local_functions

from coordinator.releases.file import LARGEST_GRAPH
from sojourn.errors import ModelError
from sojourn.model.predictions import Predictor
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import generator

OLDEST_RUNTIME_IR = 10
"""The newest ONNX IR version that the oldest supported onnxruntime (1.20, with sojourn 0.2) reads."""
ROW_TOLERANCE = 1e-3
"""The tolerance relative to the largest output: another batch size may change the order of sums; mixed rows differ
more.
"""
ROWS = 8
Dtype = Literal["float32", "int64"]
Answers = Literal["logits", "outputs"]
_DTYPES: dict[int, Dtype] = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT64: "int64"}


@dataclass(frozen=True)
class Adopted:
    """A graph with the input `x` and the output `logits` or `outputs`, for any number of rows.

    classes: the number of outputs for each row: scores of classes, or values.
    """

    graph: bytes
    input: InputSpec
    classes: int


def adopt(data: bytes, where: str, answers: Answers = "logits") -> Adopted:
    """Check a graph and rename its input and output; ModelError states what is wrong with it.

    answers: the output: `logits` of classes, or `outputs` in their original units.
    """
    if len(data) > LARGEST_GRAPH:
        raise ModelError(f"{where} has {len(data):,} bytes: the maximum for a release's graph is {LARGEST_GRAPH:,}")
    model = _read(data, where)
    given = _only_input(model.graph, where)
    shape, batch = _shape(given, where)
    dtype = _DTYPES.get(given.type.tensor_type.elem_type)
    if dtype is None:
        name = onnx.TensorProto.DataType.Name(given.type.tensor_type.elem_type).lower()
        raise ModelError(f"{where}: its input {given.name!r} has the type {name}; float32 or int64 is needed")
    spec = InputSpec(shape, dtype)
    out = _only_output(model.graph, where)
    model.graph.ClearField("input")
    model.graph.input.append(given)
    _rename(model.graph, given.name, "x")
    _rename(model.graph, out.name, answers)
    fixed = model.SerializeToString()
    _open_batch(model.graph, batch)
    check(model, where)
    graph = model.SerializeToString()
    classes = _run_rows(graph, spec, batch, where, answers)
    if batch == 1:
        _compare(fixed, graph, spec, where, answers)
    return Adopted(graph, spec, classes)


def generated_rows(spec: InputSpec, rows: int, seed: int = 0) -> NDArray[np.generic]:
    """Generate rows for a graph without samples; integers are 0 and 1, which every vocabulary has."""
    draw, shape = generator(seed, "release rows"), (rows, *spec.shape)
    if spec.dtype == "int64":
        return draw.integers(0, 2, shape, dtype=np.int64)
    return draw.standard_normal(shape, dtype=np.float32)


def _read(data: bytes, where: str) -> onnx.ModelProto:
    try:
        model = onnx.load_from_string(data)
    except DecodeError as error:
        raise ModelError(f"{where} is not an ONNX file: {error}") from error
    if not model.graph.node:
        raise ModelError(f"{where} is not an ONNX file, or its graph is empty")
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _tensors(model)):
        advice = "save it with its weights inside (torch: external_data=False)"
        raise ModelError(f"{where} keeps weights in other files: {advice}")
    return inline_local_functions(model) if model.functions else model


def check(model: onnx.ModelProto, where: str) -> None:
    """Check a graph with onnx, in an IR version that each device's onnxruntime reads; ModelError states the problem."""
    model.ir_version = min(model.ir_version, OLDEST_RUNTIME_IR)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise ModelError(f"{where} does not pass onnx's checker: {str(error).strip().splitlines()[0]}") from error


def _only_input(graph: onnx.GraphProto, where: str) -> onnx.ValueInfoProto:
    """Return the only input; old files also list initialisers as inputs, which do not count."""
    fixed = {tensor.name for tensor in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    given: list[onnx.ValueInfoProto] = [value for value in graph.input if value.name not in fixed]
    if len(given) != 1:
        raise ModelError(f"{where} has {len(given)} inputs ({_names(given)}): a release must have one")
    if not given[0].type.HasField("tensor_type"):
        raise ModelError(f"{where}: its input {given[0].name!r} is not a tensor")
    return given[0]


def _only_output(graph: onnx.GraphProto, where: str) -> onnx.ValueInfoProto:
    if len(graph.output) != 1:
        raise ModelError(
            f"{where} has {len(graph.output)} outputs ({_names(graph.output)}): a release must have one, "
            "a row of scores by class"
        )
    out: onnx.ValueInfoProto = graph.output[0]
    if not out.type.HasField("tensor_type") or out.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise ModelError(f"{where}: its output {out.name!r} is not a tensor of float32")
    return out


def _shape(given: onnx.ValueInfoProto, where: str) -> tuple[tuple[int, ...], int | None]:
    """Return the shape of a row, and the number of rows if it is fixed."""
    if not given.type.tensor_type.HasField("shape") or not given.type.tensor_type.shape.dim:
        raise ModelError(f"{where}: its input {given.name!r} has no shape")
    first, *others = given.type.tensor_type.shape.dim
    if any(not axis.HasField("dim_value") or axis.dim_value < 1 for axis in others):
        raise ModelError(f"{where}: its input {given.name!r} has more open sizes than the number of rows")
    batch = first.dim_value if first.HasField("dim_value") else None
    return tuple(int(axis.dim_value) for axis in others), batch


def _open_batch(graph: onnx.GraphProto, batch: int | None) -> None:
    """Leave the number of rows open; shapes that were inferred for a fixed number are inferred again."""
    if batch == 1:
        _open_reshapes(graph)
    del graph.value_info[:]
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    if graph.output[0].type.tensor_type.shape.dim:
        graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"


def _open_reshapes(graph: onnx.GraphProto) -> None:
    """Make a flattening that was exported for one row work for any number of rows."""
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for number, node in enumerate(graph.node):
        shape = shapes.get(node.input[1]) if node.op_type == "Reshape" else None
        if shape is not None and len(shape) > 1 and shape[0] == 1:
            opened = np.array([0 if -1 in shape else -1, *shape[1:]], np.int64)  # 0: keeps the number of rows
            node.input[1] = f"{node.input[1]}/open/{number}"
            graph.initializer.append(numpy_helper.from_array(opened, node.input[1]))


def _compare(fixed: bytes, opened: bytes, spec: InputSpec, where: str, answers: Answers) -> None:
    """Check that the graph gives the same output for one row as before its batch was opened."""
    row = generated_rows(spec, 1)
    before, after = (Predictor(each, gives=(answers,)).logits(row) for each in (fixed, opened))
    if before.shape != after.shape or not np.allclose(before, after, rtol=0, atol=ROW_TOLERANCE * np.abs(before).max()):
        raise ModelError(f"{where}: its batch is fixed at 1, and with an open batch its output differs")


def _run_rows(graph: bytes, spec: InputSpec, batch: int | None, where: str, answers: Answers) -> int:
    """Run a few rows together and separately; return the number of classes or values."""
    try:
        predictor = Predictor(graph, gives=(answers,))
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    x = generated_rows(spec, ROWS)
    try:
        together, again = predictor.logits(x), predictor.logits(x)
        alone = [predictor.logits(x[at : at + 1]) for at in range(ROWS)]
    except ModelError as error:
        fixed = f"its batch is fixed at {batch} and it does not run with others" if batch else "it does not run"
        raise ModelError(f"{where}: {fixed}: {error}; export it with an open batch axis") from error
    if together.ndim != 2 or len(together) != ROWS or any(each.shape != together[:1].shape for each in alone):
        needed = "a row of scores by class is needed for each"
        raise ModelError(f"{where} returns shape {together.shape} for {ROWS} rows: {needed}")
    if together.shape[1] < 2 and answers == "logits":
        raise ModelError(
            f"{where} returns one number for each row: scores of at least two classes are needed; for a quantity "
            "use --targets"
        )
    if not np.isfinite(together).all():
        raise ModelError(f"{where} returns numbers that are not finite")
    if not np.array_equal(together, again):
        raise ModelError(f"{where} returns another output each time: a release must not be random")
    apart = float(np.abs(np.concatenate(alone) - together).max())
    if not apart <= ROW_TOLERANCE * float(np.abs(together).max()):
        raise ModelError(f"{where} returns an output for a row that depends on the other rows (difference {apart:.3g})")
    return int(together.shape[1])


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Rename a value; another value with the new name is renamed first."""
    if old == new:
        return
    taken = {name for each in graphs_within(graph) for name in _values(each)}
    if new in taken:
        _change(graph, new, next(name for at in count(1) if (name := f"{new}_{at}") not in taken))
    _change(graph, old, new)


def _change(graph: onnx.GraphProto, old: str, new: str) -> None:
    for each in graphs_within(graph):
        for node in each.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
        for value in chain(each.input, each.output, each.value_info, each.initializer):
            if value.name == old:
                value.name = new


def _values(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        yield from node.output
    yield from (value.name for value in chain(graph.input, graph.output, graph.value_info, graph.initializer))


def graphs_within(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs in its nodes: the bodies of loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs_within(inner)


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    bodies = [(each.node, each.initializer) for each in graphs_within(model.graph)]
    for nodes, fixed in [*bodies, *((function.node, ()) for function in model.functions)]:
        yield from fixed
        for node in nodes:
            for attribute in node.attribute:
                yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)


def _names(values: list[onnx.ValueInfoProto]) -> str:
    return ", ".join(value.name for value in values) or "none"
