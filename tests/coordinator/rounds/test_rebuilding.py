"""A signer compiles the job again: only the graphs of that job's loss are signed, to the byte."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from coordinator.console import signing
from coordinator.console.signing import (
    DEFAULT_VALIDITY,
    MAX_VALIDITY,
    Terms,
    check_kit,
    differences,
    mandate_for,
    span_of,
)
from coordinator.jobs.data import public_data
from coordinator.jobs.settings import read_job
from coordinator.rounds.orders import all_tasks
from coordinator.rounds.preparing import PrepareJob, compiled_here, prepare
from sojourn.errors import ConfigError, JobError, MachineError
from sojourn.parts import Elmy, Sgd
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.mandates import Normalisation
from sojourn.protocol.spec import Kit, TableSpec
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.small_fleet import fedavg, job, visit
from tests.fleet_sim.task_fleet import task_job
from tests.there import there


@cache
def compiled() -> tuple[Kit, Normalisation]:
    """Return a kit as a coordinator makes it, with its normalisation."""
    blobs = MemoryBlobs()
    made = prepare(PrepareJob("job", job()), blobs)
    assert isinstance(made.normalisation, Normalisation)
    return unpack_blob(blobs.read(there(made.kit).digest), Kit), made.normalisation


def settings(**changes):
    return read_job(job(**changes), "job")


def test_same_job_compiles_to_same_bytes_without_its_data() -> None:
    kit, scaling = compiled()
    check_kit(settings(), kit, scaling)
    # Another strategy and other numbers of rounds are the same loss.
    check_kit(settings(strategy="scaffold", rounds=9), kit, scaling)


def test_other_model_seed_or_normalisation_gives_another_kit() -> None:
    kit, scaling = compiled()
    with pytest.raises(JobError, match=r"compiled here, the job's .*train.* differ.*was not compiled from this job"):
        check_kit(settings(model__options__hidden=[9]), kit, scaling)
    moved = Normalisation((scaling.mean or (0.0,))[0:1], (99.0,))
    with pytest.raises(JobError, match="--trust-coordinator"):
        check_kit(settings(), kit, moved)


def test_changed_graph_is_detected_but_other_cpu_probe_is_not() -> None:
    kit, scaling = compiled()
    evil = msgspec.structs.replace(kit, train=kit.train + b"\x00")
    with pytest.raises(JobError, match="train differ"):
        check_kit(settings(), evil, scaling)
    probe = msgspec.structs.replace(kit.probe, loss=kit.probe.loss + 1e-7)
    check_kit(settings(), msgspec.structs.replace(kit, probe=probe), scaling)
    assert differences(kit, kit) == []
    assert differences(kit, msgspec.structs.replace(kit, classes=("x",))) == ["classes"]


def test_different_compiler_versions_are_named() -> None:
    kit, scaling = compiled()
    evil = msgspec.structs.replace(kit, predict=b"")
    with pytest.raises(JobError, match=r"made with torch 1, but this machine has torch 2: use the same versions"):
        check_kit(settings(), evil, scaling, compilers=("torch 1",), own=("torch 2",))


def test_job_file_settings_must_match_the_kit() -> None:
    kit, scaling = compiled()
    for changes, why in (
        ({"data__mean": [0.0], "data__std": [1.0]}, "data.mean is"),
        ({"data__range": [0, 1]}, "data.range is"),
        ({"data__classes": [str(n) for n in range(9, -1, -1)]}, "data.classes is"),
        ({"data__input": [64]}, "data.input is"),
    ):
        with pytest.raises(JobError, match=f"does not match the job: {why}"):
            check_kit(settings(**changes), kit, scaling)


def test_job_file_columns_must_match_the_kit() -> None:
    plain, scaling = compiled()
    kit = msgspec.structs.replace(plain, table=TableSpec(("a", "b"), "state"))
    check_kit(settings(), kit, scaling)
    check_kit(settings(data__columns=["a", "b"], data__label="state"), kit, scaling)
    for changes, why in (
        ({"data__columns": ["b", "a"]}, "data.columns is"),
        ({"data__label": "load"}, "data.label is"),
        ({"data__by_position": True}, "data.by_position is True"),
    ):
        with pytest.raises(JobError, match=f"does not match the job: {why}"):
            check_kit(settings(**changes), kit, scaling)


def test_kit_that_cannot_be_rebuilt_is_not_signed(monkeypatch) -> None:
    kit, scaling = compiled()
    with pytest.raises(JobError, match=r"contains the weights 'job:old'.*--trust-coordinator"):
        check_kit(settings(model__start="job:old", model__trains=["*"]), kit, scaling)

    def missing(*_: object) -> None:
        raise MachineError("compiling the job again needs torch, which is not installed")

    monkeypatch.setattr(signing, "require_extra", missing)
    with pytest.raises(JobError, match=r"needs torch.*Sign on a machine that can.*a compromised coordinator"):
        check_kit(settings(), kit, scaling)


def test_local_compile_does_not_use_earlier_kits() -> None:
    job_now = settings()
    kit = compiled_here(job_now, public_data(job_now), lambda _step: None)
    assert kit.train == compiled()[0].train


def test_mandate_states_tasks_limits_and_expiry() -> None:
    kit, _ = compiled()
    digest = ref_of(b"kit").digest
    asked = read_job(visit(rounds=4, estimator__where="device"), "job")
    made = mandate_for(asked, kit, digest, Terms("ann", sites=("hall",)), fleet="f", now=2e9, after=0)
    assert (made.serial, made.issued, made.ends) == (2_000_000_000_000, 2e9, 2e9 + DEFAULT_VALIDITY)
    assert (made.rounds, made.visits, made.sites, made.signature_size) == (4, 3 * 4 + 20, ("hall",), 4096)
    assert made.tasks == all_tasks(asked)
    assert [task.kind for task in made.tasks] == ["train", "estimate"]
    assert made.returns == {"model": 4 * (kit.model.size + len(kit.model.tensors))}
    assert (made.kit, made.class_count, len(made.classes)) == (digest, 10, 10)
    plain = mandate_for(read_job(fedavg(), "job"), kit, digest, Terms("ann"), fleet="f", now=1.0, after=5000)
    assert (plain.serial, plain.signature_size, len(plain.tasks)) == (
        5001,
        0,
        len(all_tasks(read_job(fedavg(), "job"))),
    )
    both = mandate_for(settings(strategy="scaffold"), kit, digest, Terms("ann"), fleet="f", now=1.0, after=0)
    assert set(both.returns) == {"model", "control_delta"}


def test_warmup_pool_mandate_covers_both_phases() -> None:
    found = [task.objective for task in all_tasks(settings(strategy="fedelmy", rounds=None)) if task.kind == "train"]
    assert [it.warmup for it in found if isinstance(it, Elmy)] == [30, 0]
    assert [task.objective for task in all_tasks(settings(strategy="visit")) if task.kind == "train"] == [Sgd()]


@pytest.mark.parametrize(
    ("text", "seconds"), [("12h", 43_200.0), ("30d", DEFAULT_VALIDITY), ("2w", 1_209_600.0), ("366d", MAX_VALIDITY)]
)
def test_time_span_is_parsed(text, seconds) -> None:
    assert span_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0d", "12", "367d", "-1d", "1y", "9999w"])
def test_invalid_time_span_is_rejected(text) -> None:
    with pytest.raises(ConfigError, match="not a valid duration of at most a year"):
        span_of(text)


@cache
def compiled_regression() -> tuple[str, Kit, Normalisation]:
    """Return a regression job, its kit, and the constants from its data."""
    text = task_job("regression")
    blobs = MemoryBlobs()
    made = prepare(PrepareJob("job", text), blobs)
    assert isinstance(made.normalisation, Normalisation)
    return text, unpack_blob(blobs.read(there(made.kit).digest), Kit), made.normalisation


def test_regression_kit_is_rebuilt_with_its_target_scaling() -> None:
    text, kit, scaling = compiled_regression()
    assert scaling.scaling is not None
    check_kit(read_job(text, "job"), kit, scaling)
    other = msgspec.structs.replace(scaling, target_std=tuple(2 * each for each in scaling.scaling[1]))
    with pytest.raises(JobError, match="compiled here"):
        check_kit(read_job(text, "job"), kit, other)


def test_kit_of_another_task_is_not_signed() -> None:
    text, kit, scaling = compiled_regression()
    with pytest.raises(JobError, match=r"task.loss is l1 in its file, but mse in the kit"):
        check_kit(read_job(task_job("regression", task__loss="l1"), "job"), kit, scaling)
    with pytest.raises(JobError, match="plain classifier"):
        check_kit(settings(), kit, scaling)
    evil = msgspec.structs.replace(kit, score=(kit.score or b"") + b"\x00")
    with pytest.raises(JobError, match="score differ"):
        check_kit(read_job(text, "job"), evil, scaling)
