"""Compiled kits are taken from the cache, and a damaged cache only causes compiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.jobs.data import public_data
from coordinator.jobs.settings import read_job
from coordinator.rounds import preparing
from coordinator.rounds.preparing import KitCache, PrepareJob, prepare, recipe_of
from sojourn.errors import Fault
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.small_fleet import initial_model, kit_of_jobs
from tests.sojourn.protocol.examples import kit_without_graphs

if TYPE_CHECKING:
    from pathlib import Path

KIT = kit_without_graphs(ModelSpec((TensorSpec("w", (3,)),)), InputSpec((3,)))
JOB = 'name = "a"\nstrategy = "fedavg"\nrounds = 1\nseed = {seed}\ndata.test = "digits"\n'


def test_stored_kit_is_found(tmp_path: Path) -> None:
    kit, initial = KIT, np.arange(3, dtype=np.float32)
    KitCache(tmp_path / "a").keep("recipe", kit, initial)
    found = KitCache(tmp_path / "a").find("recipe")
    assert found is not None
    assert found[0] == kit
    np.testing.assert_array_equal(found[1], initial)
    assert KitCache(tmp_path / "a").find("another") is None


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:50] + b"x" + data[51:]]
)
def test_damaged_kit_is_ignored(tmp_path: Path, damage: object) -> None:
    KitCache(tmp_path).keep("recipe", KIT, np.zeros(3, np.float32))
    path = tmp_path / "recipe"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert KitCache(tmp_path).find("recipe") is None


def test_unwritable_folder_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    there = KitCache(tmp_path / "file" / "kits")
    there.keep("recipe", KIT, np.zeros(3, np.float32))
    assert there.find("recipe") is None


def test_cache_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "MAX_KITS", 2)
    for number in range(4):
        KitCache(tmp_path).keep(f"recipe-{number}", KIT, np.zeros(3, np.float32))
    assert len(list(tmp_path.iterdir())) == 2


def test_job_compiles_once_for_all_simulations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kit_of_jobs(), initial_model()
    monkeypatch.setattr(preparing, "_compiled", lambda *_: compiled)
    first = prepare(PrepareJob("a", JOB.format(seed=1)), MemoryBlobs(), KitCache(tmp_path))

    def never(*_: object) -> None:
        raise Fault("compiled again")

    monkeypatch.setattr(preparing, "_compiled", never)
    assert prepare(PrepareJob("a", JOB.format(seed=1)), MemoryBlobs(), KitCache(tmp_path)) == first
    with pytest.raises(Fault, match="compiled again"):
        prepare(PrepareJob("a", JOB.format(seed=2)), MemoryBlobs(), KitCache(tmp_path))
    with pytest.raises(Fault, match="compiled again"):
        prepare(PrepareJob("a", JOB.format(seed=1)), MemoryBlobs())


def test_changed_code_changes_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    job = read_job(JOB.format(seed=1), "a")
    before = recipe_of(job, public_data(job))
    monkeypatch.setattr(preparing, "_sources", lambda: b"changed")
    assert recipe_of(job, public_data(job)) != before


def test_recipe_covers_compiler_and_model_code() -> None:
    names = {f"{file.parent.name}/{file.name}" for file in preparing._source_files()}
    assert {"compiling/__init__.py", "models/__init__.py"} < names
