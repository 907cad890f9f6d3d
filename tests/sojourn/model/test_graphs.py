"""The graph runner, on handwritten graphs without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from sojourn.errors import DataError, GraphRefused
from sojourn.model.graphs import Graphs, check_probe, probe_vector
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, Probe, TensorSpec

FEATURES = 3
Shape = Sequence[str | int]


def graph(nodes: list[NodeProto], inputs: dict[str, tuple[int, Shape]], outputs: dict[str, Shape]) -> bytes:
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    whole = helper.make_graph(
        nodes, "graph", values, results, [numpy_helper.from_array(np.array([FEATURES, 1]), "column")]
    )
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def kit() -> Kit:
    """loss = mean((x w)^2) / 2 over two "classes", whose gradient by w is x^T x w / batch."""
    vector = (TensorProto.FLOAT, [FEATURES])
    x: tuple[int, Shape] = (TensorProto.FLOAT, ["batch", FEATURES])
    y = (TensorProto.INT64, ["batch"])
    answers = [
        helper.make_node("Reshape", ["vector", "column"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["score"]),
    ]
    train = [
        *answers,
        helper.make_node("Mul", ["score", "score"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["mean"], keepdims=0),
        helper.make_node("Constant", [], ["half"], value_float=0.5),
        helper.make_node("Mul", ["mean", "half"], ["loss"]),
        helper.make_node("Mul", ["x", "score"], ["each"]),
        helper.make_node("Constant", [], ["first"], value_ints=[0]),
        helper.make_node("ReduceMean", ["each", "first"], ["gradient"], keepdims=0),
    ]
    w = probe_vector([FEATURES]).astype(np.float64)
    return Kit(
        model=ModelSpec((TensorSpec("w", (FEATURES, 1)),)),
        input=InputSpec((FEATURES,)),
        classes=("no", "yes"),
        noise=(),
        train=graph(train, {"vector": vector, "x": x, "y": y}, {"loss": [], "gradient": [FEATURES]}),
        predict=graph(
            [*answers, helper.make_node("Concat", ["score", "score"], ["logits"], axis=1)],
            {"vector": vector, "x": x},
            {"logits": ["batch", 2]},
        ),
        probe=Probe(
            x=np.eye(FEATURES, dtype=np.float32).tobytes(),
            y=(0, 1, 0),
            noise_seed=1,
            loss=float((w * w).mean() / 2),
            norm=float(np.linalg.norm(w / 3)),
            places=(0, 2),
            values=(w[0] / 3, w[2] / 3),
        ),
    )


def test_loss_gradient_and_logits_match_hand_computation() -> None:
    graphs = Graphs(kit(), threads=1)
    vector = np.array([1, 2, 3], np.float32)
    x = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    loss, gradient = graphs.loss_and_gradient(vector, x, np.array([0, 1]))
    assert loss == 1.25
    np.testing.assert_array_equal(gradient, np.array([0.5, 1, 0], np.float32))
    np.testing.assert_array_equal(graphs.logits(vector, x), np.array([[1, 1], [2, 2]], np.float32))


def test_sessions_are_created_on_demand() -> None:
    broken = msgspec.structs.replace(kit(), train=b"not a graph")
    graphs = Graphs(broken)
    assert graphs.logits(np.ones(FEATURES, np.float32), np.ones((1, FEATURES), np.float32)).tolist() == [[3, 3]]
    with pytest.raises(GraphRefused, match="the training graph is rejected: it is not an ONNX file"):
        check_probe(broken, graphs)


@pytest.mark.parametrize("labels", [[0, 2], [-1, 0], []])
def test_labels_out_of_range_are_rejected(labels: list[int]) -> None:
    x = np.ones((len(labels), FEATURES), np.float32)
    with pytest.raises(DataError, match="labels"):
        Graphs(kit()).loss_and_gradient(np.ones(FEATURES, np.float32), x, np.array(labels, np.int64))


def test_wrong_probe_values_are_reported() -> None:
    right = kit()
    assert check_probe(right, Graphs(right)) is None
    wrong = msgspec.structs.replace(right, probe=msgspec.structs.replace(right.probe, values=(1.0, 1.0)))
    assert "differs" in (check_probe(wrong, Graphs(wrong)) or "")


def test_probe_vector_equals_its_formula_across_blocks() -> None:
    vector = probe_vector([150_000, 50_000])
    expected = (0.1 * np.sin(np.arange(1, 200_001, dtype=np.float64))).astype(np.float32)
    np.testing.assert_array_equal(vector, expected)
    assert probe_vector([]).size == 0
    assert vector[0] == np.float32(0.08414709848078965)


def test_probe_vector_with_spread_is_uniform_within_it() -> None:
    sizes, spread = [150_000, 50_000], [0.5, 2.0]
    first, second = np.split(probe_vector(sizes, spread), [150_000])
    for part, most in zip((first, second), spread, strict=True):
        assert 0.99 * most < np.abs(part).max() <= most
        assert abs(part.mean()) < 0.01 * most
        assert abs(part.std() - most / np.sqrt(3)) < 0.01 * most
        assert abs(np.corrcoef(part[:-1], part[1:])[0, 1]) < 0.02
    assert probe_vector([3], [1.0])[0] == np.float32(1 - 4 * abs(43758.5453 * np.sin(12.9898) % 1 - 0.5))


def test_no_torch_or_onnx_is_imported() -> None:
    code = "import sys, sojourn.model.graphs; print(sorted({'torch', 'onnx', 'onnxscript'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
