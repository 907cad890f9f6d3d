"""Tests of a custom model with torchvision's layers, compiled as the coordinator does."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.machine.work import CoordinatorWorker
from coordinator.records import JobCompiled
from coordinator.rounds.preparing import PrepareJob
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.store.blobs import FolderBlobs
from tests.fleet_sim.small_fleet import job

MODULE = """
import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet


class Small(ResNet):
    def __init__(self, classes: int) -> None:
        super().__init__(BasicBlock, [1, 1, 1, 1], classes, norm_layer=lambda channels: nn.GroupNorm(8, channels))
        self.conv1 = nn.Conv2d(1, 64, 3, padding=1)
        self.layer2 = self.layer3 = self.layer4 = nn.Identity()
        self.fc = nn.Linear(64, classes)
"""


def test_torchvision_model_compiles_in_separate_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small_resnet.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    blobs, steps = FolderBlobs(tmp_path / "blobs"), list[str]()
    text = job(model__name="small_resnet:Small", model__options__hidden=None, model__options__classes=10)
    made = CoordinatorWorker(blobs, tmp_path / "blobs")(PrepareJob("job", text), steps.append)
    assert isinstance(made, JobCompiled)
    kit = unpack_blob(blobs.read(made.kit.digest), Kit)
    assert "layer1.0.bn1.weight" in [tensor.name for tensor in kit.model.tensors]
    assert check_probe(kit, Graphs(kit)) is None
    names = [text.split(",")[0].split(" (")[0] for text in steps]
    assert list(dict.fromkeys(names)) == [
        "reading the data", "loading torch", "checking the layers", "writing the training graph",
        "writing the prediction graph", "computing the probe", "checking the gradient",
    ]  # fmt: skip
