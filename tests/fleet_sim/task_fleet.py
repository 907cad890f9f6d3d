"""Small fleets with other tasks than classification: every device has a range of the target, or its own machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from fleet_sim.world.memory_fleet import CLOUD, MemoryFleet
from sojourn.data.source import DataSettings
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from tests.there import there

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.job_state import JobState

_FOLDER = TemporaryDirectory(prefix="sojourn-tasks-")
DEVICES = tuple(f"dev-{number}" for number in range(6))
SITES = {"site-a": DEVICES[:3], "site-b": DEVICES[3:]}
MODELS: dict[str, dict[str, Any]] = {
    "regression": {"model.name": "mlp", "model.options.hidden": [8]},
    "reconstruction": {"model.name": "autoencoder", "model.options.hidden": [6, 3]},
    "forecast": {"model.name": "mlp", "model.options.hidden": [8], "task.steps": 8, "task.horizon": 2},
    "multilabel": {"model.name": "mlp", "model.options.hidden": [8]},
    "tokens": {"model.name": "gru", "model.options.hidden": 6, "data.input": [6], "data.dtype": "int64"},
}
PLAIN: dict[str, Any] = {"threads": 1, "rounds": 3, "data.exemplars_per_class": 2, "task.strata": 4, "fleet.devices": 6}
TRAINING = {"training.epochs": 1, "training.batch": 16, "training.lr": 0.05}


def quantities(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return sensor values on different scales, and two targets in their own units."""
    draw = np.random.default_rng(seed)
    plain = draw.standard_normal((count, 4))
    first = 20 + 8 * (plain @ [1.0, -0.5, 0.3, 0.0]) + 2 * np.sin(plain[:, 3])
    second = 1000 - 300 * plain[:, 0]
    x = plain * [1, 10, 100, 0.1] + [0, 50, 1000, 0]
    return x.astype(np.float32), np.stack([first, second], 1).astype(np.float32)


def signals(count: int, machine: int, seed: int) -> NDArray[np.float32]:
    """Return windows of two channels of a machine with its own pitch."""
    draw = np.random.default_rng([seed, machine])
    phase = draw.uniform(0, 2 * np.pi, (count, 1))
    t = np.arange(6) * (0.4 + 0.2 * machine)
    wave = np.stack([np.sin(t + phase), 50 + 5 * np.cos(t + phase)], 2)
    return (wave + 0.05 * draw.standard_normal(wave.shape)).astype(np.float32)


def series(machine: int, seed: int, steps: int = 120) -> NDArray[np.float32]:
    """Return hourly load and temperature."""
    draw, t = np.random.default_rng([seed, machine]), np.arange(steps)
    both = np.stack([np.sin(t / 4 + machine), 20 + 3 * np.cos(t / 9) + machine], 1)
    return (both + 0.05 * draw.standard_normal(both.shape)).astype(np.float32)


def tokens(dialect: int, seed: int, length: int = 200) -> NDArray[np.int64]:
    """Return a walk around a ring of 9 tokens, faster in some dialects."""
    steps = np.random.default_rng([seed, dialect]).integers(1, 2 + dialect % 3 + 1, length)
    return np.asarray(np.cumsum(steps) % 9, np.int64)


def _save(name: str, **arrays: Any) -> str:
    path = Path(_FOLDER.name) / f"{name}.npz"
    np.savez(path, **arrays)
    return str(path)


@cache
def files(kind: str) -> tuple[dict[str, str], str]:
    """Return each device's file, and the test set."""
    mine: dict[str, dict[str, Any]]
    if kind == "regression":
        x, y = quantities(240, 1)
        parts = np.array_split(np.argsort(y[:, 0]), len(DEVICES))  # by range of the first quantity
        mine = {name: {"x": x[part], "y": y[part]} for name, part in zip(DEVICES, parts, strict=True)}
        test_x, test_y = quantities(60, 2)
        test: dict[str, Any] = {"x": test_x, "y": test_y}
    elif kind == "reconstruction":
        mine = {name: {"x": signals(30 + 3 * at, at, 1)} for at, name in enumerate(DEVICES)}
        whole = np.concatenate([signals(10, at, 2) for at in range(len(DEVICES))])
        broken = whole[::6][:, ::-1] * np.array([3, 1], np.float32)
        test = {"x": np.concatenate([whole, broken]), "y": np.array(["ok"] * 60 + ["broken"] * len(broken))}
    elif kind == "forecast":
        mine = {name: {"x": series(at, 1)} for at, name in enumerate(DEVICES)}
        test = {"x": np.stack([series(at, 2, 40) for at in range(len(DEVICES))])}
    elif kind == "tokens":
        mine = {name: {"x": tokens(at, 1)} for at, name in enumerate(DEVICES)}
        test = {"x": tokens(1, 2, 300)}
    else:
        x, y = quantities(240, 3)
        flags = (y > np.median(y, axis=0)).astype(np.int64)
        parts = np.array_split(np.argsort(y[:, 0]), len(DEVICES))
        mine = {name: {"x": x[part], "y": flags[part]} for name, part in zip(DEVICES, parts, strict=True)}
        test = {"x": x[::4], "y": flags[::4]}
    return {name: _save(f"{kind}-{name}", **content) for name, content in mine.items()}, _save(f"{kind}-test", **test)


def task_job(kind: str, name: str = "job", **changes: Any) -> str:
    """Return a job file; `__` in a name stands for a dot, None omits a setting."""
    values = {"name": name, "task.kind": kind, "data.test": files(kind)[1], **PLAIN, **MODELS[kind], **TRAINING}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)


def task_fleet(kind: str) -> MemoryFleet:
    """Return six devices at two sites, each with its own file."""
    devices = {name: DataSettings(path=path) for name, path in files(kind)[0].items()}
    return MemoryFleet(devices, SITES)


def run_task(text: str, kind: str) -> tuple[JobState, NDArray[np.float32], MemoryFleet]:
    """Run a job to its end; return its state, its model and the fleet."""
    fleet = task_fleet(kind)
    fleet.submit(text)
    state = fleet.run("job")
    return state, model_of(state, fleet), fleet


def model_of(state: JobState, fleet: MemoryFleet) -> NDArray[np.float32]:
    """Return the job's newest model; empty if it was refused."""
    if state.kit is None:
        return np.zeros(0, np.float32)
    blobs = fleet.stores[CLOUD].blobs
    return vectors.load(blobs, state.vectors["model"], kit_of(state, fleet).model)


def kit_of(state: JobState, fleet: MemoryFleet) -> Kit:
    """Return the job's kit."""
    return unpack_blob(fleet.stores[CLOUD].blobs.read(there(state.kit).digest), Kit)
