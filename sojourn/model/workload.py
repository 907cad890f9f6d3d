"""Benchmark of this machine's training speed, and the cost of a kit's training step."""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from sojourn.errors import MachineError
from sojourn.model import onnx_rules
from sojourn.model.graphs import Graphs, check_probe, probe_samples, probe_targets, probe_vector
from sojourn.model.protobuf import WireReader
from sojourn.model.session import frozen_tensors, open_session, session_options
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import TrainingSize
from sojourn.randomness import noise

BATCH = 32
COUNTED_BATCH = 4
"""The batch size for counting operations, which are proportional to it."""
MEMORY_BATCHES = (2, 4)
"""The two batch sizes for counting memory, which grows linearly with the batch."""
MIN_STEPS = 5
NAME = 1 << 16
"""Maximum characters of a name in a graph; the graph was inspected before."""
_WIDTHS = {"double": 8, "int64": 8, "bool": 1, "uint8": 1, "int8": 1, "float16": 2}
"""Bytes of a number by type, for types other than 4 bytes."""
_sizes: dict[bytes, TrainingSize] = {}
"""Cached sizes, by the hash of the training graph."""


@dataclass(frozen=True)
class Speed:
    """The speed of a machine: a step of b samples of c operations takes `step_seconds` + b c / `flops`."""

    flops: float
    step_seconds: float


@cache
def built_in() -> Kit:
    """Return the `cnn` for 28x28 images that `python -m benchmarks.make_workload` compiled."""
    return unpack_blob(files("sojourn.model").joinpath("workload.kit").read_bytes(), Kit)


def ready() -> None:
    """Load the built-in kit and check its probe, as a worker does before its first step."""
    if objection := check_probe(built_in(), Graphs(built_in())):
        raise MachineError(f"this machine cannot train: {objection}")


def speed(seconds: float, threads: int) -> Speed:
    """Measure the training speed; two batch sizes separate the arithmetic from the fixed cost of a step."""
    kit = built_in()
    one = measure(kit, 1, seconds=seconds / 2, threads=threads)
    many = measure(kit, BATCH, seconds=seconds / 2, threads=threads)
    sample = (many - one) / (BATCH - 1)
    if sample <= 0:
        raise MachineError("this machine is too busy to measure: a batch of 32 took no longer than a batch of 1")
    return Speed(counted_cost(kit) / sample, max(0.0, one - sample))


def measure(kit: Kit, batch: int, *, seconds: float = 1.0, threads: int = 1) -> float:
    """Return the median seconds of a training step, measured for about `seconds` seconds."""
    x, y = _samples(kit, batch)
    drawn = noise(kit.probe.noise_seed, 0, batch, kit.noise)
    graphs, w = Graphs(kit, threads), _probe_vector(kit)
    x = graphs.features(x)
    taken: list[float] = []
    graphs.loss_and_gradient(w, x, y, drawn)  # the first step allocates memory
    while len(taken) < MIN_STEPS or sum(taken) < seconds:
        began = perf_counter()
        _, gradient = graphs.loss_and_gradient(w, x, y, drawn)
        w[: kit.model.trainable_size] -= np.float32(1e-6) * gradient
        taken.append(perf_counter() - began)
    return statistics.median(taken)


def training_size(kit: Kit) -> TrainingSize:
    """Return the memory that training a kit's model takes on a device; computed once for each kit.

    The peak memory of a training step counts each value of the graph from its creation to its last use, with the shapes
    of two executed steps with different batch sizes.
    """
    known = sha256(kit.train).digest()
    if known not in _sizes:
        few, many = (_held_in_a_step(kit, batch) for batch in MEMORY_BATCHES)
        sample = max(0, many - few) // (MEMORY_BATCHES[1] - MEMORY_BATCHES[0])
        _sizes[known] = TrainingSize(kit.model.size, max(0, few - MEMORY_BATCHES[0] * sample), sample)
    return _sizes[known]


def _held_in_a_step(kit: Kit, batch: int) -> int:
    """Return the peak bytes of a training step's values, in the graph's order of nodes."""
    # Without optimizations, onnxruntime runs exactly the nodes of the graph, by name.
    events = _step_events(kit, batch, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    made = {event["name"].removesuffix("_kernel_time"): event["args"] for event in events}
    reader = WireReader(kit.train)
    graph = reader.message(0, len(reader.data), onnx_rules.MODEL).message("graph", onnx_rules.GRAPH)
    nodes = [
        (node.text("name", NAME).decode(), node.texts("input", NAME), node.texts("output", NAME))
        for node in graph.messages("node", onnx_rules.NODE)
    ]
    last = {name: at for at, (_, taken, _) in enumerate(nodes) for name in taken}
    last |= {value.text("name", NAME): len(nodes) for value in graph.messages("output", onnx_rules.VALUE)}
    most = held = 0
    sizes: dict[bytes, int] = {}
    for at, (name, taken, given) in enumerate(nodes):
        for value, form in zip(given, made.get(name, {}).get("output_type_shape", ()), strict=False):
            sizes[value] = prod(_shape(form)) * _WIDTHS.get(next(iter(form)), 4)
            held += sizes[value]
        most = max(most, held)
        held -= sum(sizes.pop(value, 0) for value in {*taken, *given} if last.get(value, -1) <= at)
    return most


def counted_cost(kit: Kit) -> float:
    """Count the operations per sample of a training step: the products and sums of convolutions and matrix products.

    They are computed from the shapes that onnxruntime reports for an executed step. Elementwise operations
    (activations, pooling, the optimiser) are not counted, and neither are they in a machine's `flops`.
    """
    # Basic optimizations keep standard operators with all inputs; layouts for a processor have other shapes.
    events = _step_events(kit, COUNTED_BATCH, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    return sum(_operations(event["args"]) for event in events) / COUNTED_BATCH


def _step_events(kit: Kit, batch: int, level: onnxruntime.GraphOptimizationLevel) -> list[dict[str, Any]]:
    """Run a training step and return onnxruntime's profiling event for each node."""
    with tempfile.TemporaryDirectory(prefix="sojourn-count-") as folder:
        session = open_session(kit.train, _counting(folder, level), "the training graph", frozen_tensors(kit, "train"))
        x, y = _samples(kit, batch)
        drawn = noise(kit.probe.noise_seed, 0, batch, kit.noise)
        feeds: dict[str, NDArray[np.generic]] = {"vector": _probe_vector(kit)}
        feeds |= {"y": y} if kit.learns.target else {}
        feeds |= {f"reference_{at}": _probe_vector(kit) for at in range(len(kit.learns.reference_models))}
        feeds["x"] = Graphs(kit).features(x)
        feeds |= {f"noise_{at}": values for at, values in enumerate(drawn)}
        session.run(["loss", "gradient"], feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [event for event in events if event["cat"] == "Node"]


def _probe_vector(kit: Kit) -> NDArray[np.float32]:
    return probe_vector(kit.model.sizes, state=kit.model.state)


def _counting(folder: str, level: onnxruntime.GraphOptimizationLevel) -> onnxruntime.SessionOptions:
    options = session_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(folder) / "step")
    options.graph_optimization_level = level
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _operations(node: dict[str, Any]) -> int:
    if node.get("op_name") not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    first, second = (_shape(form) for form in node["input_type_shape"][:2])
    out = _shape(node["output_type_shape"][0])
    match node["op_name"]:
        case "Conv":
            return 2 * prod(out) * prod(second[1:])
        case "ConvTranspose":
            return 2 * prod(first) * prod(second[1:])
        case "Gemm":  # either operand may be transposed
            return 2 * prod(out) * (prod(first) // out[0])
        case _:
            return 2 * prod(out) * first[-1]


def _shape(form: dict[str, list[int]]) -> list[int]:
    return next(iter(form.values()))


def _samples(kit: Kit, batch: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Repeat the probe's samples, which fit the model, to fill a batch."""
    index = np.arange(batch) % len(kit.probe.y)
    return probe_samples(kit)[index], probe_targets(kit)[index]
