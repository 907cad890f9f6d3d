"""The data of the vectors: a small fleet, one visit, one tour, a model of eight numbers."""

from __future__ import annotations

import numpy as np

from edge_agent.training.objectives import NAMES
from sojourn.model.exemplars import Exemplars
from sojourn.parts import Sgd, Training
from sojourn.protocol.data_summary import DataSummary
from sojourn.protocol.spec import ModelSpec, TensorSpec
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Member, Offer, Task, TourId, VisitId, VisitReport
from sojourn.randomness import derive
from sojourn.store.blobs import ref_of

FLEET = "bakery"
DEVICE, EDGE, CLOUD, OPERATOR = (
    Address("device", "pi-1"),
    Address("edge", "hall"),
    Address("cloud", "main"),
    Address("cloud", "operator"),
)
EPOCHS = {
    DEVICE: Epoch(3, bytes.fromhex("a1a2a3a4a5a6a7a8")),
    EDGE: Epoch(12, bytes.fromhex("e1e2e3e4e5e6e7e8")),
    CLOUD: Epoch(5, bytes.fromhex("c1c2c3c4c5c6c7c8")),
    OPERATOR: Epoch(1, bytes.fromhex("0102030405060708")),
}
SPEC = ModelSpec((TensorSpec("weight", (2, 3)), TensorSpec("bias", (2,))))
START = np.array([0.5, -0.25, 0.125, 1.0, -1.0, 0.0, 0.75, -0.5], np.float32)
END = START + np.array([0.05, -0.02, 0.0, 0.0125, -0.0499, 0.03, 0.008, -0.0021], np.float32)
LARGE = bytes(at % 251 for at in range(70_000))
"""A blob of three leaves: 28,672 + 28,672 + 12,656 bytes."""
KIT = ref_of(LARGE)
TASK = Task("train", Training(epochs=2, batch=16, lr=0.1), Sgd(), "float32", 1)
VISIT, TOUR = VisitId("digits", 1, 0, 0, (1, 1)), TourId("digits", 1, 0, 1)
SEED = derive(derive(7, "train", 1), DEVICE.name, 0)
OFFER = Offer(
    "1.0.0",
    "Raspberry Pi 4",
    "onnxruntime 1.31.1",
    4,
    3_900_000_000,
    NAMES,
    "npz shelf.npz",
    ("class-counts",),
    ABILITIES,
)
EXEMPLARS = Exemplars.of(np.array([[0, 8], [16, 4], [2, 2]], np.uint8), np.array([0, 1, 1]))
SUMMARY = DataSummary(
    samples=60,
    shape=(2, 2),
    dtype="uint8",
    classes=("cat", "dog"),
    counts=(45, 15),
    class_count=2,
    labels="the array y",
    warnings=("all samples are identical: look whether the right file is named in data.path",),
)
MEMBERS = (Member("pi-1", EPOCHS[DEVICE], OFFER), Member("pi-2", Epoch(1, b"\x08" * 8), None))
REPORTS = (
    VisitReport("pi-1", 0, "done", "", 60, 0.25, {"loss": 0.75}, None, 4.5),
    VisitReport("pi-2", 1, "declined", "hot: 84 degrees", 0, 0.0, {}, None, 0.5),
)
