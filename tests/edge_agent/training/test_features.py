"""Features of a device's samples: made once, kept within limits, and gone with their samples and their kit."""

from __future__ import annotations

import os
import signal
import stat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.limits.rules import Limits
from edge_agent.limits.settings import LimitSettings
from edge_agent.training.feature_folder import UNUSED_SECONDS, FeatureFolder
from edge_agent.training.features import FeatureFiles
from edge_agent.training.trainer import Trainer
from edge_agent.training.work import Trained, Warm
from sojourn.data.source import DataSettings
from sojourn.errors import GraphRefused
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs, check_probe
from sojourn.model.vectors import load
from sojourn.node.machine import Did, DidNot
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
    """A device's store and data, and trainers that come and go as its training processes do."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "data.npz"
        write_data(self.path)
        self.blobs = FolderBlobs(folder / "store" / "blobs")
        self.folder = FeatureFolder(folder / "store" / "blobs", str(self.path), 512)
        self.folder.made()
        self.rows = 0
        """Samples that went through the trunk, the probe's aside."""
        features = Graphs.features

        def counted(graphs: Graphs, x: NDArray[np.generic]) -> NDArray[np.generic]:
            self.rows += len(x) if graphs.cuts else 0
            return features(graphs, x)

        monkeypatch.setattr(Graphs, "features", counted)

    def trained(self, most: int = 512, free: int | None = 0, **task: Any) -> Trained:
        """What a new training process makes of a visit."""
        self.folder.most = most
        trainer = Trainer(self.blobs, DataSettings(path=str(self.path)), features=FeatureFiles(self.folder, free))
        asked: dict[str, Any] = {"model": cut(), "epochs": 3} | task
        work = visit_for(self.blobs, **asked)
        trainer.perform(Warm(work.visit.kit, work.visit.task))  # which is where the probe is looked at
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


def test_the_trunk_is_run_once_and_training_has_the_same_bits_ever_after(device: Device) -> None:
    first = device.trained()
    assert device.rows == SAMPLES
    again = device.trained()
    assert device.rows == 0
    each_time = device.trained(most=0)
    assert device.rows == 3 * SAMPLES
    assert first.vectors == again.vectors == each_time.vectors


def test_it_learns_what_the_model_in_one_piece_learns(device: Device) -> None:
    ours, theirs = (
        load(device.blobs, device.trained(model=made).vectors["model"], made.kit.model) for made in (cut(), uncut())
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert not np.allclose(ours, cut().initial, atol=1e-3)


def test_an_agent_that_knows_of_no_trunk_refuses_such_a_kit() -> None:
    """What an agent of 0.5.0 reads: it passes over a field that it does not know."""
    read = msgspec.structs.replace(cut().kit, trunk=msgspec.UNSET)
    with pytest.raises(GraphRefused, match="the training graph takes x as"):
        check_probe(read, Graphs(read))


def test_features_are_for_their_owner_alone(device: Device) -> None:
    device.trained()
    assert stat.S_IMODE(device.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(device.folder.folder.stat().st_mode) == 0o700
    assert device.file.stat().st_size == 64 + SAMPLES * NUMBERS * 4


@pytest.mark.parametrize("place", [0, 20, 60, 64, 64 + SAMPLES * NUMBERS * 4 - 1])
def test_a_damaged_file_is_made_anew(device: Device, place: int) -> None:
    first = device.trained()
    content = bytearray(device.file.read_bytes())
    whole = bytes(content)
    content[place] ^= 1
    device.file.write_bytes(content)
    assert device.trained().vectors == first.vectors
    assert device.rows == SAMPLES
    assert device.file.read_bytes() == whole


def test_a_file_that_was_cut_short_is_made_anew(device: Device) -> None:
    device.trained()
    os.truncate(device.file, 100)
    device.trained()
    assert device.rows == SAMPLES
    device.trained()
    assert device.rows == 0


def test_other_data_has_other_features_and_the_old_ones_go(device: Device) -> None:
    device.trained()
    before = device.file
    write_data(device.path, samples=40)
    assert device.trained().samples == 40
    assert device.rows == 40
    assert device.file != before


def test_a_file_of_the_same_name_and_date_with_other_samples_is_noticed(device: Device) -> None:
    device.trained()
    kept, date = device.path.stat(), device.file.name
    x, y = (np.load(device.path)[name] for name in ("x", "y"))
    x[7] = 16 - x[7]
    with device.path.open("r+b") as file:  # in place, so that nothing shows it but the content
        np.savez(file, x=x, y=y)
    os.utime(device.path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    device.trained()
    assert device.file.name == date
    assert device.rows == SAMPLES


def test_without_room_the_trunk_is_run_each_time_and_the_owner_is_told(device: Device) -> None:
    for limits, why in (({"most": 0}, "limits.feature_disk = 0 MB"), ({"free": 1 << 40}, "must stay so")):
        done = device.trained(**limits)
        assert device.rows == 3 * SAMPLES
        assert [each for each in done.warnings if why in each]
        assert not list(device.folder.folder.iterdir())
    assert not device.trained().warnings


def test_a_disk_that_fails_is_no_reason_not_to_train(device: Device) -> None:
    device.folder.folder.rmdir()
    device.folder.folder.write_text("in the way")
    done = device.trained()
    assert device.rows == 3 * SAMPLES
    assert "cannot be written" in done.warnings[-1]


def test_what_trains_on_nothing_makes_no_features(device: Device) -> None:
    done = device.trained(kind="estimate", estimator=ClassCountEstimator())
    assert done.signature
    assert device.rows == 0
    assert not list(device.folder.folder.iterdir())


def test_a_signature_is_of_exemplars_that_went_through_the_trunk(device: Device) -> None:
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


def test_features_go_with_their_samples(device: Device) -> None:
    device.trained()
    device.folder.sweep()
    assert device.file.exists()
    device.path.unlink()
    device.folder.sweep()
    assert not list(device.folder.folder.iterdir())


def test_features_go_with_their_kit(device: Device) -> None:
    device.trained()
    device.blobs.sweep(set())
    device.folder.sweep()
    assert not list(device.folder.folder.iterdir())


def test_features_that_nobody_uses_go_after_a_day(device: Device) -> None:
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


def test_what_is_being_written_stays_and_what_a_dead_process_left_goes(device: Device) -> None:
    device.trained()
    mine, dead = (device.folder.folder / f".{device.file.name}.{pid}.new" for pid in (os.getpid(), 1 << 30))
    for path in (mine, dead):
        path.write_bytes(b"half")
    device.folder.sweep()
    assert mine.exists()
    assert not dead.exists()
    device.folder.tidy()
    assert [path.suffix for path in device.folder.folder.iterdir()] == [f".{device.folder.mark()}"]


def test_a_training_process_keeps_features_in_its_cage_and_the_next_one_uses_them(tmp_path: Path) -> None:
    office = Office(tmp_path)
    try:
        results = []
        for key in ("first", "second"):
            office.train(key, model=cut(), epochs=2)
            event = office.outcome()
            assert isinstance(event, Did)
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


def test_kill_9_while_features_are_written_leaves_nothing_behind(tmp_path: Path) -> None:
    # So small a share of the processor that writing them takes minutes: it is not over before it is looked at.
    office = Office(tmp_path, limits=Limits(LimitSettings(cpu_share=0.01), tmp_path))
    try:
        write_data(tmp_path / "data.npz", samples=100_000)
        folder = office.workers.features.folder
        office.train("killed", model=cut())
        wait_until(lambda: any(path.stat().st_size > 4096 for path in folder.glob(".*.new")), "a half-written file")
        os.kill(office.pid(), signal.SIGKILL)
        event = office.outcome()
        assert isinstance(event, DidNot)
        (half,) = folder.iterdir()
        assert half.suffix == ".new"
        write_data(tmp_path / "data.npz")
        office.train("again", model=cut())
        assert isinstance(office.outcome(), Did)
        office.workers.features.sweep()
        assert [path.stat().st_size for path in folder.iterdir()] == [64 + SAMPLES * NUMBERS * 4]
    finally:
        office.workers.close()


def test_an_owner_can_have_none_kept(tmp_path: Path) -> None:
    office = Office(tmp_path, limits=Limits(LimitSettings(feature_disk=0), tmp_path))
    try:
        office.train("visit", model=cut())
        event = office.outcome()
        assert isinstance(event, Did)
        assert "limits.feature_disk = 0 MB" in event.outcome.warnings[-1]
        assert not list(office.workers.features.folder.iterdir())
    finally:
        office.workers.close()
