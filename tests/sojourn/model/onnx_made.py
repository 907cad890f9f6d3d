"""Small graphs made with the `onnx` package, valid ones and malicious ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8
SECRET = "../secret.bin"


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, outputs, name=f"the {kind}", **attributes)


def shaped(name: str, kind: int = FLOAT, shape: list[int | str | None] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, ["n", 3] if shape is None else shape)


def weights(name: str = "w", shape: tuple[int, ...] = (3, 3)) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def whole(name: str, *numbers: int, scalar: bool = False) -> TensorProto:
    return numpy_helper.from_array(np.array(numbers[0] if scalar else numbers, np.int64), name)


def graph(nodes: list[NodeProto], fixed: list[TensorProto] | None = None, **more: Any) -> GraphProto:
    inputs, outputs = more.get("inputs", [shaped("x")]), more.get("outputs", [shaped("logits")])
    return helper.make_graph(nodes, "graph", inputs, outputs, fixed or [])


def model(nodes: list[NodeProto] | None = None, fixed: list[TensorProto] | None = None, **more: Any) -> ModelProto:
    """Return a model of x w, or of the given nodes."""
    made = [node("MatMul", ["x", "w"], ["logits"])] if nodes is None else nodes
    kept = [weights()] if fixed is None else fixed
    return helper.make_model(
        graph(made, kept, **more), opset_imports=[helper.make_opsetid("", more.get("opset", 18))], ir_version=9
    )


def elsewhere(tensor: TensorProto, location: str = SECRET) -> TensorProto:
    """Return the tensor with its data in another file."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "36")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def sparse(tensor: TensorProto) -> SparseTensorProto:
    made = SparseTensorProto(dims=[3, 3])
    made.values.CopyFrom(tensor)
    made.indices.CopyFrom(whole("places", *range(9)))
    return made


def loop(fixed: list[TensorProto], body: list[NodeProto] | None = None, rounds: str = "rounds") -> ModelProto:
    """Return a model whose logits are x after a loop."""
    inside = graph(
        body or [node("Identity", ["go_on"], ["goes_on"]), node("MatMul", ["carried", "w"], ["next"])],
        inputs=[shaped("at", INT64, []), shaped("go_on", BOOL, []), shaped("carried")],
        outputs=[shaped("goes_on", BOOL, []), shaped("next")],
    )
    going = node("Loop", [rounds, "", "x"], ["logits"], body=inside)
    return model([going], [*fixed, weights()])


def branches(then: list[TensorProto]) -> ModelProto:
    """Return a model in which one branch has its own tensors."""
    one = graph([node("MatMul", ["x", "inner"], ["yes"])], then, inputs=[], outputs=[shaped("yes")])
    other = graph([node("Identity", ["x"], ["no"])], inputs=[], outputs=[shaped("no")])
    condition = numpy_helper.from_array(np.array(True), "condition")
    return model([node("If", ["condition"], ["logits"], then_branch=one, else_branch=other)], [condition])
