"""Inconsistent kits are rejected before a run, and inconsistent results after it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from sojourn.errors import GraphRefused
from sojourn.model.graphs import Graphs
from sojourn.model.kit_rules import check_kit
from sojourn.model.workload import built_in
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, TensorSpec, Trunk

KIT = built_in()


def changed(**fields: Any) -> Kit:
    return msgspec.structs.replace(KIT, **fields)


def probed(**fields: Any) -> Kit:
    return changed(probe=msgspec.structs.replace(KIT.probe, **fields))


@pytest.mark.parametrize(
    ("kit", "words"),
    [
        (changed(model=ModelSpec(())), "a model of 0 tensors with 0 numbers"),
        (
            changed(model=ModelSpec((TensorSpec("w", (1 << 20, 1 << 20)),))),
            "a model of 1 tensors with 1,099,511,627,776",
        ),
        (changed(model=ModelSpec((TensorSpec("w", (3,)), TensorSpec("w", (3,))))), "two tensors with the same name"),
        (changed(model=ModelSpec((TensorSpec("w" * 2000, (3,)),))), "a name that is too long"),
        (changed(linear=("nothing",)), "a layer that is not a tensor of the model"),
        (changed(classes=()), "0 classes"),
        (changed(classes=("a", "a")), "two with the same name"),
        (changed(input=InputSpec((1 << 15, 1 << 15))), "a sample or its noise that is too large"),
        (changed(noise=((1 << 30,),)), "a sample or its noise that is too large"),
        (changed(trunk=Trunk(b"", (1 << 10, 1 << 9))), "a trunk with 524,288 features for a sample"),
        (probed(y=()), "a probe of 0 rows"),
        (probed(y=tuple([10] * len(KIT.probe.y))), "labels that are not classes"),
        (probed(x=b"short"), "rows do not have the input's shape"),
        (probed(places=()), r"values for 0 places"),
        (probed(places=tuple([KIT.model.size] * len(KIT.probe.places))), "places outside the model"),
        (probed(places=tuple([-1] * len(KIT.probe.places))), "places outside the model"),
        (probed(noise_seed=-1), "a probe with the seed -1"),
        (probed(spread=(1.0,)), "spreads for 1 of"),
        (probed(spread=(math.inf,) * len(KIT.model.tensors)), "an infinite spread"),
    ],
)
def test_inconsistent_kits_are_rejected(kit: Kit, words: str) -> None:
    with pytest.raises(GraphRefused, match=f"the kit is rejected: .*{words}"):
        Graphs(kit)


def test_built_in_kit_is_valid() -> None:
    check_kit(KIT)


def of(data: bytes) -> ModelProto:
    model: ModelProto = ModelProto.FromString(data)
    return model


def test_graph_inputs_and_outputs_must_match_the_kit() -> None:
    more = of(KIT.train)
    more.graph.output.append(helper.make_tensor_value_info("x_out", TensorProto.FLOAT, None))
    more.graph.node.append(helper.make_node("Identity", ["x"], ["x_out"]))
    with pytest.raises(
        GraphRefused, match="the training graph returns gradient, loss, x_out instead of gradient, loss"
    ):
        step(changed(train=more.SerializeToString()))
    wide = of(KIT.train)
    wide.graph.output[1].type.tensor_type.shape.dim[0].dim_value = KIT.model.size + 1
    output = f"returns gradient as float32.{KIT.model.size + 1}. instead of float32.{KIT.model.size}."
    with pytest.raises(GraphRefused, match=output):
        step(changed(train=wide.SerializeToString()))
    other = of(KIT.predict)
    other.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(
        GraphRefused, match=r"the prediction graph returns logits as float64\[\?, 10\] instead of float32"
    ):
        answers(changed(predict=other.SerializeToString()))


def test_results_of_undeclared_shape_are_rejected_at_run_time() -> None:
    """A graph without declared shapes is rejected when it runs."""
    train = of(KIT.train)
    del train.graph.output[:]
    train.graph.output.extend(
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("gradient", TensorProto.FLOAT, None),
        ]
    )
    for node in train.graph.node:
        node.output[:] = ["own_gradient" if name == "gradient" else name for name in node.output]
    train.graph.node.append(helper.make_node("Concat", ["own_gradient", "vector"], ["gradient"], axis=0))
    size = KIT.model.size
    with pytest.raises(GraphRefused, match=rf"a gradient of float32\({2 * size},\) instead of float32\({size},\)"):
        step(changed(train=train.SerializeToString()))
    predict = of(KIT.predict)
    predict.graph.output[0].CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, None))
    for node in predict.graph.node:
        node.output[:] = ["own_logits" if name == "logits" else name for name in node.output]
    predict.graph.node.append(helper.make_node("Concat", ["own_logits", "own_logits"], ["logits"], axis=1))
    with pytest.raises(GraphRefused, match=r"a logits of float32\(2, 20\) instead of float32\(2, 10\)"):
        answers(changed(predict=predict.SerializeToString()))


def trunk(inputs: dict[str, Any], outputs: dict[str, Any], *, doubled: bool = False) -> bytes:
    """Return a trunk that outputs its input, or twice its input, optionally with other names and shapes."""
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in named.items()]
        for named in (inputs, outputs)
    ]
    taken, given = next(iter(inputs)), next(iter(outputs))
    node = helper.make_node("Concat", [taken, taken] if doubled else [taken], [given], axis=-1)
    graph = helper.make_graph([node], "trunk", values[0], values[1])
    opset = helper.make_opsetid("", 18)
    return bytes(helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString())


def test_trunk_must_map_samples_to_features() -> None:
    shape = ["batch", *KIT.input.shape]
    kit = changed(trunk=Trunk(trunk({"x": shape}, {"features": shape}), KIT.input.shape))
    assert np.array_equal(Graphs(kit).features(rows() + 3), rows() + 3)
    for graph, words in (
        (trunk({"z": shape}, {"features": shape}), "the trunk takes z instead of x"),
        (trunk({"x": shape}, {"gradient": shape}), "the trunk returns gradient instead of features"),
        (trunk({"x": shape, "key": [1]}, {"features": shape}), "the trunk takes key, x instead of x"),
        (trunk({"x": shape[:-1]}, {"features": shape}), "the trunk takes x as"),
        (trunk({"x": shape}, {"features": shape[:-1]}), "the trunk returns features as"),
        (trunk({"x": shape}, {"features": None}, doubled=True), r"a features of float32\(1, 1, 28, 56\) instead of"),
    ):
        with pytest.raises(GraphRefused, match=words):
            Graphs(changed(trunk=Trunk(graph, KIT.input.shape))).features(rows())


def step(kit: Kit) -> None:
    Graphs(kit).loss_and_gradient(np.zeros(kit.model.size, np.float32), rows(), np.array([0, 1]))


def answers(kit: Kit) -> None:
    Graphs(kit).logits(np.zeros(kit.model.size, np.float32), rows())


def rows() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros((2, *KIT.input.shape), np.float32)
