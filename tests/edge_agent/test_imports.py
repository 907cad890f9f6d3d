"""What a device loads: never torch and its kin, and in the agent's own process neither numpy nor onnxruntime."""

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
    "edge_agent.training.trainer", "edge_agent.training.class_shares",
    "edge_agent.training.descent", "edge_agent.training.model_pool",
    "edge_agent.training.estimates", "edge_agent.training.features", "edge_agent.training.handover",
    "edge_agent.training.held_out", "edge_agent.training.own_model", "edge_agent.training.own_norms",
    "edge_agent.training.echo", "edge_agent.training.projections", "edge_agent.training.outliers",
    "edge_agent.training.outlier_images", "edge_agent.training.generated",
    "edge_agent.releases.trial", "edge_agent.releases.thresholds", "edge_agent.inference.plain_answers",
    "edge_agent.releases.loading", "edge_agent.inference.serving", "edge_agent.inference.model",
    "edge_agent.inference.inputs", "edge_agent.inference.http_api", "edge_agent.inference.endpoint",
    "sojourn.data.column_names",
    "sojourn.data.csv", "sojourn.data.csv_columns", "sojourn.data.doubts", "sojourn.data.image_lists",
    "sojourn.data.image_survey",
    "sojourn.data.scale_check", "sojourn.data.series", "sojourn.data.summary", "sojourn.data.targets",
    "sojourn.data.tokens", "sojourn.data.windows",
    "sojourn.data.images", "sojourn.data.npz", "sojourn.data.labels", "sojourn.data.samples",
}  # fmt: skip
"""The modules that only the training worker, the trial of a release, or a program that predicts loads."""
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
    """What a fresh interpreter says, line by line."""
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", *command], capture_output=True, text=True, check=True, env=environment)
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The top-level packages after a module was imported, for each: one interpreter, and a fork of it for each."""
    return {name: set(found) for name, *found in packages(EACH_APART, *sorted(EVERY - IN_THE_WORKER))}


def test_a_device_never_loads_what_only_a_cloud_needs() -> None:
    lines = [f"import {name}" for name in sorted(EVERY)]
    [found] = packages("\n".join(["import sys", *lines, "print(*{name.partition('.')[0] for name in sys.modules})"]))
    assert not set(found) & FORBIDDEN
    assert set(found) >= HEAVY


@pytest.mark.parametrize("name", sorted(EVERY - IN_THE_WORKER))
def test_the_agents_own_process_stays_small(name: str, loaded: dict[str, set[str]]) -> None:
    assert "edge_agent" in loaded[name] or "sojourn" in loaded[name]
    assert not loaded[name] & (HEAVY | FORBIDDEN)
