"""Tests of ONNX files from other tools: which become releases, and the errors of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from coordinator.releases import adopting
from coordinator.releases.adopting import adopt
from sojourn.errors import ModelError
from sojourn.protocol.spec import InputSpec
from tests.coordinator.releases.release_material import linear, shaped

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node
ROWS = np.random.default_rng(5).standard_normal((6, 4)).astype(np.float32)


def took(model: onnx.ModelProto) -> adopting.Adopted:
    return adopt(model.SerializeToString(), "model.onnx")


def answers(graph: bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["x"]
    assert [each.name for each in session.get_outputs()] == ["logits"]
    logits: np.ndarray = session.run(None, {"x": x})[0]
    return logits


def weights(model: onnx.ModelProto) -> list[np.ndarray]:
    return [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]


def test_input_and_output_are_renamed_and_nothing_else_changes() -> None:
    model = linear()
    w, b = weights(model)
    adopted = took(model)
    assert (adopted.input, adopted.classes) == (InputSpec((4,)), 3)
    assert answers(adopted.graph, ROWS) == pytest.approx(ROWS @ w + b, abs=1e-5)


def test_conflicting_names_are_replaced() -> None:
    nodes = [
        node("Gemm", ["features", "x", "b"], ["logits"]),
        node("Relu", ["logits"], ["logits_1"]),
        node("Identity", ["logits_1"], ["scores"]),
    ]
    model = linear(nodes=nodes)
    model.graph.initializer[0].name = "x"
    w, b = weights(model)
    assert answers(took(model).graph, ROWS) == pytest.approx(np.maximum(ROWS @ w + b, 0), abs=1e-5)


def test_names_inside_branches_are_replaced() -> None:
    def branch(kind: str) -> onnx.GraphProto:
        out = shaped("out", FLOAT, ["n", 3])
        return helper.make_graph([node(kind, ["features", "w"], ["out"])], kind, [], [out])

    yes = numpy_helper.from_array(np.array(True), "yes")
    either = node("If", ["yes"], ["scores"], then_branch=branch("MatMul"), else_branch=branch("Gemm"))
    model = linear(nodes=[either])
    model.graph.initializer.append(yes)
    assert answers(took(model).graph, ROWS) == pytest.approx(ROWS @ weights(model)[0], abs=1e-5)


def test_batch_of_one_becomes_dynamic_if_possible() -> None:
    model = linear(inputs=[shaped("features", FLOAT, [1, 4])], outputs=[shaped("scores", FLOAT, [1, 3])])
    w, b = weights(model)
    assert answers(took(model).graph, ROWS) == pytest.approx(ROWS @ w + b, abs=1e-5)


@pytest.mark.parametrize("shape", [[1, 4], [1, -1], [-1, 4]])
def test_fixed_flatten_shapes_become_dynamic(shape: list[int]) -> None:
    nodes = [node("Reshape", ["features", "shape"], ["flat"]), node("Gemm", ["flat", "w", "b"], ["scores"])]
    one = {"inputs": [shaped("features", FLOAT, [1, 2, 2])], "outputs": [shaped("scores", FLOAT, [1, 3])]}
    model = linear(nodes=nodes, **one)
    w, b = weights(model)
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape), "shape"))
    assert answers(took(model).graph, ROWS.reshape(6, 2, 2)) == pytest.approx(ROWS @ w + b, abs=1e-5)


def test_fixed_batch_that_cannot_change_is_rejected() -> None:
    one = {"inputs": [shaped("features", FLOAT, [1, 4])], "outputs": [shaped("scores", FLOAT, [1, 3])]}
    nodes = [node("Gemm", ["features", "w", "b"], ["sum"]), node("Expand", ["zero", "shape"], ["only"])]
    stuck = linear(nodes=[*nodes, node("Concat", ["sum", "only"], ["wide"], axis=1)], **one)
    stuck.graph.node.append(node("Gemm", ["wide", "v"], ["scores"]))
    for name, value in {"zero": np.zeros((1, 1)), "v": np.ones((5, 3))}.items():
        stuck.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    stuck.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "shape"))
    with pytest.raises(ModelError, match=r"its batch is fixed at 1 and it does not run with others: .*open batch axis"):
        took(stuck)
    # The graph reshapes a weight like an input: opened, it would be another graph.
    reshape = node("Reshape", ["v", "shape"], ["row"])
    nodes = [reshape, node("MatMul", ["features", "w"], ["sum"]), node("Mul", ["sum", "row"], ["scores"])]
    other = linear(nodes=nodes, **one)
    for name, value in {"v": np.array([[1.0], [2.0], [3.0]], np.float32), "shape": np.array([1, -1])}.items():
        other.graph.initializer.append(numpy_helper.from_array(value, name))
    with pytest.raises(ModelError, match=r"fixed at 1|for 8 rows"):
        took(other)


def test_integer_inputs_and_legacy_initializers_are_accepted() -> None:
    mean = node("ReduceMean", ["rows"], ["scores"], axes=[1], keepdims=0)
    nodes = [node("Gather", ["w", "features"], ["rows"]), mean]
    given = [shaped("features", INT64, ["n", 5]), shaped("w", FLOAT, [4, 3])]
    model = linear(nodes=nodes, inputs=given, opset=17)
    adopted = took(model)
    assert adopted.input == InputSpec((5,), "int64")
    x = np.array([[0, 1, 2, 3, 3]])
    assert answers(adopted.graph, x)[0] == pytest.approx(weights(model)[0][x[0]].mean(0), abs=1e-6)


def test_newer_ir_version_is_lowered_for_old_devices() -> None:
    model = linear()
    model.ir_version = 11
    assert onnx.load_from_string(took(model).graph).ir_version == 10


def two_inputs() -> onnx.ModelProto:
    given = [shaped("features", FLOAT, ["n", 4]), shaped("more", FLOAT, ["n", 3])]
    nodes = [node("Gemm", ["features", "w", "b"], ["sum"]), node("Add", ["sum", "more"], ["scores"])]
    return linear(nodes=nodes, inputs=given)


def two_outputs() -> onnx.ModelProto:
    nodes = [*linear().graph.node, node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0)]
    return linear(nodes=nodes, outputs=[shaped("label", INT64, ["n"]), shaped("scores", FLOAT, ["n", 3])])


def external() -> onnx.ModelProto:
    model = linear()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    tensor.ClearField("raw_data")
    return model


def foreign_operator() -> onnx.ModelProto:
    model = linear(nodes=[helper.make_node("Magic", ["features"], ["scores"], domain="elsewhere")])
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    return model


def after(kind: str, shape: list[int | str | None], **attributes: Any) -> onnx.ModelProto:
    """Return the linear model with one more operator."""
    nodes = [node("Gemm", ["features", "w", "b"], ["sum"]), node(kind, ["sum"], ["scores"], **attributes)]
    return linear(nodes=nodes, outputs=[shaped("scores", FLOAT, shape)])


def dropping() -> onnx.ModelProto:
    """Return the linear model with an active dropout."""
    model = linear()
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.array(0.5, np.float32), "half"), numpy_helper.from_array(np.array(True), "on")]
    )
    model.graph.node[0].output[0] = "sum"
    model.graph.node.append(node("Dropout", ["sum", "half", "on"], ["scores"]))
    return model


def not_a_number() -> onnx.ModelProto:
    model = linear()
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.full(3, np.nan, np.float32), "b"))
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (two_inputs(), r"has 2 inputs \(features, more\)"),
        (two_outputs(), r"has 2 outputs \(label, scores\)"),
        (linear(inputs=[shaped("features", TensorProto.UINT8, ["n", 4])]), "has the type uint8; float32 or int64"),
        (linear(outputs=[shaped("scores", TensorProto.DOUBLE, ["n", 3])]), "'scores' is not a tensor of float32"),
        (linear(inputs=[shaped("features", FLOAT, ["n", "width"])]), "has more open sizes than the number of rows"),
        (linear(inputs=[helper.make_tensor_value_info("features", FLOAT, None)]), "has no shape"),
        (after("ReduceSum", ["n", 1], keepdims=1), "for 8 rows: a row of scores by class"),
        (after("ReduceMax", ["n"], axes=[1], keepdims=0), "checker"),
        (external(), "keeps weights in other files"),
        (foreign_operator(), "only the ONNX domain is allowed"),
        (after("RandomNormalLike", ["n", 3]), r"\(RandomNormalLike\): this operator is not allowed"),
        (dropping(), "another output each time"),
        (after("Softmax", ["n", 3], axis=0), "an output for a row that depends on the other rows"),
        (not_a_number(), "not finite"),
        (linear(nodes=[node("Gemm", ["features", "nowhere"], ["scores"])]), "checker: Nodes in a graph must be"),
        (linear(nodes=[]), "not an ONNX file, or its graph is empty"),
    ],
)
def test_unsuitable_model_reports_reason(model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        took(model)
    assert str(caught.value).startswith("model.onnx")


def test_single_score_is_not_a_classification() -> None:
    shapes = {"w": (4, 1), "b": (1,)}
    one = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    with pytest.raises(ModelError, match="at least two classes"):
        took(linear(weights=one, outputs=[shaped("scores", FLOAT, ["n", 1])]))


@pytest.mark.parametrize("data", [b"", b"hello", bytes(100), linear().SerializeToString()[:-40]])
def test_non_onnx_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(ModelError, match=r"model.onnx"):
        adopt(data, "model.onnx")


def test_oversized_graph_is_rejected(monkeypatch) -> None:
    monkeypatch.setattr(adopting, "LARGEST_GRAPH", 100)
    with pytest.raises(ModelError, match="the maximum for a release's graph is 100"):
        took(linear())
