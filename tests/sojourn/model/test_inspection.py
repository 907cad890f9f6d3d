"""Accepted and rejected graphs: each attack has its own error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from sojourn.errors import GraphRefused, ModelError
from sojourn.model import inspection
from sojourn.model.inspection import Signature, TensorType, inspected
from sojourn.model.kit_rules import check_graph, check_kit
from sojourn.model.predictions import Predictor
from sojourn.model.session import open_session
from sojourn.model.workload import built_in
from tests.sojourn.model.onnx_made import (
    BOOL,
    FLOAT,
    INT64,
    branches,
    elsewhere,
    graph,
    loop,
    model,
    node,
    shaped,
    sparse,
    weights,
    whole,
)


def refusal(made: ModelProto | bytes) -> str:
    data = made if isinstance(made, bytes) else made.SerializeToString()
    with pytest.raises(GraphRefused) as caught:
        open_session(data, name="it")
    return str(caught.value)


def test_signature_lists_inputs_and_outputs() -> None:
    found = inspected(model().SerializeToString())
    assert found == Signature({"x": TensorType(1, (None, 3))}, {"logits": TensorType(1, (None, 3))})
    assert str(found.inputs["x"]) == "float32[?, 3]"


def test_initialized_input_is_not_listed() -> None:
    old = model(inputs=[shaped("x"), shaped("w", FLOAT, [3, 3])])
    assert list(inspected(old.SerializeToString()).inputs) == ["x"]


def in_an_initializer() -> ModelProto:
    return model(fixed=[elsewhere(weights())])


def in_a_constant() -> ModelProto:
    constant = node("Constant", [], ["w"], value=elsewhere(weights()))
    return model([constant, node("MatMul", ["x", "w"], ["logits"])], [])


def in_a_branch() -> ModelProto:
    return branches([elsewhere(weights("inner"))])


def in_a_constant_of_a_loop() -> ModelProto:
    body = [
        node("Identity", ["go_on"], ["goes_on"]),
        node("Constant", [], ["inner"], value=elsewhere(weights())),
        node("MatMul", ["carried", "inner"], ["next"]),
    ]
    return loop([whole("rounds", 2, scalar=True)], body)


def external_data_without_location() -> ModelProto:
    """A tensor that is not marked as external, but names a file."""
    tensor = elsewhere(weights())
    tensor.ClearField("data_location")
    return model(fixed=[tensor])


def external_location_with_own_data() -> ModelProto:
    tensor = weights()
    tensor.data_location = TensorProto.EXTERNAL
    return model(fixed=[tensor])


def in_memory() -> ModelProto:
    return model(fixed=[elsewhere(weights(), "*/_ORT_MEM_ADDR_/*")])


def inside_of_the_folder() -> ModelProto:
    return model(fixed=[elsewhere(weights(), "weights.bin")])


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (in_an_initializer, "initializer 'w'"),
        (in_a_constant, "node 'the Constant' (Constant), attribute 'value'"),
        (in_a_branch, "initializer 'inner'"),
        (in_a_constant_of_a_loop, "node 'the Constant' (Constant), attribute 'value'"),
        (external_data_without_location, "initializer 'w'"),
        (external_location_with_own_data, "initializer 'w'"),
        (in_memory, "initializer 'w'"),
        (inside_of_the_folder, "initializer 'w'"),
    ],
)
def test_external_data_is_rejected(made: Callable[[], ModelProto], where: str) -> None:
    assert refusal(made()) == f"it is rejected: {where} has its data in another file: all data must be in the graph"


def test_sparse_tensors_are_rejected() -> None:
    made = model()
    made.graph.sparse_initializer.append(sparse(elsewhere(weights())))
    assert refusal(made) == "it is rejected: it has sparse initializers: only dense ones are allowed"
    constant = node("Constant", [], ["w"], sparse_value=sparse(elsewhere(weights())))
    text = refusal(model([constant, node("MatMul", ["x", "w"], ["logits"])], []))
    assert "attribute 'sparse_value' is of a type that is not allowed" in text


@pytest.mark.parametrize(
    ("operator", "domain", "words"),
    [
        ("Magic", "elsewhere", "node 'the Magic' (Magic) is of domain 'elsewhere': only the ONNX domain is allowed"),
        (
            "Gelu",
            "com.microsoft",
            "node 'the Gelu' (Gelu) is of domain 'com.microsoft': only the ONNX domain is allowed",
        ),
        ("Scan", "", "node 'the Scan' (Scan): this operator is not allowed, see docs/models.md"),
        ("RandomNormalLike", "", "(RandomNormalLike): this operator is not allowed"),
        ("StringNormalizer", "", "(StringNormalizer): this operator is not allowed"),
        ("SequenceConstruct", "ai.onnx", "(SequenceConstruct): this operator is not allowed"),
    ],
)
def test_operators_outside_the_allowlist_are_rejected(operator: str, domain: str, words: str) -> None:
    assert words in refusal(model([node(operator, ["x"], ["logits"], domain=domain)]))


def test_functions_training_info_and_device_config_are_rejected() -> None:
    function = helper.make_function("own", "Magic", ["a"], ["b"], [node("Identity", ["a"], ["b"])], [])
    made = model()
    made.functions.append(function)
    assert "it has functions" in refusal(made)
    made = model()
    made.training_info.add()
    assert "it has training_info" in refusal(made)
    made = model()
    made.configuration.add(name="two", num_devices=2)
    assert "it has configuration" in refusal(made)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (loop([], rounds=""), "the maximum number of iterations must be a constant of the graph"),
        (loop([], rounds="x"), "the maximum number of iterations must be a constant of the graph"),
        (loop([whole("rounds", 1, 2)]), "the maximum number of iterations must be a constant of the graph"),
        (loop([whole("rounds", 10_001, scalar=True)]), "has 10,001 iterations; at most 10,000 are allowed"),
        (loop([whole("rounds", -1, scalar=True)]), "has -1 iterations"),
        (loop([whole("rounds", 2**63 - 1, scalar=True)]), "at most 10,000 are allowed"),
    ],
)
def test_loops_need_a_constant_bounded_length(made: ModelProto, words: str) -> None:
    assert words in refusal(made)


def test_loop_length_from_an_input_is_rejected() -> None:
    made = loop([whole("rounds", 2, scalar=True)])
    made.graph.input.append(shaped("rounds", INT64, []))
    assert "must be a constant of the graph" in refusal(made)


def test_bounded_loop_runs() -> None:
    made = loop([whole("rounds", 3, scalar=True)])
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(Predictor(made.SerializeToString()).logits(x), np.full((2, 3), 27, np.float32))
    assert Predictor(branches([weights("inner")]).SerializeToString()).logits(x).tolist() == [[3, 3, 3], [3, 3, 3]]


def test_nested_loops_multiply_their_node_count() -> None:
    """1,000 times 1,000 iterations exceed the node limit, although each loop is within its limit."""
    inner = graph(
        [node("Identity", ["go_2"], ["goes_2"]), node("MatMul", ["carried_2", "w"], ["next_2"])],
        inputs=[shaped("at_2", INT64, []), shaped("go_2", BOOL, []), shaped("carried_2")],
        outputs=[shaped("goes_2", BOOL, []), shaped("next_2")],
    )
    body = [
        node("Identity", ["go_on"], ["goes_on"]),
        node("Loop", ["rounds", "", "carried"], ["next"], body=inner),
    ]
    assert "including loops, the graph runs more than 1,000,000 nodes" in refusal(
        loop([whole("rounds", 1000, scalar=True)], body)
    )


def test_subgraphs_are_limited_to_if_and_loop_and_to_depth_4() -> None:
    inside = graph([node("Identity", ["x"], ["y"])], inputs=[], outputs=[shaped("y")])
    assert "is a graph, which only If and Loop can have" in refusal(
        model([node("Relu", ["x"], ["logits"], body=inside)])
    )
    for level in range(5):
        then = node("If", ["condition"], [f"out_{level}"], then_branch=inside, else_branch=inside)
        inside = graph([then], inputs=[], outputs=[shaped(f"out_{level}")])
    condition = numpy_helper.from_array(np.array(True), "condition")
    outer = node("If", ["condition"], ["logits"], then_branch=inside, else_branch=inside)
    assert "graphs may be nested at most 4 deep" in refusal(model([outer], [condition]))


@pytest.mark.parametrize(
    ("operator", "fixed", "words"),
    [
        (
            node("ConstantOfShape", ["s"], ["logits"]),
            whole("s", 1 << 20, 1 << 20),
            "a tensor of 1,099,511,627,776 numbers",
        ),
        (node("Expand", ["x", "s"], ["logits"]), whole("s", 1 << 15, 1 << 15), "a tensor of 1,073,741,824 numbers"),
        (node("Tile", ["x", "s"], ["logits"]), whole("s", 1 << 15, 1 << 15), "a tensor of 1,073,741,824 numbers"),
        (node("Pad", ["x", "s"], ["logits"]), whole("s", 0, 0, 1 << 30, 0), "a tensor of 1,073,741,824 numbers"),
        (node("TopK", ["x", "s"], ["logits", "places"]), whole("s", 1 << 30), "a tensor of 1,073,741,824 numbers"),
        (node("Range", ["s", "s", "s"], ["logits"]), whole("s", 0, scalar=True), "a tensor of 268,435,457 numbers"),
    ],
)
def test_constant_sizes_are_bounded(operator, fixed: TensorProto, words: str) -> None:
    assert words in refusal(model([operator], [fixed]))


def test_kernel_windows_are_bounded() -> None:
    pool = node("MaxPool", ["x"], ["logits"], kernel_shape=[1 << 40])
    assert "attribute 'kernel_shape' is 1,099,511,627,776, but at most 65,536 is allowed" in refusal(model([pool]))


def misfit(**changes: object) -> ModelProto:
    tensor = weights()
    for name, value in changes.items():
        tensor.ClearField(name)
        if isinstance(value, list):
            getattr(tensor, name).extend(value)
        elif value is not None:
            setattr(tensor, name, value)
    return model(fixed=[tensor])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (misfit(dims=[3, 4]), "has 9 numbers of float32, but its shape has 12"),
        (misfit(dims=[2**62, 2**62]), "has 9 numbers of float32"),
        (misfit(dims=[-1]), "has an axis of -1"),
        (misfit(dims=[1] * 9), "has its dims more than 8 times"),
        (misfit(raw_data=bytes(35)), "has 8.75 numbers of float32"),
        (misfit(raw_data=None), "has 0 numbers of float32"),
        (misfit(data_type=8), "is of type 8, which is not allowed"),
        (misfit(data_type=11), "has 4.5 numbers of float64"),
        (misfit(float_data=[1.0]), "has its data in raw_data and float_data"),
        (misfit(raw_data=None, int64_data=[1] * 9), "has its data in int64_data"),
        (misfit(string_data=[b"text"]), "contains strings"),
    ],
)
def test_tensor_data_must_match_its_shape(made: ModelProto, words: str) -> None:
    assert words in refusal(made)


def test_tensor_values_may_be_raw_or_typed() -> None:
    typed = helper.make_tensor("w", FLOAT, [3, 3], [1.0] * 9)
    rounds = helper.make_tensor("rounds", INT64, [], [2])
    inspected(model(fixed=[typed]).SerializeToString())
    inspected(loop([rounds]).SerializeToString())
    constant = node("Constant", [], ["rounds"], value_int=2)
    made = loop([])
    made.graph.node.insert(0, constant)
    inspected(made.SerializeToString())


def length(data: bytes) -> bytes:
    """Return a length as a protobuf varint."""
    out, left = b"", len(data)
    while left > 127:
        out, left = out + bytes([left & 127 | 128]), left >> 7
    return out + bytes([left])


def test_duplicate_protobuf_fields_are_rejected() -> None:
    honest = model().SerializeToString()
    crafted = in_an_initializer().graph.SerializeToString()
    both = honest + b"\x3a" + length(crafted) + crafted
    assert list(ModelProto.FromString(both).graph.initializer[1].external_data)  # protobuf merges them
    assert "a model has its graph more than once" in refusal(both)
    assert "a model has its ir_version more than once" in refusal(honest + b"\x08\x09")


def test_unknown_and_truncated_fields_are_rejected() -> None:
    honest = model().SerializeToString()
    assert "it is not an ONNX file: a model has the unknown field 99" in refusal(honest + b"\x98\x06\x01")
    assert "it is not an ONNX file" in refusal(honest[:-10])
    assert "it is not an ONNX file: it contains an unterminated number" in refusal(honest + b"\xff" * 12)
    assert "its ONNX IR version is 0" in refusal(b"")
    assert "the ir_version of a model has the wrong wire type" in refusal(b"\x0a\x00")
    # With these bytes, onnxruntime would read the file in its own format.
    assert "onnxruntime's own format" in refusal(b"\x32\x06ab" + b"ORTM" + honest)


def test_duplicate_or_undefined_names_are_rejected() -> None:
    twice = [node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["a"]), node("Identity", ["a"], ["logits"])]
    assert "'a' is defined twice" in refusal(model(twice))
    assert "'w' is defined twice" in refusal(model(fixed=[weights(), weights()]))
    shadow = branches([weights("inner"), weights("x")])
    assert "'x' is defined twice" in refusal(shadow)
    assert "its output 'nothing' is not defined by any node" in refusal(model(outputs=[shaped("nothing")]))


def test_attributes_have_one_value_of_their_type() -> None:
    leaky = node("LeakyRelu", ["x"], ["logits"], alpha=0.5)
    leaky.attribute[0].i = 1
    assert "attribute 'alpha' has two values" in refusal(model([leaky]))
    twice = node("LeakyRelu", ["x"], ["logits"], alpha=0.5)
    twice.attribute.add().CopyFrom(twice.attribute[0])
    assert "attribute 'alpha' appears twice" in refusal(model([twice]))
    hidden = node("LeakyRelu", ["x"], ["logits"], alpha=0.5)
    hidden.attribute[0].tensors.add().CopyFrom(elsewhere(weights()))
    assert "attribute 'alpha' is of a type that is not allowed" in refusal(model([hidden]))
    text = node("Constant", [], ["logits"], value_string="text")
    assert "is a string: constants must be numbers" in refusal(model([text]))


def test_unsupported_versions_are_rejected() -> None:
    assert "one ONNX opset from 7 to 28, not 29" in refusal(model(opset=29))
    made = model()
    made.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    assert "not 18, 17" in refusal(made)
    made = model()
    made.ir_version = 99
    assert "its ONNX IR version is 99" in refusal(made)


def test_name_length_is_bounded() -> None:
    assert "the op_type of a node has 2000 bytes, more than 1024" in refusal(
        model([node("A" * 2000, ["x"], ["logits"])])
    )


def test_inspection_result_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    data = model([node("Neg", ["x"], ["logits"])]).SerializeToString()
    first = inspected(data)
    monkeypatch.setattr(inspection, "_Inspection", None)
    assert inspected(data) is first


def test_inspection_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_inspected", {})
    monkeypatch.setattr(inspection, "_MAX_CACHED", 3)
    for name in "abcde":
        inspected(model(outputs=[shaped(name)], nodes=[node("Neg", ["x"], [name])]).SerializeToString())
    assert [list(each.outputs) for each in inspection._inspected.values()] == [["c"], ["d"], ["e"]]


def test_built_in_kit_is_allowed() -> None:
    kit = built_in()
    check_kit(kit)
    check_graph(kit, "train")
    check_graph(kit, "predict")


def test_rejected_graph_raises_a_model_error() -> None:
    with pytest.raises(ModelError, match="release 3 of cats is rejected: it is not an ONNX file"):
        Predictor(b"nothing", "release 3 of cats")
