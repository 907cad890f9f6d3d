"""Devices with the columns of the job's table in other orders, under other headers, or missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.jobs.data import public_data
from coordinator.jobs.settings import read_job
from coordinator.results.folder import ResultFolder
from fleet_sim.preparing import prepare_training
from fleet_sim.settings import read_simulation
from fleet_sim.world.memory_fleet import MemoryFleet
from sojourn.data.source import DataSettings
from sojourn.protocol.spec import TableSpec
from tests.fleet_sim.task_fleet import kit_of, model_of
from tests.there import there

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from coordinator.job_state import JobState

COLUMNS = ("temp", "rpm", "load", "state")


def write(path: Path, header: Sequence[str], seed: int, *, headed: bool = True) -> str:
    """Write a table of pumps with its columns in this order."""
    draw = np.random.default_rng(seed)
    lines = [",".join(header)] if headed else []
    for _ in range(60):
        temp, rpm = draw.normal(60, 10), draw.normal(1500, 200)
        values = {"temp": temp, "rpm": rpm, "load": rpm / 100 - temp / 10, "state": "ok" if temp < 60 else "worn"}
        lines.append(",".join(str(values.get(name, "spare")) for name in header))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def job(folder: Path, name: str, **changes: Any) -> str:
    values: dict[str, Any] = {
        "name": name, "strategy": "fedavg", "model.name": "mlp", "model.options.hidden": [4], "threads": 1,
        "rounds": 1, "fleet.devices": 2, "data.label": "state", "data.ignore": ["load"],
        "data.test": str(folder / "test.csv"), "data.exemplars_per_class": 5, "training.batch": 16,
    }  # fmt: skip
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)


REGRESSION: dict[str, Any] = {
    "task__kind": "regression", "task__targets": ["load"], "data__label": None, "data__ignore": ["state"],
}  # fmt: skip


def run(folder: Path, devices: dict[str, DataSettings], *jobs: str) -> tuple[list[JobState], MemoryFleet]:
    write(folder / "test.csv", COLUMNS, 0)
    fleet = MemoryFleet(devices, {"site-a": tuple(devices)})
    states = []
    for at, text in enumerate(jobs):
        fleet.submit(text)
        states.append(fleet.run(f"job-{at}"))
    return states, fleet


def test_column_order_does_not_change_the_trained_model(tmp_path: Path) -> None:
    found = []
    cases: tuple[tuple[str, Sequence[str], dict[str, Any]], ...] = (
        ("same", COLUMNS, {}),
        ("other", ("site", "load", "state", "rpm", "note", "temp"), {"label": "load"}),
    )
    for folder, second, settings in cases:
        place = tmp_path / folder
        place.mkdir()
        devices = {
            "dev-0": DataSettings(path=write(place / "0.csv", COLUMNS, 1)),
            "dev-1": DataSettings(path=write(place / "1.csv", second, 2), **settings),
        }
        states, fleet = run(place, devices, job(place, "job-0"), job(place, "job-1", **REGRESSION))
        assert [state.status for state in states] == ["done", "done"], [state.detail for state in states]
        assert [state.history[0].visits for state in states] == [2, 2]
        assert kit_of(states[0], fleet).table == TableSpec(("temp", "rpm"), "state")
        assert kit_of(states[1], fleet).table == TableSpec(("temp", "rpm"))
        found.append([model_of(state, fleet) for state in states])
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


def test_device_without_a_column_declines_naming_it(tmp_path: Path) -> None:
    devices = {
        "dev-0": DataSettings(path=write(tmp_path / "0.csv", COLUMNS, 1)),
        "dev-1": DataSettings(path=write(tmp_path / "1.csv", ("a", "b", "load", "state"), 2)),
        "dev-2": DataSettings(path=write(tmp_path / "2.csv", COLUMNS, 3, headed=False)),
    }
    (state,), _ = run(tmp_path, devices, job(tmp_path, "job-0", fleet__devices=3))
    assert state.history[0].visits == 1
    second, third = sorted(state.history[0].failures)
    assert second.startswith("dev-1: declined, data: ")
    assert second.endswith("the table lacks the columns 'temp' and 'rpm'; it has 'a', 'b', 'load', 'state'")
    assert third.startswith("dev-2: declined, data: ")
    assert "has no column names, and the job matches columns by name ('temp', 'rpm'): add a header line" in third


def test_job_can_declare_tables_without_header(tmp_path: Path) -> None:
    devices = {
        f"dev-{at}": DataSettings(path=write(tmp_path / f"{at}.csv", ("temp", "rpm", "state"), at, headed=False))
        for at in (1, 2)
    }
    (state,), fleet = run(tmp_path, devices, job(tmp_path, "job-0", data__by_position=True))
    assert state.history[0].visits == 2
    assert kit_of(state, fleet).table == TableSpec(("temp", "rpm"), "state", by_position=True)


def test_simulation_keeps_the_column_names(tmp_path: Path) -> None:
    data = write(tmp_path / "data.csv", ("rpm", "state", "temp"), 0)
    text = job(tmp_path, "job-0", data__test=None, data__ignore=None, data__label="state", fleet__devices=None)
    simulated = read_simulation(
        text, "here", {"simulation.data": data, "simulation.devices": 3, "data.columns": ["temp", "rpm"]}
    )
    made = prepare_training(simulated, ResultFolder(tmp_path / "results"), train=False)
    public = public_data(read_job(made.job_text, "here"))
    assert public.table == TableSpec(("temp", "rpm"), "state")
    x, _ = there(public.test).arrays()
    assert x[:, 1].mean() > 1000
