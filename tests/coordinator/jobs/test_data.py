"""Tests of the built-in data set, and of the settings of a job's files."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from coordinator.jobs.data import PublicData, digits, public_data
from coordinator.jobs.settings import JobData, JobSettings
from sojourn.errors import ConfigError, DataError
from sojourn.protocol.spec import TableSpec, ValueRange
from sojourn.settings import validated
from tests.there import there

if TYPE_CHECKING:
    from pathlib import Path


def test_digits_match_scikit_learn() -> None:
    x, y = digits()
    bunch = load_digits()
    assert (x.dtype, y.dtype) == (np.dtype(np.float32), np.dtype(np.int64))
    np.testing.assert_array_equal(x, bunch.images[:, None])
    np.testing.assert_array_equal(y, bunch.target)


def test_reading_digits_does_not_load_scikit_learn() -> None:
    code = "import sys, coordinator.jobs.data as data; data.digits(); print({'sklearn', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def public(folder: Path, **data: Any) -> PublicData:
    """Return the public side of a job whose test set has its labels first and no header."""
    draw = np.random.default_rng(3)
    rows = [f"{at % 2},{draw.integers(0, 17)},{16 * (at % 9 == 0)}" for at in range(60)]
    (folder / "test.csv").write_text("\n".join(rows))
    settings = {"test": str(folder / "test.csv"), "exemplars_per_class": 5, "by_position": True, **data}
    return public_data(JobSettings(name="job", data=validated(settings, JobData, "job.toml")))


def test_odd_job_data_gives_a_warning(tmp_path: Path) -> None:
    (odd,) = public(tmp_path).odd
    assert "test.csv: labels look like values or pixels" in odd
    assert "(--label first)" in odd
    assert public(tmp_path, label="first").odd == ()


def test_value_range_for_devices_follows_scale_and_setting(tmp_path: Path) -> None:
    assert public(tmp_path, label=1).values == ValueRange(0, 16)
    assert public(tmp_path, label=1, scale="0..16 to -1..1").values == ValueRange(-1, 1)
    assert public(tmp_path, label=1, range=[0, 20]).values == ValueRange(0, 20, demanded=True)


def test_job_data_outside_required_range_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.range is 0 to 1, and the job's own samples go from 0 to 16"):
        public(tmp_path, label=1, range=[0, 1])
    with pytest.raises(ConfigError, match=r"such as \[0, 16\]"):
        public(tmp_path, range=[3, 1])


def test_exemplars_using_up_the_test_set_give_a_warning(tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", x=np.arange(7.0).reshape(7, 1), y=np.array([0, 0, 0, 1, 1, 2, 2]))
    data = JobData(test=str(tmp_path / "few.npz"), exemplars_per_class=2)
    found = public_data(JobSettings(name="job", data=data))
    (fewer,) = found.odd
    assert "2 exemplars of each class or stratum would be more than half of its 7 samples, so 1 of each" in fewer
    assert there(found.exemplars).y == (0, 1, 2)
    assert len(there(found.test).y) == 4


def test_small_test_set_gives_fewer_exemplars(tmp_path: Path) -> None:
    def found(counts: tuple[int, ...]) -> PublicData:
        y = np.repeat(np.arange(len(counts)), counts)
        np.savez(tmp_path / "few.npz", x=np.arange(float(len(y))).reshape(-1, 1), y=y)
        return public_data(JobSettings(name="job", data=JobData(test=str(tmp_path / "few.npz"))))

    for counts, taken in (((20, 20), 10), ((19, 19), 9), ((12, 100), 10), ((5, 5, 5), 2), ((2, 1), 1)):
        exemplars, warnings = there(found(counts).exemplars), found(counts).odd
        assert np.bincount(exemplars.y).tolist() == [min(taken, count) for count in counts]
        assert any(f"data.exemplars_per_class = {taken}" in each for each in warnings) == (taken < 10)
    with pytest.raises(DataError, match="leaves nothing to test on: give a larger test set"):
        found((1, 1))


def test_job_columns_are_matched_by_name(tmp_path: Path) -> None:
    rows = [f"{at % 2},{at},{100 + at}" for at in range(40)]
    (tmp_path / "test.csv").write_text("\n".join(["state,temp,rpm", *rows]))
    turned = [f"{100 + at},{at % 2},{at}" for at in range(40)]
    (tmp_path / "shown.csv").write_text("\n".join(["rpm,state,temp", *turned]))

    def found(**data: Any) -> PublicData:
        return public_data(JobSettings(name="job", data=validated(data, JobData, "job.toml")))

    both = {"test": str(tmp_path / "test.csv"), "exemplars": str(tmp_path / "shown.csv"), "label": "state"}
    made = found(**both)
    assert made.table == TableSpec(("temp", "rpm"), "state")
    for part in (made.test, made.exemplars):
        assert there(part).arrays()[0].min(axis=0).tolist() == [0, 100]
    turned_by_job = found(**both, columns=["rpm", "temp"])
    assert turned_by_job.table == TableSpec(("rpm", "temp"), "state")
    assert there(turned_by_job.test).arrays()[0].min(axis=0).tolist() == [100, 0]
    with pytest.raises(DataError, match="the table lacks the column 'speed'; it has 'state', 'temp', 'rpm'"):
        found(**both, columns=["temp", "speed"])
    (tmp_path / "bare.csv").write_text("\n".join(rows))
    bare: dict[str, Any] = {"test": str(tmp_path / "bare.csv"), "label": "first"}
    with pytest.raises(DataError, match=r"has no header, and devices match columns by name: .*data\.by_position"):
        found(**bare)
    assert found(**bare, by_position=True).table == TableSpec(by_position=True)
    assert found(**bare, columns=["temp", "rpm"]).table == TableSpec(("temp", "rpm"))
    np.savez(tmp_path / "test.npz", x=np.arange(80.0).reshape(40, 2), y=np.arange(40) % 2)
    assert found(test=str(tmp_path / "test.npz")).table == TableSpec()
    with pytest.raises(DataError, match=r"data\.columns names 3 columns, and a sample of the job has 2"):
        found(test=str(tmp_path / "test.npz"), columns=["a", "b", "c"])
    with pytest.raises(ConfigError, match="columns lists a name twice"):
        found(test=str(tmp_path / "test.npz"), columns=["a", "a"])
    assert found(test="digits").table is None
