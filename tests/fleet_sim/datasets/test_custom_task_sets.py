"""Custom files for every kind of task: their contents, their test part, and the job's settings for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.jobs.data import public_data
from coordinator.jobs.settings import JobData
from coordinator.jobs.settings_tables import TaskSettings
from fleet_sim.datasets import DataSet, load
from fleet_sim.datasets.built_in_sets import MADE
from fleet_sim.datasets.file_formats import as_arrays
from fleet_sim.datasets.partition import Split, split
from fleet_sim.settings import read_simulation
from sojourn.errors import DataError

REGRESSION = TaskSettings(kind="regression")
SERIES = TaskSettings(kind="forecast", steps=4, horizon=2)
ROWS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path / "own.npz", **arrays)
    return str(path / "own.npz")


def test_csv_regression_target_is_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    table = np.c_[ROWS, ROWS @ [1.0, 2.0, 3.0]]
    np.savetxt(path, table, delimiter=",", header="a,b,c,load", comments="", fmt="%.6f")
    data = load(str(path), task=TaskSettings(kind="regression", targets=("load",)))
    assert (data.kind, data.names) == ("regression", ("load",))
    assert (data.x_train.shape, data.y_train.shape, data.y_test.shape) == ((32, 3), (32, 1), (8, 1))
    assert np.allclose(data.y_train[:, 0], data.x_train @ [1.0, 2.0, 3.0], atol=1e-4)


def test_npz_with_several_targets_and_users_is_read(tmp_path: Path) -> None:
    y = np.c_[ROWS.sum(axis=1), ROWS[:, 0]]
    path = npz(tmp_path, x=ROWS, y=y, users=np.arange(40) // 10, target_names=["sum", "first"])
    data = load(path, task=REGRESSION)
    assert data.names == ("sum", "first")
    assert np.allclose(data.y_train[:, 1], data.x_train[:, 0])
    assert data.users is not None
    assert len(data.users) == 32
    parts = split(Split(by="range"), data, 4, 0)
    assert max(data.y_train[parts[0], 0]) <= min(data.y_train[parts[3], 0])


def test_last_windows_of_each_series_are_held_out(tmp_path: Path) -> None:
    series = np.arange(2 * 50, dtype=np.float32).reshape(2, 50, 1)
    data = load(npz(tmp_path, x=series), task=SERIES)
    assert (data.kind, data.x_train.shape[1:], data.y_train.shape[1:]) == ("forecast", (4, 1), (2, 1))
    assert np.array_equal(data.y_train[:, 0, 0], data.x_train[:, -1, 0] + 1)
    assert data.users is not None
    assert np.unique(data.users).tolist() == [0, 1]
    for machine in range(2):
        mine = [part[(part[:, 0, 0] >= 50 * machine) & (part[:, 0, 0] < 50 * machine + 50)]
                for part in (data.x_train, data.y_train, data.x_test)]  # fmt: skip
        assert len(mine[2]) == 9  # a fifth of 45
        assert mine[1].max() < mine[2].min()


def test_too_short_series_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="its series are too short for training windows and later test windows"):
        load(npz(tmp_path, x=np.arange(7.0)), task=SERIES)


def test_domains_can_be_given_per_series(tmp_path: Path) -> None:
    series = np.arange(2 * 50, dtype=np.float32).reshape(2, 50, 1)
    data = load(npz(tmp_path, x=series, domains=["north", "south"]), task=SERIES)
    assert data.domains is not None
    assert np.array_equal(data.domains, (data.x_train[:, 0, 0] >= 50).astype(int))


def test_test_part_without_labels_is_used(tmp_path: Path) -> None:
    path = npz(tmp_path, x_train=np.arange(30.0), x_test=np.arange(100.0, 120.0))
    data = load(path, task=SERIES)
    assert data.x_train.max() < 30
    assert data.x_test.min() == 100


def test_samples_without_labels_are_reconstructed(tmp_path: Path) -> None:
    data = load(npz(tmp_path, x=ROWS), task=TaskSettings(kind="reconstruction"))
    assert (data.kind, data.y_train.tolist(), len(data.x_test)) == ("reconstruction", [0] * 32, 8)


def test_faulty_samples_are_only_in_the_test_part(tmp_path: Path) -> None:
    label = np.where(np.arange(40) % 4 == 0, "broken", "ok")
    path = npz(tmp_path, x_train=ROWS, y_train=label, x_test=ROWS, y_test=label)
    data = load(path, task=TaskSettings(kind="reconstruction"))
    assert (len(data.x_train), len(data.x_test), int(data.y_test.sum())) == (30, 40, 10)


def test_text_bytes_are_tokens(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("the model travels; the data stays. " * 40, encoding="utf-8")
    data = load(str(path), task=TaskSettings(kind="tokens", vocabulary=256), data=JobData(input=(16,), dtype="int64"))
    assert data.x_train.shape[1:] == data.y_train.shape[1:] == (16,)
    assert np.array_equal(data.x_train[:, 1:], data.y_train[:, :-1])
    assert len(data.x_test) == round(0.2 * (len(data.x_train) + len(data.x_test)))


def test_digits_can_be_used_for_regression() -> None:
    data = load("digits", task=REGRESSION)
    assert data.y_train.shape == (1437, 1)
    assert np.unique(data.y_train).tolist() == list(range(10))


@pytest.mark.parametrize("name", MADE)
def test_coordinator_reads_the_written_test_part_unchanged(name: str, tmp_path: Path) -> None:
    simulation = read_simulation(f'[simulation]\ndata = "{name}"', "here")
    job = simulation.read()
    data = load(name, task=job.task, data=job.data)
    assert job.task.kind == data.kind
    path = npz(tmp_path, **as_arrays(data))
    found = public_data(type(job)(name="x", seed=0, task=job.task, data=_tested(job.data, path)))
    assert found.test is not None
    assert found.exemplars is not None
    assert _together(found.test.packed()[0], found.exemplars.packed()[0]) == _together(data.x_test)
    if found.task is not None and found.task.target is not None:
        assert _together(found.test.expected(), found.exemplars.expected()) == _together(data.y_test)
    if data.kind == "reconstruction":
        assert found.test.faulty_mask() is not None
        assert int(found.test.faulty_mask().sum()) == int(data.y_test.sum())  # type: ignore[union-attr]


def _tested(data: JobData, path: str) -> JobData:
    return type(data)(**{name: getattr(data, name) for name in data.__struct_fields__} | {"test": path})


def _together(*parts: np.ndarray) -> list[bytes]:
    """Return the rows of all parts, in an order that depends only on them."""
    return sorted(np.ascontiguousarray(row).tobytes() for part in parts for row in part.astype("<f8"))


def test_input_channels_can_be_excluded_from_the_target() -> None:
    data = load("households")
    two = DataSet(
        "two", np.repeat(data.x_train, 2, axis=2), data.y_train, np.repeat(data.x_test, 2, axis=2), data.y_test, (),
        kind="forecast", names=("load",), channels=("heat", "load"),
    )  # fmt: skip
    written = as_arrays(two)
    assert written["channels"].tolist() == ["heat", "load"]
    assert np.array_equal(written["x"][:, :48], two.x_test)
    assert np.array_equal(written["x"][:, 48:, 1:], two.y_test)
    assert not written["x"][:, 48:, 0].any()
