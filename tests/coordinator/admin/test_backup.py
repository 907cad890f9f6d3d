"""Tests of backups: a copy is complete and consistent, and a restore gives the same state."""

from __future__ import annotations

import os
import stat
import tarfile
import time
from pathlib import Path

import msgspec
import pytest

from coordinator.admin import backup
from coordinator.admin.backup import back_up, restore
from coordinator.audit_records import AuditRecorded
from coordinator.fleet_records import FleetChanged, VisitOutcome, joined
from coordinator.machine.coordinator import Coordinator
from coordinator.records import DevicesEstimated, JobCompiled, JobSubmitted, RoundClosed, RoundKeeps, TourPlan
from sojourn.errors import StoreError, UserError
from sojourn.protocol.operators import faults
from sojourn.protocol.wire import RoundReport
from sojourn.store.blobs import ref_of
from sojourn.store.journal import FolderStore
from tests.sojourn.protocol.test_audit import log

KIT = bytes(range(256)) * 400


def submitted(job: str) -> JobSubmitted:
    return JobSubmitted(job, f'name = "{job}"', "ticket")


def compiled(kit: bytes) -> JobCompiled:
    """Return a compilation whose model and kit are one blob, because only the references to blobs matter."""
    return JobCompiled("job-1", ref_of(kit), {"model": ref_of(kit)}, {"model": ref_of(kit)}, None, None)


def record(store: FolderStore, what: object) -> None:
    store.append(msgspec.msgpack.encode(what), sync=True)


@pytest.fixture
def store(tmp_path: Path):
    """A store with one job, whose kit is its one referenced blob."""
    made = FolderStore(tmp_path / "store")
    made.boot()
    made.blobs.put(KIT)
    made.blobs.put(b"no record refers to this")
    record(made, submitted("job-1"))
    record(made, compiled(KIT))
    yield made
    made.close()


def test_backup_contains_audit_log(store: FolderStore, tmp_path: Path) -> None:
    for entry in log("submit a", "stop a"):
        record(store, AuditRecorded(entry))
    back_up(tmp_path / "store", tmp_path / "file")
    restore(tmp_path / "file", tmp_path / "other", force=False)
    found = replayed(tmp_path / "other").state.audit.entries
    assert (found, faults(found)) == (log("submit a", "stop a"), [])


def test_backup_restores_fleet_history(store: FolderStore, tmp_path: Path) -> None:
    record(store, FleetChanged(5.0, (joined("pi-1", "hall", "0.4.0", "board"),)))
    outcome = VisitOutcome(0, 0, "hall", "pi-1", "declined", "hot: 84 degrees")
    record(store, DevicesEstimated("job-1", {}, ("pi-1",), (), 0, visited=(outcome,), at=6.0))
    back_up(tmp_path / "store", tmp_path / "file")
    restore(tmp_path / "file", tmp_path / "other", force=False)
    seen = replayed(tmp_path / "other").state.seen
    assert (seen.devices["pi-1"].failed, seen.devices["pi-1"].since) == (1, 5.0)
    assert [(note.job, note.at, note.reason) for _, note in seen.notes()] == [("job-1", 6.0, "hot: 84 degrees")]


def replayed(folder: Path) -> Coordinator:
    again = FolderStore(folder)
    machine = Coordinator("cloud")
    state, records = again.load()
    if state is not None:
        machine.restore(state)
    for each in records:
        machine.apply(msgspec.msgpack.decode(each, type=machine.record_form))
    again.close()
    return machine


def test_backup_of_store_in_use_restores_its_state(store: FolderStore, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    about = back_up(tmp_path / "store", file)
    assert about.blobs == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    record(store, submitted("job-2"))
    restore(file, tmp_path / "other", force=False)
    assert set(replayed(tmp_path / "other").state.jobs) == {"job-1"}
    assert [each.read_bytes() for each in (tmp_path / "other" / "blobs").iterdir()] == [KIT]
    assert not list((tmp_path / "store").glob(".backup-*"))
    assert not list((tmp_path / "other").glob(".restore-*"))


def test_backup_and_restored_files_are_private_under_any_umask(store: FolderStore, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        back_up(tmp_path / "store", tmp_path / "backup.tar")
        restore(tmp_path / "backup.tar", tmp_path / "other", force=False)
    finally:
        os.umask(before)
    made = [tmp_path / "backup.tar", tmp_path / "other", *(tmp_path / "other").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}


def test_backup_includes_records_after_snapshot_and_in_wal(store: FolderStore, tmp_path: Path) -> None:
    store.snapshot(replay_of(store).snapshot())
    record(store, submitted("job-2"))
    back_up(tmp_path / "store", tmp_path / "backup.tar")
    restore(tmp_path / "backup.tar", tmp_path / "other", force=False)
    assert set(replayed(tmp_path / "other").state.jobs) == {"job-1", "job-2"}


def replay_of(store: FolderStore) -> Coordinator:
    machine = Coordinator("cloud")
    for each in store.load()[1]:
        machine.apply(msgspec.msgpack.decode(each, type=machine.record_form))
    return machine


def test_blob_removed_during_copy_restarts_backup(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after the journal was copied, it refers to another kit, and the old kit is removed."""
    newer = b"another kit" * 1000
    real, calls = backup._copy_journal, []

    def copied(source: Path, target: Path) -> None:
        real(source, target)
        calls.append(target)
        if len(calls) == 1:
            digest = store.blobs.put(newer)
            record(store, compiled(newer))
            store.blobs.sweep({digest})

    monkeypatch.setattr(backup, "_copy_journal", copied)
    monkeypatch.setattr(backup, "_PAUSE", 0.0)
    assert back_up(tmp_path / "store", tmp_path / "backup.tar").blobs == 1
    assert len(calls) == 2
    restore(tmp_path / "backup.tar", tmp_path / "other", force=False)
    assert [each.read_bytes() for each in (tmp_path / "other" / "blobs").iterdir()] == [newer]


def test_restore_does_not_overwrite_store_in_use_or_not_empty(store: FolderStore, tmp_path: Path) -> None:
    file, folder = tmp_path / "backup.tar", tmp_path / "store"
    back_up(folder, file)
    with pytest.raises(StoreError, match="a coordinator is running on"):
        restore(file, folder, force=True)
    record(store, submitted("job-2"))
    store.close()
    with pytest.raises(UserError, match="--force"):
        restore(file, folder, force=False)
    assert set(replayed(folder).state.jobs) == {"job-1", "job-2"}
    restore(file, folder, force=True)
    assert set(replayed(folder).state.jobs) == {"job-1"}
    (old,) = folder.glob("before-*")
    assert set(replayed(old).state.jobs) == {"job-1", "job-2"}


def test_restored_coordinator_boots_with_higher_count(store: FolderStore, tmp_path: Path) -> None:
    """Other nodes ignore messages of an earlier boot than the last one that they received."""
    back_up(tmp_path / "store", tmp_path / "backup.tar")
    for _ in range(5):
        store.boot()
    last = store.boot().count
    restore(tmp_path / "backup.tar", tmp_path / "other", force=False)
    again = FolderStore(tmp_path / "other")
    first = again.boot().count
    again.close()
    assert first > max(last, time.time() - 3600)


def test_restored_tours_get_unused_numbers(store: FolderStore, tmp_path: Path) -> None:
    machine = replay_of(store)
    job = machine.state.jobs["job-1"]
    job.tours, job.next_tour = (TourPlan(3, "s1", ("pi-1",), attempt=2),), 4
    store.snapshot(machine.snapshot())
    back_up(tmp_path / "store", tmp_path / "backup.tar")
    restore(tmp_path / "backup.tar", tmp_path / "other", force=False)
    again = replayed(tmp_path / "other").state.jobs["job-1"]
    later = time.time() - 3600
    assert again.next_tour > later
    (tour,) = again.tours
    assert tour.attempt > later
    assert tour == TourPlan(3, "s1", ("pi-1",), attempt=tour.attempt)


@pytest.mark.parametrize("harm", ["cut", "blob", "missing", "journal", "foreign", "text"])
def test_damaged_backup_is_rejected_without_changes(store: FolderStore, tmp_path: Path, harm: str) -> None:
    file, other = tmp_path / "backup.tar", tmp_path / "other"
    back_up(tmp_path / "store", file)
    data = file.read_bytes()
    match harm:
        case "cut":
            file.write_bytes(data[: len(data) // 2])
        case "blob":
            file.write_bytes(data.replace(KIT[:64], bytes(64), 1))
        case "text":
            file.write_text("hello")
        case _:
            repack(file, harm)
    with pytest.raises(UserError):
        restore(file, other, force=True)
    assert not (other / "journal.db").exists()
    assert not (other / "blobs").exists()


def repack(file: Path, harm: str) -> None:
    folder = file.with_suffix(".d")
    with tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
    if harm == "missing":
        next((folder / "blobs").iterdir()).unlink()
    elif harm == "journal":
        (folder / "journal.db").write_bytes(b"not a database" * 100)
    else:
        (folder / "passwd").write_text("root")
    with tarfile.open(file, "w") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, path.relative_to(folder))


def test_failed_backup_reports_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no journal"):
        back_up(tmp_path, tmp_path / "backup.tar")
    (tmp_path / "journal.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="cannot be copied"):
        back_up(tmp_path, tmp_path / "backup.tar")
    with pytest.raises(UserError, match="an existing folder"):
        back_up(tmp_path, tmp_path / "no" / "backup.tar")
    with pytest.raises(UserError, match="No such file"):
        restore(tmp_path / "none.tar", tmp_path / "other", force=False)


def test_backup_contains_models_of_kept_rounds(store: FolderStore, tmp_path: Path) -> None:
    for number in (1, 2):
        model = b"model of round %d" % number
        store.blobs.put(model)
        report = RoundReport(number, 0.5, 1.0, 1, 1, 0, 0, 1.0, {})
        held = {"model": ref_of(model)}
        record(store, RoundClosed("job-1", held, held, (), report, keeps=RoundKeeps((1, 2)[:number])))
    assert back_up(tmp_path / "store", tmp_path / "copy.tar").blobs == 3
    restore(tmp_path / "copy.tar", tmp_path / "again", force=False)
    job = replayed(tmp_path / "again").state.jobs["job-1"]
    assert sorted(job.models) == [1, 2]
    assert (tmp_path / "again" / "blobs" / job.models[1].digest.hex()).read_bytes() == b"model of round 1"
