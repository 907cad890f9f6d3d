"""Kits of earlier jobs are reused as long as nothing that they depend on has changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import coordinator
from coordinator.jobs.data import public_data
from coordinator.jobs.settings import read_job
from coordinator.records import JobSubmitted
from coordinator.rounds import preparing
from coordinator.rounds.preparing import KitCache, PrepareJob, prepare, recipe_of, recipes
from coordinator.rounds.starting import StartModel, started
from coordinator.state import CoordinatorState
from sojourn.errors import DataError, JobError
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit, ModelSpec
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.small_fleet import job
from tests.there import there


def recipe(**changes: Any) -> str:
    read = read_job(job(**changes), "job")
    return recipe_of(read, public_data(read))


@pytest.fixture(scope="module")
def first() -> tuple[CoordinatorState, MemoryBlobs]:
    """Return a coordinator that has compiled one job."""
    blobs, state = MemoryBlobs(), CoordinatorState()
    compiled = prepare(PrepareJob("job", job()), blobs, KitCache())
    state.apply(JobSubmitted("job", job(), "ticket"))
    state.apply(compiled)
    return state, blobs


def test_other_strategy_for_same_model_reuses_the_kit(first, monkeypatch) -> None:
    state, blobs = first
    spec = unpack_blob(blobs.read(state.jobs["job"].kit.digest), Kit).model
    monkeypatch.setattr(preparing, "_compiled", lambda *_: pytest.fail("compiled again"))
    again = prepare(PrepareJob("second", job("second", strategy="scaffold", rounds=7), recipes(state)), blobs)
    mine = state.jobs["job"]
    assert (again.kit, again.initial, again.vectors["model"]) == (mine.kit, mine.initial, mine.vectors["model"])
    assert not vectors.load(blobs, again.vectors["control"], spec).any()


def test_first_model_outlives_the_rounds(first) -> None:
    state, _ = first
    assert state.jobs["job"].initial.digest in state.jobs["job"].live()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 3},
        {"model__options__hidden": [9]},
        {"model__name": "cnn", "model__options__hidden": None},
        {"data__mean": [3.0]},
        {"data__std": [2.0]},
    ],
    ids=str,
)
def test_kit_inputs_change_the_recipe(change) -> None:
    assert recipe(**change) != recipe()


@pytest.mark.parametrize("change", [{"strategy": "fedcat"}, {"rounds": 9}, {"training__lr": 0.7}, {"encoding": "int8"}])
def test_unrelated_settings_keep_the_recipe(change) -> None:
    assert recipe(**change) == recipe() != ""


def test_recipe_includes_compiler_code(tmp_path, monkeypatch) -> None:
    for folder in ("compiling", "models"):
        shutil.copytree(Path(coordinator.__file__).parent / folder, tmp_path / folder)
    monkeypatch.setattr(preparing, "__file__", str(tmp_path / "rounds" / "preparing.py"))
    same = preparing._sources.__wrapped__()
    assert same == preparing._sources()
    with (tmp_path / "compiling" / "kits.py").open("a") as file:
        file.write("\n")
    assert preparing._sources.__wrapped__() != same


def test_custom_model_is_always_compiled() -> None:
    assert recipe(model__name="package.module:Class") == ""


def test_missing_or_damaged_kit_is_compiled_again(first, monkeypatch) -> None:
    state, blobs = first
    known = recipes(state)
    kit = unpack_blob(blobs.read(state.jobs["job"].kit.digest), Kit)
    made: list[str] = []

    def compiled(read, data, report, earlier) -> tuple[Kit, np.ndarray]:
        made.append(read.name)
        return kit, np.zeros(kit.model.size, np.float32)

    monkeypatch.setattr(preparing, "_compiled", compiled)
    prepare(PrepareJob("second", job("second"), known), MemoryBlobs())
    wrong = {key: msgspec.structs.replace(it, kit=it.initial) for key, it in known.items()}
    prepare(PrepareJob("third", job("third"), wrong), blobs)
    assert made == ["second", "third"]


def test_known_kit_needs_no_torch() -> None:
    code = "import sys, coordinator.rounds.preparing; print({'torch', 'onnx', 'onnxscript'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_model_export_needs_no_torch() -> None:
    modules = "coordinator.compiling.prediction_model, coordinator.models.exported_file"
    code = f"import sys, {modules}; print('onnx' in sys.modules, 'torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "True False\n"


def test_single_array_test_set_is_rejected_with_reason(tmp_path) -> None:
    path = tmp_path / "test.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="is a single array; an NPZ file with arrays x and y is required"):
        public_data(read_job(job(data__test=str(path)), "job"))


def test_missing_test_set_or_array_is_reported(tmp_path) -> None:
    path = tmp_path / "test.npz"
    with pytest.raises(DataError, match="the coordinator's machine has no such file"):
        public_data(read_job(job(data__test=str(path)), "job"))
    np.savez(path, x=np.zeros((3, 2)), labels=np.zeros(3))
    with pytest.raises(
        DataError, match=r"has no array 'y' .found: x, labels.; an NPZ file with arrays x and y is required"
    ):
        public_data(read_job(job(data__test=str(path)), "job"))


def start(state, blobs, number: int) -> StartModel:
    """Return a start from the model of a job after N rounds, here noise."""
    kit = unpack_blob(blobs.read(state.jobs["job"].kit.digest), Kit)
    model = np.random.default_rng(number).standard_normal(kit.model.size).astype(np.float32)
    return StartModel("round 3 of job 'job'", state.jobs["job"].kit, vectors.save(blobs, model, "float32", kit.model))


def test_job_starts_from_earlier_model_with_same_kit(first, monkeypatch) -> None:
    state, blobs = first
    monkeypatch.setattr(preparing, "_compiled", lambda *_: pytest.fail("compiled again"))
    begin = start(state, blobs, 3)
    text = job("second", strategy="scaffold", model__start="job:job@3", encoding="float16")
    made = prepare(PrepareJob("second", text, recipes(state), begin), blobs)
    assert made.kit == state.jobs["job"].kit
    assert made.vectors["model"].digest == there(made.initial).digest == begin.model.digest
    assert made.wire_vectors["model"].encoding == "float16"
    assert made.recipe == ""  # a job with the same recipe begins with a new model


def test_model_of_another_shape_is_rejected_with_differences(first) -> None:
    state, blobs = first
    kit = unpack_blob(blobs.read(state.jobs["job"].kit.digest), Kit)
    begin = start(state, blobs, 3)
    weight, *others = kit.model.tensors
    wider = msgspec.structs.replace(weight, shape=(9, 64))
    for tensors, words in (
        ((wider, *others), r"there (\S+) has the shape \[8, 64\], here \1 has \[9, 64\]"),
        ((weight,), "it has 4 tensors, and this one 1"),
    ):
        other = msgspec.structs.replace(kit, model=ModelSpec(tensors))
        with pytest.raises(JobError, match=f"round 3 of job 'job' does not fit this job's model: {words}. Use"):
            started(begin, other, blobs)
    gone = msgspec.structs.replace(begin, model=ref_of(b"gone", "float32"))
    with pytest.raises(JobError, match="cannot be read from the disk"):
        prepare(PrepareJob("second", job("second", model__start="job:job"), recipes(state), gone), blobs)


def test_different_classes_of_equal_count_do_not_fit(first) -> None:
    state, blobs = first
    kit = unpack_blob(blobs.read(state.jobs["job"].kit.digest), Kit)
    begin = start(state, blobs, 3)
    other = msgspec.structs.replace(kit, classes=tuple("abcdefghij"))
    with pytest.raises(JobError, match=r"its classes are 0, 1, .*, and this one's a, b"):
        started(begin, other, blobs)
