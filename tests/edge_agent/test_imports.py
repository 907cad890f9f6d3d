"""What a device loads: never torch and its kin, and in the agent's own process neither numpy nor onnxruntime."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from collections.abc import Set as AbstractSet
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
    "training.trainer", "training.descent", "training.model_pool", "training.estimates", "training.handover",
    "releases.trial", "inference.predictor", "inference.serving", "inference.model", "inference.inputs",
    "inference.http_api", "inference.endpoint",
}  # fmt: skip
"""The modules that only the training worker, the trial of a release, or a program that predicts loads."""
EVERY = {
    name.removeprefix("edge_agent.")
    for _, name, is_package in pkgutil.walk_packages(edge_agent.__path__, "edge_agent.")
    if not is_package and not name.endswith("commands")
}


READERS = {name for _, name, _ in pkgutil.walk_packages(sojourn.data.__path__, "sojourn.data.")}


def loaded_by(modules: set[str], others: AbstractSet[str] = frozenset()) -> set[str]:
    """The top-level packages in a fresh interpreter after these modules of the agent, and others, were imported."""
    lines = [f"import {name}" for name in sorted({f"edge_agent.{name}" for name in modules} | others)]
    program = "\n".join(["import sys", *lines, "print(*{name.partition('.')[0] for name in sys.modules})"])
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    return set(done.stdout.split())


def test_a_device_never_loads_what_only_a_cloud_needs() -> None:
    loaded = loaded_by(EVERY, READERS)
    assert not loaded & FORBIDDEN
    assert loaded >= HEAVY


@pytest.mark.parametrize("name", sorted(EVERY - IN_THE_WORKER))
def test_the_agents_own_process_stays_small(name: str) -> None:
    assert not loaded_by({name}) & (HEAVY | FORBIDDEN)
