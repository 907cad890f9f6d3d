"""Jobs of every kind of task on generated data, compiled once, for the tests of releases."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from tests.coordinator.releases.release_material import Trained, compiled

KINDS = ("regression", "multilabel", "reconstruction", "forecast", "tokens")
ROWS, STEPS, TOKENS = 160, 6, 5


def data_of(kind: str) -> dict[str, Any]:
    """Return samples with a rule that a small model can learn."""
    draw = np.random.default_rng(7)
    x = draw.standard_normal((ROWS, 4)).astype(np.float32)
    match kind:
        case "regression":
            return {"x_test": x, "y_test": np.stack([20 + 3 * x[:, 0], 500 - 90 * x[:, 1]], axis=1)}
        case "multilabel":
            return {"x_test": x, "y_test": (x[:, :3] > 0).astype(np.int64), "classes": np.array(["hot", "loud", "wet"])}
        case "reconstruction":
            waves = np.sin(np.linspace(0, 6, 12) + draw.uniform(0, 6, (ROWS, 1))) * 3
            waves[-20:] += draw.standard_normal((20, 12)) * 4
            return {"x_test": waves.astype(np.float32), "y_test": np.array(["ok"] * (ROWS - 20) + ["broken"] * 20)}
        case "forecast":
            time = np.arange(400)
            series = np.stack([np.sin(time / 9) * 5 + 10, np.cos(time / 9)], axis=1).astype(np.float32)
            return {"x_test": series, "channels": np.array(["load", "wind"])}
        case _:
            return {"x_test": (np.arange(ROWS * (TOKENS + 1)) % 7).astype(np.int64)}


SETTINGS: dict[str, dict[str, Any]] = {
    "regression": {"task.targets": ["temperature", "load"]},
    "multilabel": {},
    "reconstruction": {"task.strata": 3},
    "forecast": {"task.steps": STEPS, "task.horizon": 2, "task.targets": ["load"], "task.strata": 3},
    "tokens": {"data.dtype": "int64", "data.input": [TOKENS], "task.strata": 2},
}


@cache
def folder() -> Path:
    return Path(mkdtemp(prefix="sojourn-tasks-"))


@cache
def of_kind(kind: str) -> Trained:
    path = folder() / f"{kind}.npz"
    np.savez(path, **data_of(kind))
    model: dict[str, Any] = {"model.name": "mlp", "model.options.hidden": [8]}
    if kind == "tokens":
        (folder() / "tokens_model.py").write_text(OWN)
        model = {"model.name": "tokens_model:Next", "model.path": str(folder())}
    lines: dict[str, Any] = {"name": "job", "strategy": "fedavg", "task.kind": kind, "data.test": str(path)}
    lines |= {"data.exemplars_per_class": 4, **model, **SETTINGS[kind]}
    return compiled("\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items()))


OWN = """
from torch import nn


class Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.last = nn.Embedding(7, 6), nn.Linear(6, 7)

    def forward(self, x):
        return self.last(self.seen(x))
"""
