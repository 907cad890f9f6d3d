"""The imports of a device: never torch or sklearn, and neither numpy nor onnxruntime in the agent's process."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import edge_agent
import sojourn.data

FORBIDDEN = {
    "torch", "torchvision", "onnx", "onnxscript", "sklearn", "scipy", "matplotlib", "typer", "rich",
    "coordinator", "hierarchy", "fleet_sim",
}  # fmt: skip
HEAVY = {"numpy", "onnxruntime", "PIL"}
IN_THE_WORKER = {
    "edge_agent.training.trainer", "edge_agent.training.descent", "edge_agent.training.fedelmy",
    "edge_agent.training.estimates", "edge_agent.training.features", "edge_agent.training.visit_vectors",
    "edge_agent.training.held_out", "edge_agent.training.metafed", "edge_agent.training.fedbn",
    "edge_agent.training.ma_echo", "edge_agent.training.fedov",
    "edge_agent.training.fedgen",
    "edge_agent.releases.trial", "edge_agent.inference.inputs_and_outputs",
    "edge_agent.releases.served", "edge_agent.inference.model", "edge_agent.inference.endpoint",
    "sojourn.data.column_names",
    "sojourn.data.csv", "sojourn.data.csv_columns", "sojourn.data.checks", "sojourn.data.images",
    "sojourn.data.series", "sojourn.data.summary", "sojourn.data.labels",
    "sojourn.data.samples", "sojourn.data.npz",
}  # fmt: skip
"""The modules that only the training worker, a release trial or a predicting program imports."""
EVERY = {
    module.name
    for package in (edge_agent, sojourn.data)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.ispkg and not module.name.endswith(".commands")
}


EACH_APART = """
import importlib, os, sys
for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        print(name, *{each.partition(".")[0] for each in sys.modules}, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


def packages(*command: str) -> list[list[str]]:
    """Return the output lines of a new interpreter."""
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", *command], capture_output=True, text=True, check=True, env=environment)
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Return the top-level packages that each module imports, each in a fork of one interpreter."""
    return {name: set(found) for name, *found in packages(EACH_APART, *sorted(EVERY - IN_THE_WORKER))}


def test_device_never_imports_server_only_packages() -> None:
    lines = [f"import {name}" for name in sorted(EVERY)]
    [found] = packages("\n".join(["import sys", *lines, "print(*{name.partition('.')[0] for name in sys.modules})"]))
    assert not set(found) & FORBIDDEN
    assert set(found) >= HEAVY


@pytest.mark.parametrize("name", sorted(EVERY - IN_THE_WORKER))
def test_agent_process_imports_no_heavy_packages(name: str, loaded: dict[str, set[str]]) -> None:
    assert "edge_agent" in loaded[name] or "sojourn" in loaded[name]
    assert not loaded[name] & (HEAVY | FORBIDDEN)
