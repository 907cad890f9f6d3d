"""Tests of the public data of tasks: targets, scales, strata and exemplars in files, and unsuitable files."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.jobs.data import PublicData, public_data
from coordinator.jobs.settings import read_job
from sojourn.errors import ConfigError, DataError
from sojourn.protocol.task import Target


def text(path: Path | None, **changes: Any) -> str:
    values: dict[str, Any] = {"name": "job", "strategy": "fedavg", "task.kind": "regression", "task.strata": 4}
    values |= {"data.test": str(path), "data.exemplars_per_class": 3} if path else {}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)


def read(path: Path | None, **changes: Any) -> PublicData:
    return public_data(read_job(text(path, **changes), "job"))


def saved(folder: Path, x: Any, y: Any = None) -> Path:
    path = folder / "test.npz"
    np.savez(path, x=x, **({} if y is None else {"y": y}))
    return path


X = np.arange(160, dtype=np.float32).reshape(40, 4) * [1, 10, 100, 0]


def test_regression_targets_have_scale_and_strata(tmp_path: Path) -> None:
    y = np.stack([np.arange(40.0), 1000 + 5 * np.arange(40.0)], 1)
    found = read(saved(tmp_path, X, y), task__targets=["load", "price"])
    assert found.task
    assert (found.output, found.task.target, found.task.names) == ((2,), Target((2,)), ("load", "price"))
    assert found.classes == ()
    assert found.exemplars
    assert found.test
    assert found.task.strata.count == 4
    assert len(found.exemplars.y) == 12
    assert len(found.test.y) == 28
    assert {*found.exemplars.y} == {0, 1, 2, 3}
    targets = found.exemplars.expected()
    assert found.scaling
    np.testing.assert_allclose(found.scaling[0], targets.astype(np.float64).mean(axis=0))
    np.testing.assert_allclose(found.scaling[1], targets.astype(np.float64).std(axis=0))
    assert found.task.blind == pytest.approx(1.0)
    assert found.task.ranges == ((0.0, 39.0), (1000.0, 1195.0))
    assert found.mean
    assert found.std
    assert len(found.mean) == 4  # by column, not over all
    assert found.std[3] == 1.0  # a column that is always 0
    assert read(saved(tmp_path, X, y), task__loss="l1").task != found.task


def test_faulty_samples_are_used_only_for_testing(tmp_path: Path) -> None:
    labels = np.array(["ok"] * 30 + ["hot"] * 10)
    found = read(saved(tmp_path, X, labels), task__kind="reconstruction")
    assert found.task
    assert found.exemplars
    assert found.test
    assert found.task.target is None
    assert found.output == (4,)
    marks = found.test.faulty_mask()
    assert marks is not None
    assert marks.sum() == 10
    assert found.exemplars.faulty_mask() is None
    assert found.exemplars.arrays()[0].max() <= X[:30].max()


def test_labels_and_tokens_have_a_blind_loss(tmp_path: Path) -> None:
    flags = (np.arange(120).reshape(40, 3) % 2).astype(np.int64)
    found = read(saved(tmp_path, X, flags), task__kind="multilabel", data__classes=["a", "b", "c"])
    assert found.task
    assert (found.classes, found.task.strata.count, found.task.blind) == (("a", "b", "c"), 3, log(2))
    ring = np.arange(400) % 7
    found = read(saved(tmp_path, ring), task__kind="tokens", data__input=[5], data__dtype="int64", task__strata=2)
    assert found.task
    assert (found.output, found.task.blind) == ((5, 7), log(7))


NAN = np.where(np.arange(40) % 4 == 0, np.nan, np.arange(40.0))


def test_missing_targets_are_skipped_and_reported(tmp_path: Path) -> None:
    found = read(saved(tmp_path, X, NAN))
    assert found.test
    assert found.exemplars
    assert len(found.test.y) + len(found.exemplars.y) == 30
    assert any("10 samples whose target is missing" in line for line in found.skipped)


def test_few_samples_give_fewer_exemplars_per_stratum(tmp_path: Path) -> None:
    found = read(saved(tmp_path, X, np.arange(40.0)), data__exemplars_per_class=100)
    assert found.test
    assert found.exemplars
    assert len(found.exemplars.y) == 20
    assert any("so 5 of each are taken" in each for each in found.odd)


@pytest.mark.parametrize(
    ("y", "changes", "reason"),
    [
        (np.full(40, 3.0), {}, "is 3 in all 40 of the job's samples"),
        (np.full(40, np.nan), {}, "target is missing, NaN or infinite"),
        (np.array(["a", "b"] * 20), {}, "labels such as"),
        (None, {}, "The job predicts 1 number for each sample"),
        (np.arange(80.0).reshape(40, 2), {"task__targets": ["a", "b", "c"]}, "predicts 'a', 'b', 'c'"),
        (None, {"task__kind": "forecast", "task__steps": 60}, "its longest series without a gap has 40 steps"),
        (np.array(["hot"] * 40), {"task__kind": "reconstruction"}, "no sample that is labelled as normal"),
    ],
)
def test_unsuitable_files_are_rejected(tmp_path: Path, y: Any, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read(saved(tmp_path, X, y), **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task__loss": "cross-entropy"}, "is not a loss of the kind 'regression': set 'mse'"),
        ({"task__kind": "forecast"}, r"needs task\.steps"),
        ({"task__steps": 3}, r"task\.steps is only for a forecast"),
        ({"task__vocabulary": 3}, r"task\.vocabulary is only for tokens"),
        ({"task__targets": ["a", "a"]}, "lists a quantity twice"),
        ({"task__features": ["1"]}, "for a custom loss"),
        ({"task__kind": "regresion"}, "regression"),
        ({"data__classes": ["a", "b"]}, r"data\.classes is only for a classification"),
        ({"target": "accuracy >= 0.9"}, "write one of"),
        ({"data__test": None}, r"without data\.test, both task\.targets and data\.input must be given"),
        ({"data__test": None, "strategy": "naive-gsp-icg"}, "describes devices by strata"),
    ],
)
def test_job_file_mistakes_are_named(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_job(text(tmp_path / "test.npz", **changes), "job")


def test_job_without_files_describes_its_task(tmp_path: Path) -> None:
    found = read(None, data__input=[4], task__targets=["load"])
    assert found.task
    assert (found.output, found.scaling, found.exemplars, found.task.strata.count) == ((1,), None, None, 1)
