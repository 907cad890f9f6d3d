"""The cost of inspecting a graph before onnxruntime loads it: time, and memory as a multiple of the graph's size.

Three graphs of about ten megabytes: weights in few nodes, like releases; the maximum number of nodes, each with a long
description; and weights number by number in a packed list. Each is inspected in a separate process, without a cache.
Seconds are wall time; `processor` is CPU time, the relevant value on a busy machine. The memory is the growth of the
process's peak since before the file was read: the file itself counts once.

python -m benchmarks.inspection [--megabytes 10] [--times 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

CASES = ("weights", "nodes", "packed")
LOOK = """
import sys, time
from pathlib import Path
from edge_agent.machine_readings import peak_resident
from sojourn.model.inspection import inspected
before = peak_resident()
data = Path(sys.argv[1]).read_bytes()
began = time.perf_counter(), time.process_time()
inspected(data)
seconds, processor = time.perf_counter() - began[0], time.process_time() - began[1]
print(seconds, processor, (peak_resident() - before) * (1 << 20) / len(data))
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    print("graph       MB   nodes  seconds  slowest  processor  memory / size   load")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.onnx"
            nodes = made(case, arguments.megabytes << 20, path)
            looks = [look(path) for _ in range(arguments.times)]
            size = path.stat().st_size / (1 << 20)
        seconds, processor, memory = zip(*looks, strict=True)
        line = f"{case:8} {size:5.1f} {nodes:7,} {statistics.median(seconds):8.3f} {max(seconds):8.3f}"
        line += f" {statistics.median(processor):10.3f}"
        print(f"{line} {max(memory):14.2f} {os.getloadavg()[0]:6.1f}")


def look(path: Path) -> tuple[float, float, float]:
    """Return wall and CPU seconds, and memory as a multiple of the file, in a new process."""
    done = subprocess.run([sys.executable, "-c", LOOK, str(path)], capture_output=True, text=True, check=True)
    seconds, processor, memory = map(float, done.stdout.split())
    return seconds, processor, memory


def made(case: str, size: int, path: Path) -> int:
    """Write a graph of this many bytes and return its number of nodes."""
    count = {"weights": 100, "nodes": 20_000, "packed": 10}[case]
    each = size // count
    nodes, fixed = [], []
    for at in range(count):
        if case == "nodes":
            nodes.append(
                helper.make_node("Relu", [f"v{at}"], [f"v{at + 1}"], name=f"node {at}", doc_string="d" * (each - 60))
            )
            continue
        values = np.random.default_rng(at).integers(0, 1 << 40, each // (8 if case == "weights" else 6))
        whole = helper.make_tensor(f"w{at}", TensorProto.INT64, values.shape, values.tolist())
        fixed.append(numpy_helper.from_array(values, f"w{at}") if case == "weights" else whole)
        nodes.append(helper.make_node("Identity", [f"v{at}"], [f"v{at + 1}"], name=f"node {at}"))
    shaped = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes, "graph", shaped[:1], shaped[1:], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return count


if __name__ == "__main__":
    main()
