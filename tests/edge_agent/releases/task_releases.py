"""Small handwritten releases of every kind of task."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from sojourn.protocol.release import AnomalyRule, Card, ProbeCheck, ProbeScores
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, Target, TaskSpec, Window
from tests.edge_agent.releases.releases_made import card_of, graph_of

VALUES = TaskSpec("regression", (2,), Target((2,)), Strata(2, centres=((0.0, 0.0), (9.0, 9.0)), scale=(1.0, 1.0)),
                  names=("temperature", "load"))  # fmt: skip
LABELS = TaskSpec("multilabel", (3,), Target((3,)), Strata(3))
SERIES = TaskSpec("forecast", (2, 1), Target((2, 1)), Strata(2, edges=(5.0,)), names=("load",), window=Window(3, 2))
TOKENS = TaskSpec("tokens", (3, 4), Target((3,), "int64"), Strata(1))
ANOMALIES = TaskSpec("reconstruction", (3,), None, Strata(1))


def regression(version: int = 1, weights: Any = None, **more: Any) -> dict[str, Any]:
    """temperature, load = x w."""
    weights = np.array([[1, 0], [0, 2], [0, 0]], np.float32) if weights is None else np.asarray(weights, np.float32)
    card = card_of(version, weights, task=VALUES, classes=(), **more)
    return {"graph": graph_of(weights, output="outputs"), "card": card}


def multilabel(version: int = 1) -> dict[str, Any]:
    """The logit of label i is x_i."""
    card = card_of(version, np.eye(3), task=LABELS)
    return {"graph": graph_of(np.eye(3), output="outputs"), "card": card}


def forecast(version: int = 1) -> dict[str, Any]:
    """Forecast from (3 steps, 1 channel): the newest step, twice."""
    weights = np.array([[0, 0], [0, 0], [1, 1]], np.float32)
    nodes = [helper.make_node("Flatten", ["x"], ["v"], axis=1), helper.make_node("MatMul", ["v", "w"], ["flat"]),
             helper.make_node("Unsqueeze", ["flat", "axes"], ["outputs"])]  # fmt: skip
    fixed = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([2]), "axes")]
    probe = ProbeCheck(1, np.ones(3, "<f4").tobytes(), np.ones(2, "<f4").tobytes(), 1e-4)
    card = card_of(version, task=SERIES, classes=(), input=InputSpec((3, 1)), probe=probe)
    return {"graph": _graph(nodes, (3, 1), {"outputs": (2, 1)}, fixed), "card": card}


def tokens(version: int = 1) -> dict[str, Any]:
    """The token after t is t + 1 of 4: its logit is 2, the others are 0."""
    table = np.roll(np.eye(4, dtype=np.float32) * 2, 1, axis=1)
    nodes, fixed = [helper.make_node("Gather", ["t", "x"], ["outputs"])], [numpy_helper.from_array(table, "t")]
    x = np.array([[0, 1, 2]])
    probe = ProbeCheck(1, x.astype("<i8").tobytes(), table[x].astype("<f4").tobytes(), 1e-4)
    card = card_of(version, task=TOKENS, classes=(), input=InputSpec((3,), "int64"), probe=probe)
    return {"graph": _graph(nodes, (3,), {"outputs": (3, 4)}, fixed, TensorProto.INT64), "card": card}


def reconstruction(version: int = 1, scale: float = 1.0, **more: Any) -> dict[str, Any]:
    """Reconstructs 0 for every sample; the score is the mean square of the sample, times `scale`."""
    nodes = [
        helper.make_node("Mul", ["x", "nothing"], ["outputs"]),
        helper.make_node("Sub", ["outputs", "x"], ["error"]),
        helper.make_node("Mul", ["error", "error"], ["square"]),
        helper.make_node("ReduceMean", ["square", "axes"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "scale"], ["score"]),
    ]
    given = {"nothing": np.zeros((), np.float32), "axes": np.array([1]), "scale": np.array(scale, np.float32)}
    fixed = [numpy_helper.from_array(values, name) for name, values in given.items()]
    x = np.diag([1.0, 2.0, 3.0]).astype("<f4")
    scores = ProbeScores((np.square(x).mean(axis=1) * scale).astype("<f4").tobytes(), 1e-4)
    probe = ProbeCheck(3, x.tobytes(), np.zeros((3, 3), "<f4").tobytes(), 1e-4, scores)
    rule = AnomalyRule(0.9, 7.0, 12)
    fields: dict[str, Any] = {"task": ANOMALIES, "classes": (), "probe": probe, "anomaly": rule} | more
    card: Card = card_of(version, **fields)
    return {"graph": _graph(nodes, (3,), {"outputs": (3,), "score": ()}, fixed), "card": card}


def _graph(
    nodes: Any, taken: tuple[int, ...], given: dict[str, tuple[int, ...]], fixed: Any, dtype: int = TensorProto.FLOAT
) -> bytes:
    made = helper.make_graph(
        nodes,
        "release",
        [helper.make_tensor_value_info("x", dtype, ["rows", *taken])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", *shape]) for name, shape in given.items()],
        fixed,
    )
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())
