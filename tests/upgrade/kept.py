"""What was kept of each version in tests/fixtures, and how a model of then is compared with one of now."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

FIXTURES = Path(__file__).parents[1] / "fixtures"
VERSIONS = sorted(
    (path.parent.name for path in FIXTURES.glob("*/messages.json")),
    key=lambda version: [int(number) for number in version.split(".")],
)
"""Oldest first."""
CLOSE = 1e-3
"""What a CPU of another kind may make of the same steps; a round more or less makes far more."""


def unpack(version: str, folder: Path, *archives: str) -> Path:
    """A folder with the content of some archives of a version, and its plain files."""
    for path in (FIXTURES / version).iterdir():
        if path.name in archives:
            with tarfile.open(path) as tar:
                tar.extractall(folder, filter="data")
        elif not path.name.endswith(".tar.gz"):
            shutil.copy(path, folder)
    return folder


def trained_before(version: str) -> set[str]:
    """The visits of the job `midway` that were trained by that version."""
    return set(json.loads((FIXTURES / version / "expected.json").read_text())["trained"])


def weights(model: Path) -> list[np.ndarray]:
    """All numbers in an exported model."""
    return [numpy_helper.to_array(tensor) for tensor in onnx.load(model).graph.initializer]


def apart(ours: Path, theirs: Path) -> float:
    """The largest difference of any two numbers: 0 for the same bits."""
    pairs = zip(weights(ours), weights(theirs), strict=True)
    return float(max(np.max(np.abs(np.subtract(a, b, dtype=np.float64)), initial=0.0) for a, b in pairs))
