"""What a device loads: never torch and its kin, and in the agent's own process neither numpy nor onnxruntime."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import edge_agent

FORBIDDEN = {
    "torch", "torchvision", "onnx", "onnxscript", "sklearn", "scipy", "matplotlib", "typer", "rich",
    "coordinator", "hierarchy", "fleet_sim",
}  # fmt: skip
HEAVY = {"numpy", "onnxruntime", "PIL"}
IN_THE_WORKER = {
    "training", "descent", "pool", "estimates", "handover", "data_samples", "data_npz", "data_csv", "data_images",
    "release_trial", "predictor", "serving", "model", "inputs", "answers", "endpoint",
}  # fmt: skip
"""The modules that only the training worker, the trial of a release, or a program that predicts loads."""
COMMANDS = {"commands", "setup_commands", "inference_commands", "__main__"}
EVERY = {module.name for module in pkgutil.iter_modules(edge_agent.__path__)} - COMMANDS


def loaded_by(modules: set[str]) -> set[str]:
    """The top-level packages in a fresh interpreter after these modules of the agent were imported."""
    lines = [f"import edge_agent.{name}" for name in sorted(modules)]
    program = "\n".join(["import sys", *lines, "print(*{name.partition('.')[0] for name in sys.modules})"])
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    return set(done.stdout.split())


def test_a_device_never_loads_what_only_a_cloud_needs() -> None:
    loaded = loaded_by(EVERY)
    assert not loaded & FORBIDDEN
    assert loaded >= HEAVY


@pytest.mark.parametrize("name", sorted(EVERY - IN_THE_WORKER))
def test_the_agents_own_process_stays_small(name: str) -> None:
    assert not loaded_by({name}) & (HEAVY | FORBIDDEN)
