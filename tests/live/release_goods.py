"""Releases of a digits classifier: good ones, and one of each bad kind."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression

from coordinator.jobs.data import digits_split
from coordinator.releases.file import ReleaseFile, release_of
from sojourn.protocol.release import Card, ProbeCheck
from sojourn.protocol.spec import InputSpec

CLASSES = tuple(str(digit) for digit in range(10))


@cache
def _weights() -> tuple[np.ndarray, np.ndarray]:
    x, y = digits_split(train=True)
    fitted = LogisticRegression(max_iter=300).fit(x.reshape(len(x), -1), y)
    return fitted.coef_.T.astype(np.float32), fitted.intercept_.astype(np.float32)


def digits_release(version: int, *, weight: int = 0) -> ReleaseFile:
    """Return a good release; `weight` idle numbers make its transfer take time."""
    w, b = _weights()
    return _release(version, w, b, idle=weight)


def forgetful(version: int) -> ReleaseFile:
    """Return a release trained on the digits in another order."""
    w, b = _weights()
    return _release(version, np.roll(w, 1, axis=1), np.roll(b, 1))


def slow(version: int) -> ReleaseFile:
    """Return a slow release."""
    w, b = _weights()
    return _release(version, w, b, detour=60)


def broken(version: int) -> ReleaseFile:
    """Return a release that is not a graph."""
    good = digits_release(version)
    return release_of(good.card, b"this is not a model" * 100)


def _release(version: int, w: np.ndarray, b: np.ndarray, *, idle: int = 0, detour: int = 0) -> ReleaseFile:
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["plain"])]
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    last = "plain"
    if detour:
        width = 256
        weights += [
            numpy_helper.from_array(np.zeros((10, width), np.float32), "into"),
            numpy_helper.from_array(np.full((width, width), 1e-3, np.float32), "round"),
            numpy_helper.from_array(np.zeros((width, 10), np.float32), "out"),
        ]
        nodes.append(helper.make_node("MatMul", [last, "into"], ["d0"]))
        nodes += [helper.make_node("MatMul", [f"d{n}", "round"], [f"e{n}"]) for n in range(detour)]
        nodes += [helper.make_node("Tanh", [f"e{n}"], [f"d{n + 1}"]) for n in range(detour)]
        nodes.append(helper.make_node("MatMul", [f"d{detour}", "out"], ["nothing"]))
        nodes.sort(key=lambda node: _place(node.output[0], detour))
        nodes.append(helper.make_node("Add", [last, "nothing"], ["sum"]))
        last = "sum"
    if idle:
        noise = np.random.default_rng(version).standard_normal(idle, np.float32)
        weights.append(numpy_helper.from_array(noise, "idle"))
        nodes += [
            helper.make_node("ReduceMin", ["idle"], ["least"], keepdims=0),
            helper.make_node("Sub", ["least", "least"], ["zero"]),
            helper.make_node("Add", [last, "zero"], ["heavy"]),
        ]
        last = "heavy"
    nodes.append(helper.make_node("Identity", [last], ["logits"]))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    rows = digits_split(train=False)[0][:4].reshape(4, 64).astype(np.float32)
    probe = ProbeCheck(4, rows.tobytes(), (rows @ w + b).astype(np.float32).tobytes(), 1e-2)
    card = Card(
        line="digits",
        version=version,
        created="2026-01-01T00:00:00Z",
        classes=CLASSES,
        input=InputSpec((64,)),
        probe=probe,
        accuracy=0.95,
    )
    return release_of(card, model.SerializeToString())


def _place(output: str, detour: int) -> float:
    """Return a node's place on the detour: each after its inputs."""
    if output in ("plain", "nothing"):
        return -1 if output == "plain" else detour + 1
    return int(output[1:]) + (0.5 if output[0] == "e" else 0)
