"""Features of samples: computed once, stored within limits, and deleted with their samples and kit."""

from __future__ import annotations

import os
import signal
import stat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.limits import Limits, LimitSettings
from edge_agent.training.data_watch import UNUSED_SECONDS, FeatureFolder
from edge_agent.training.features import FeatureFiles
from edge_agent.training.messages import Trained, Warm
from edge_agent.training.trainer import Trainer
from sojourn.data.source import DataSettings
from sojourn.errors import GraphRefused
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs, check_probe
from sojourn.model.vectors import load
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.parts import ClassCountEstimator, SignatureEstimator
from sojourn.protocol.envelope import pack_blob
from sojourn.store.blobs import FolderBlobs, ref_of
from tests.edge_agent.training.kits import cut, uncut, visit_for, write_data
from tests.edge_agent.training.test_process import Office
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SAMPLES, NUMBERS = 50, 16


class Device:
    """A device's store and data, with a new trainer for each training process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "data.npz"
        write_data(self.path)
        self.blobs = FolderBlobs(folder / "store" / "blobs")
        self.folder = FeatureFolder(folder / "store" / "blobs", str(self.path), 512)
        self.folder.made()
        self.rows = 0
        """Return the number of samples that ran through the trunk, without the probe's."""
        features = Graphs.features

        def counted(graphs: Graphs, x: NDArray[np.generic]) -> NDArray[np.generic]:
            self.rows += len(x) if graphs.has_trunk else 0
            return features(graphs, x)

        monkeypatch.setattr(Graphs, "features", counted)

    def trained(self, limit: int = 512, free: int | None = 0, **task: Any) -> Trained:
        """Train a visit in a new training process."""
        self.folder.limit = limit
        trainer = Trainer(self.blobs, DataSettings(path=str(self.path)), features=FeatureFiles(self.folder, free))
        asked: dict[str, Any] = {"model": cut(), "epochs": 3} | task
        work = visit_for(self.blobs, **asked)
        trainer.perform(Warm(work.visit.kit, work.visit.task))  # this checks the probe
        self.rows = 0
        done = trainer.perform(work)
        assert isinstance(done, Trained)
        return done

    @property
    def file(self) -> Path:
        (found,) = self.folder.folder.iterdir()
        return found


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(tmp_path, monkeypatch)


def test_trunk_runs_once_and_cached_features_keep_the_bits(device: Device) -> None:
    first = device.trained()
    assert device.rows == SAMPLES
    again = device.trained()
    assert device.rows == 0
    each_time = device.trained(limit=0)
    assert device.rows == 3 * SAMPLES
    assert first.vectors == again.vectors == each_time.vectors


def test_split_model_trains_like_the_whole_model(device: Device) -> None:
    ours, theirs = (
        load(device.blobs, device.trained(model=made).vectors["model"], made.kit.model) for made in (cut(), uncut())
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert not np.allclose(ours, cut().initial, atol=1e-3)


def test_agent_without_trunk_support_refuses_the_kit() -> None:
    """Return the kit as an agent reads it that ignores unknown fields."""
    read = msgspec.structs.replace(cut().kit, trunk=None)
    with pytest.raises(GraphRefused, match="the training graph takes x as"):
        check_probe(read, Graphs(read))


def test_feature_files_are_readable_by_owner_only(device: Device) -> None:
    device.trained()
    assert stat.S_IMODE(device.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(device.folder.folder.stat().st_mode) == 0o700
    assert device.file.stat().st_size == 64 + SAMPLES * NUMBERS * 4


@pytest.mark.parametrize("place", [0, 20, 60, 64, 64 + SAMPLES * NUMBERS * 4 - 1])
def test_damaged_feature_file_is_rebuilt(device: Device, place: int) -> None:
    first = device.trained()
    content = bytearray(device.file.read_bytes())
    whole = bytes(content)
    content[place] ^= 1
    device.file.write_bytes(content)
    assert device.trained().vectors == first.vectors
    assert device.rows == SAMPLES
    assert device.file.read_bytes() == whole


def test_truncated_feature_file_is_rebuilt(device: Device) -> None:
    device.trained()
    os.truncate(device.file, 100)
    device.trained()
    assert device.rows == SAMPLES
    device.trained()
    assert device.rows == 0


def test_changed_data_rebuilds_features_and_deletes_old_ones(device: Device) -> None:
    device.trained()
    before = device.file
    write_data(device.path, samples=40)
    assert device.trained().samples == 40
    assert device.rows == 40
    assert device.file != before


def test_changed_samples_with_same_name_and_date_are_noticed(device: Device) -> None:
    device.trained()
    kept, date = device.path.stat(), device.file.name
    x, y = (np.load(device.path)[name] for name in ("x", "y"))
    x[7] = 16 - x[7]
    with device.path.open("r+b") as file:  # in place, so that only the content changes
        np.savez(file, x=x, y=y)
    os.utime(device.path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    device.trained()
    assert device.file.name == date
    assert device.rows == SAMPLES


def test_without_disk_space_trunk_runs_each_time_with_a_warning(device: Device) -> None:
    for limits, why in (({"limit": 0}, "limits.feature_disk = 0 MB"), ({"free": 1 << 40}, "must stay free")):
        done = device.trained(**limits)
        assert device.rows == 3 * SAMPLES
        assert [each for each in done.warnings if why in each]
        assert not list(device.folder.folder.iterdir())
    assert not device.trained().warnings


def test_disk_failure_does_not_prevent_training(device: Device) -> None:
    device.folder.folder.rmdir()
    device.folder.folder.write_text("in the way")
    done = device.trained()
    assert device.rows == 3 * SAMPLES
    assert "cannot be written" in done.warnings[-1]


def test_estimate_without_training_creates_no_features(device: Device) -> None:
    done = device.trained(kind="estimate", estimator=ClassCountEstimator())
    assert done.signature
    assert device.rows == 0
    assert not list(device.folder.folder.iterdir())


def test_signature_passes_exemplars_through_the_trunk(device: Device) -> None:
    x = np.load(device.path)["x"]
    shown = pack_blob(Exemplars.of(x[:9].reshape(9, 1, 8, 8), np.arange(9) % 3))
    device.blobs.put(shown)
    marks = []
    for made in (cut(), uncut()):
        work = visit_for(device.blobs, model=made, kind="estimate", estimator=SignatureEstimator(where="device"))
        vectors = work.visit.vectors | {"exemplars": ref_of(shown)}
        work = msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, vectors=vectors))
        done = Trainer(device.blobs, DataSettings(path=str(device.path))).perform(work)
        assert isinstance(done, Trained)
        marks.append(np.array(done.signature))
    np.testing.assert_allclose(marks[0], marks[1], atol=1e-5)


def test_features_are_deleted_with_their_samples(device: Device) -> None:
    device.trained()
    device.folder.sweep()
    assert device.file.exists()
    device.path.unlink()
    device.folder.sweep()
    assert not list(device.folder.folder.iterdir())


def test_features_are_deleted_with_their_kit(device: Device) -> None:
    device.trained()
    device.blobs.sweep(set())
    device.folder.sweep()
    assert not list(device.folder.folder.iterdir())


def test_unused_features_are_deleted_after_a_day(device: Device) -> None:
    device.trained()
    kit = visit_for(device.blobs, model=cut()).visit.kit.digest
    old = device.file.stat().st_mtime - UNUSED_SECONDS - 60
    os.utime(device.file, (old, old))
    device.folder.used(kit)
    device.folder.sweep()
    os.utime(device.file, (old, old))
    device.folder.used(b"another kit")
    device.folder.sweep()
    assert not list(device.folder.folder.iterdir())


def test_sweep_keeps_files_in_progress_and_deletes_stale_ones(device: Device) -> None:
    device.trained()
    mine, dead = (device.folder.folder / f".{device.file.name}.{pid}.new" for pid in (os.getpid(), 1 << 30))
    for path in (mine, dead):
        path.write_bytes(b"half")
    device.folder.sweep()
    assert mine.exists()
    assert not dead.exists()
    device.folder.tidy()
    assert [path.suffix for path in device.folder.folder.iterdir()] == [f".{device.folder.mark()}"]


def test_sandboxed_process_shares_features_with_the_next_one(tmp_path: Path) -> None:
    office = Office(tmp_path)
    try:
        results = []
        for key in ("first", "second"):
            office.train(key, model=cut(), epochs=2)
            event = office.outcome()
            assert isinstance(event, WorkDone)
            results.append(event.outcome)
            (kept,) = office.workers.features.folder.iterdir()
            if key == "first":
                written = kept.stat().st_ino
            os.kill(office.pid(), signal.SIGKILL)
            wait_until(lambda: office.workers._child is None, "the end of the training process")
        assert kept.stat().st_ino == written
        here = Trainer(office.blobs, office.data).perform(visit_for(office.blobs, model=cut(), epochs=2))
        assert isinstance(here, Trained)
        assert results[0].vectors == results[1].vectors == here.vectors
        assert not results[0].warnings
    finally:
        office.workers.close()


def test_sigkill_while_writing_features_leaves_nothing_behind(tmp_path: Path) -> None:
    # With this small share of the processor, writing takes minutes, and is not finished before the check.
    office = Office(tmp_path, limits=Limits(LimitSettings(cpu_share=0.01), tmp_path))
    try:
        write_data(tmp_path / "data.npz", samples=100_000)
        folder = office.workers.features.folder
        office.train("killed", model=cut())
        wait_until(lambda: any(path.stat().st_size > 4096 for path in folder.glob(".*.new")), "a half-written file")
        os.kill(office.pid(), signal.SIGKILL)
        event = office.outcome()
        assert isinstance(event, WorkFailed)
        (half,) = folder.iterdir()
        assert half.suffix == ".new"
        write_data(tmp_path / "data.npz")
        office.train("again", model=cut())
        assert isinstance(office.outcome(), WorkDone)
        office.workers.features.sweep()
        assert [path.stat().st_size for path in folder.iterdir()] == [64 + SAMPLES * NUMBERS * 4]
    finally:
        office.workers.close()


def test_owner_can_disable_the_feature_cache(tmp_path: Path) -> None:
    office = Office(tmp_path, limits=Limits(LimitSettings(feature_disk=0), tmp_path))
    try:
        office.train("visit", model=cut())
        event = office.outcome()
        assert isinstance(event, WorkDone)
        assert "limits.feature_disk = 0 MB" in event.outcome.warnings[-1]
        assert not list(office.workers.features.folder.iterdir())
    finally:
        office.workers.close()
