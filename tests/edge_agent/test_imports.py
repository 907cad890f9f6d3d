"""What a device loads: never torch and its kin, and in the agent's own process neither numpy nor onnxruntime."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import edge_agent
import sojourn.data

FORBIDDEN = {
    "torch", "torchvision", "onnx", "onnxscript", "sklearn", "scipy", "matplotlib", "typer", "rich",
    "coordinator", "hierarchy", "fleet_sim",
}  # fmt: skip
HEAVY = {"numpy", "onnxruntime", "PIL"}
IN_THE_WORKER = {
    "edge_agent.training.trainer", "edge_agent.training.descent", "edge_agent.training.model_pool",
    "edge_agent.training.estimates", "edge_agent.training.handover", "edge_agent.releases.trial",
    "edge_agent.releases.loading", "edge_agent.inference.serving", "edge_agent.inference.model",
    "edge_agent.inference.inputs", "edge_agent.inference.http_api", "edge_agent.inference.endpoint",
    "sojourn.data.csv", "sojourn.data.images", "sojourn.data.npz", "sojourn.data.labels", "sojourn.data.samples",
}  # fmt: skip
"""The modules that only the training worker, the trial of a release, or a program that predicts loads."""
EVERY = {
    module.name
    for package in (edge_agent, sojourn.data)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.ispkg and not module.name.endswith(".commands")
}


def loaded_by(sets: list[list[str]]) -> list[set[str]]:
    """For each set of modules the top-level packages after they were imported, each in a process that had none.

    They are copies of one fresh interpreter: starting forty of them takes longer than all that they import.
    """
    program = """
import json, os, sys
for names in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        for name in names:
            __import__(name)
        print(*{name.partition(".")[0] for name in sys.modules}, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, names
"""
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", program, json.dumps(sets)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_a_device_never_loads_what_only_a_cloud_needs() -> None:
    (loaded,) = loaded_by([sorted(EVERY)])
    assert not loaded & FORBIDDEN
    assert loaded >= HEAVY


def test_the_agents_own_process_stays_small() -> None:
    names = sorted(EVERY - IN_THE_WORKER)
    found = zip(names, loaded_by([[name] for name in names]), strict=True)
    assert {name: loaded & (HEAVY | FORBIDDEN) for name, loaded in found} == {name: set() for name in names}
