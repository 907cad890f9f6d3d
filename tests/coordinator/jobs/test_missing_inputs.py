"""Tests that missing files and classes of a job are found without running any code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator.jobs.missing_inputs import missing_input
from coordinator.jobs.settings import read_job

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
raise SystemExit("a check must not run this")
"""


def reason(**changes: Any) -> str | None:
    lines = {"strategy": "fedavg", "data.test": "digits"} | changes
    text = 'name = "job"\n' + "\n".join(f"{key} = {msgspec.json.encode(it).decode()}" for key, it in lines.items())
    return missing_input(read_job(text, "job"))


def custom(folder: Path, name: str) -> str | None:
    return reason(**{"model.name": name, "model.path": str(folder)})


@pytest.mark.parametrize("key", ["data.test", "data.exemplars", "model.start"])
def test_missing_file_is_named(tmp_path: Path, key: str) -> None:
    place = tmp_path / "set.onnx"
    assert reason(**{key: str(place)}) == f"{key}: the coordinator's machine has no file or folder {place}"
    place.touch()
    assert reason(**{key: str(place)}) is None


def test_job_without_files_is_accepted() -> None:
    assert reason() is None
    assert reason(**{"model.name": "torchvision:resnet18"}) is None


def test_missing_class_is_named_with_existing_ones(tmp_path: Path) -> None:
    (tmp_path / "net_found.py").write_text("import torch\n\nclass Net(torch.nn.Module):\n    pass\n")
    assert custom(tmp_path, "net_found:Net") is None
    assert custom(tmp_path, "net_found:Ned") == (
        f"model.name = 'net_found:Ned': {tmp_path / 'net_found.py'} defines no 'Ned'; it defines Net, torch"
    )


def test_missing_module_or_folder_is_named(tmp_path: Path) -> None:
    assert str(custom(tmp_path, "net_missing:Net")).startswith(
        "model.name = 'net_missing:Net': the coordinator's machine has no module 'net_missing' among the installed ones"
    )
    nowhere = tmp_path / "nowhere"
    assert custom(nowhere, "net:Net") == f"model.path: the coordinator's machine has no folder {nowhere}"


def test_model_code_is_not_run_and_dynamic_names_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "net_ends.py").write_text(SOURCE)
    (tmp_path / "net_stars.py").write_text("from math import *\n")
    (tmp_path / "net_wrong.py").write_text("class Net(:\n")
    package = tmp_path / "net_package"
    package.mkdir()
    (package / "__init__.py").write_text(SOURCE)
    (package / "inner.py").write_text("Net = object\n")
    for name in ("net_ends:Net", "net_stars:Net", "net_wrong:Net", "net_package.inner:Net"):
        assert custom(tmp_path, name) is None
    assert "has no module 'net_package.outer'" in str(custom(tmp_path, "net_package.outer:Net"))
