"""Jobs with trained models, compiled once, and small ONNX files, for the tests of releases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from coordinator.job_state import JobState
from coordinator.jobs.data import digits_split
from coordinator.records import JobSubmitted
from coordinator.rounds.preparing import KitCache, PrepareJob, prepare
from coordinator.state import CoordinatorState
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.spec import Kit
from sojourn.store.memory_blobs import MemoryBlobs

ASKED = MakeRelease("t", "job", "digits", 3, notes="for the test")
INT8 = msgspec.structs.replace(ASKED, encoding="int8")


@dataclass(frozen=True)
class Trained:
    """A job whose model was trained a little, with its blobs."""

    state: JobState
    blobs: MemoryBlobs
    kit: Kit
    vector: np.ndarray
    exemplars: Exemplars
    test: Exemplars

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.kit, self.vector, self.exemplars, self.test


def text(model: str = "mlp", options: dict[str, Any] | None = None, **data: Any) -> str:
    lines = {"name": "job", "strategy": "fedavg", "model.name": model, "model.options": options or {}}
    lines |= {f"data.{key}": value for key, value in (data or {"test": "digits"}).items()}
    plain = {key: value for key, value in lines.items() if value != {}}
    given = "\n".join(f"{key} = {json.dumps(value)}" for key, value in plain.items() if key != "model.options")
    inner = "\n".join(f"model.options.{key} = {json.dumps(value)}" for key, value in (options or {}).items())
    return f"{given}\n{inner}"


def compiled(job: str, steps: int = 0) -> Trained:
    """Return a job after this many steps of plain SGD on the digits that are not in the test set."""
    blobs, state = MemoryBlobs(), CoordinatorState()
    outcome = prepare(PrepareJob("job", job), blobs, KitCache())
    state.apply(JobSubmitted("job", job, "ticket"))
    state.apply(outcome)
    mine = state.jobs["job"]
    kit = unpack_blob(blobs.read(outcome.kit.digest), Kit)
    vector = vectors.load(blobs, outcome.vectors["model"], kit.model).copy()
    if steps:
        x, y = digits_split(train=True)
        graphs = Graphs(kit)
        for step in range(steps):
            at = np.arange(64 * step, 64 * (step + 1)) % len(y)
            vector -= np.float32(0.2) * graphs.loss_and_gradient(vector, x[at], y[at])[1]
        mine.vectors["model"] = vectors.save(blobs, vector, "float32", kit.model)
    exemplars, test = (unpack_blob(blobs.read(ref.digest), Exemplars) for ref in (mine.exemplars, mine.test) if ref)
    return Trained(mine, blobs, kit, vector, exemplars, test)


@cache
def trained(model: str) -> Trained:
    options: dict[str, dict[str, Any]] = {"mlp": {"hidden": [24]}, "cnn": {"channels": [8, 16], "hidden": 64}}
    return compiled(text(model, options[model]), 150)


def linear(**changes: Any) -> onnx.ModelProto:
    """Return `features` [n, 4] -> Gemm -> `scores` [n, 3], with parts that a test changes."""
    rng = np.random.default_rng(1)
    given: dict[str, Any] = {
        "nodes": [helper.make_node("Gemm", ["features", "w", "b"], ["scores"])],
        "inputs": [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 4])],
        "outputs": [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
        "weights": [
            numpy_helper.from_array(rng.standard_normal((4, 3)).astype(np.float32), "w"),
            numpy_helper.from_array(rng.standard_normal(3).astype(np.float32), "b"),
        ],
        "opset": 18,
    } | changes
    graph = helper.make_graph(given["nodes"], "g", given["inputs"], given["outputs"], given["weights"])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", given["opset"])], ir_version=9)


def shaped(name: str, kind: int, shape: list[int | str | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
