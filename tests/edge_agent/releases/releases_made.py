"""Small handwritten releases: logits = x w, with a given w."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edge_agent.releases.folder import ReleaseFolder, ServedFiles
from edge_agent.releases.orders import Install
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.release import BlobRef, Card, Goods, ProbeCheck
from sojourn.protocol.spec import InputSpec
from sojourn.store.blobs import FolderBlobs

if TYPE_CHECKING:
    from pathlib import Path

LINE = "animals"
CLASSES = ("cat", "dog", "owl")
FEATURES = 3


def graph_of(
    weights: Any,
    dtype: int = TensorProto.FLOAT,
    rows: Any = "rows",
    output: str = "logits",
    shape: tuple[int, ...] | None = None,
) -> bytes:
    weights = np.asarray(weights, np.float32)
    sample = shape or weights.shape[:1]
    cast = helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT)
    made = helper.make_graph(
        [cast, helper.make_node("Flatten", ["f"], ["v"], axis=1), helper.make_node("MatMul", ["v", "w"], [output])],
        "release",
        [helper.make_tensor_value_info("x", dtype, [rows, *sample])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [rows, weights.shape[1]])],
        [numpy_helper.from_array(weights, "w")],
    )
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())


def weights_of(version: int) -> Any:
    """Sample e_i is of class i; the largest logit shows the version."""
    return np.eye(FEATURES, len(CLASSES), dtype=np.float32) * version


def card_of(version: int, weights: Any = None, atol: float = 1e-4, **more: Any) -> Card:
    weights = weights_of(version) if weights is None else np.asarray(weights, np.float32)
    x = np.eye(weights.shape[0], dtype=np.float32)
    probe = ProbeCheck(len(x), x.tobytes(), (x @ weights).astype("<f4").tobytes(), atol)
    values: dict[str, Any] = {
        "line": LINE,
        "version": version,
        "created": "2026-01-01",
        "classes": CLASSES,
        "input": InputSpec((weights.shape[0],)),
        "probe": probe,
    }
    return Card(**(values | more))


class Shop:
    """A store with its blobs, and releases for tests."""

    def __init__(self, store: Path) -> None:
        self.store = store
        store.mkdir(parents=True, exist_ok=True)
        self.blobs = FolderBlobs(store / "blobs")
        self.folder = ReleaseFolder(store, LINE)

    def goods(self, graph: bytes, card: bytes) -> Goods:
        return Goods(*(BlobRef(self.blobs.put(data), len(data)) for data in (graph, card)))

    def install(
        self,
        version: int,
        weights: Any = None,
        *,
        graph: bytes | None = None,
        card: Card | None = None,
        known: bool = False,
    ) -> Install:
        weights = weights_of(version) if weights is None else weights
        goods = self.goods(graph or graph_of(weights), pack_blob(card or card_of(version, weights)))
        return Install((card.line if card else LINE), version, goods, known)

    def served(self, version: int, weights: Any = None, **more: Any) -> ServedFiles:
        work = self.install(version, weights, **more)
        return ServedFiles(work.line, version, work.goods)

    def serve(self, version: int, weights: Any = None, **more: Any) -> ServedFiles:
        """Install a version without a trial."""
        served = self.served(version, weights, **more)
        folder = ReleaseFolder(self.store, served.line)
        folder.place(served, self.store / "blobs")
        folder.make_current(served)
        return served
