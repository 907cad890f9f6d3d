"""The cost of `edge_agent.Model.predict` relative to a bare onnxruntime session with the same options, for one sample.

Both predict in turns, one call after the other in one process, while the model's thread checks for new releases and
sends its counts to an agent. The medians of every block count.

python -m benchmarks.prediction [--models mlp resnet8] [--blocks 10] [--calls 2000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge_agent import Model
from edge_agent.inference.usage_listener import UsageListener
from edge_agent.releases.folder import ReleaseFolder, ServedFiles
from sojourn.model.predictions import ReleasePredictor
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.release import BlobRef, Card, Goods, ProbeCheck
from sojourn.protocol.spec import InputSpec
from sojourn.store.blobs import FolderBlobs

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = {"mlp": (1, 28, 28), "resnet8": (3, 32, 32)}
CLASSES = tuple(str(n) for n in range(10))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--calls", type=int, default=2000)
    arguments = parser.parse_args()
    print("model      session us  Model us  overhead us  ratio   load")
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            bare, ours, overhead, ratio = compare(name, Path(folder), arguments.blocks, arguments.calls)
        load = os.getloadavg()[0]
        print(f"{name:10} {bare:10.2f} {ours:9.2f} {overhead:12.2f} {ratio:6.3f} {load:6.1f}")


def compare(name: str, store: Path, blocks: int, calls: int) -> tuple[float, float, float, float]:
    """Return microseconds of a session's call, of a model's, the difference, and the quotient: medians of blocks."""
    graph, card = release(name)
    serve(store, graph, card)
    session = ReleasePredictor(graph, card).session
    x = np.random.default_rng(0).standard_normal((1, *card.input.shape), dtype=np.float32)
    listener = UsageListener(store, lambda _: None)
    with Model(name, store) as model:
        np.testing.assert_array_equal(model.predict(x), session.run(["logits"], {"x": x})[0])
        pair = (lambda: session.run(["logits"], {"x": x}), lambda: model.predict(x))
        found = [block(*pair, calls) for _ in range(blocks)]
    listener.close()
    # From adjacent calls: between blocks the load changes.
    return (
        statistics.median(bare for bare, _ in found),
        statistics.median(ours for _, ours in found),
        statistics.median(ours - bare for bare, ours in found),
        statistics.median(ours / bare for bare, ours in found),
    )


def block(bare: Callable[[], object], ours: Callable[[], object], calls: int) -> tuple[float, float]:
    """Return the median microseconds of both, in turns."""
    taken: tuple[list[int], list[int]] = [], []
    for _ in range(calls):
        for call, times in zip((bare, ours), taken, strict=True):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
    first, second = (statistics.median(times) / 1000 for times in taken)
    return first, second


def release(name: str) -> tuple[bytes, Card]:
    """Return a built-in model as a prediction graph, with its card."""
    import torch  # noqa: PLC0415 - only to make it

    from coordinator.models import build  # noqa: PLC0415

    spec = InputSpec(MODELS[name])
    module = build(name, spec, len(CLASSES), {}, seed=1).eval()
    example = torch.zeros(2, *spec.shape)
    program = torch.onnx.export(
        module,
        (example,),
        dynamo=True,
        input_names=["x"],
        output_names=["logits"],
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim("rows")},),
    )
    assert program is not None
    with torch.no_grad():
        logits = module(example).numpy()
    probe = ProbeCheck(2, example.numpy().tobytes(), logits.tobytes(), 1e-3)
    card = Card(line=name, version=1, created="now", classes=CLASSES, input=spec, probe=probe)
    return program.model_proto.SerializeToString(), card


def serve(store: Path, graph: bytes, card: Card) -> None:
    """Make it the current release of a store."""
    blobs = FolderBlobs(store / "blobs")
    refs = [BlobRef(blobs.put(data), len(data)) for data in (graph, pack_blob(card))]
    served = ServedFiles(card.line, card.version, Goods(*refs))
    folder = ReleaseFolder(store, card.line)
    folder.place(served, store / "blobs")
    folder.make_current(served)


if __name__ == "__main__":
    main()
