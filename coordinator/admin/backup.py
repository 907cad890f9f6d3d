"""Back up a coordinator's store while it runs, and restore it.

A backup is a tar file of `backup.toml` (time and version), `journal.db` (SQLite's online copy) and `blobs/` (all blobs
that the journal refers to).
"""

from __future__ import annotations

import datetime as dt
import fcntl
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from coordinator.machine.coordinator import Coordinator
from sojourn import __version__, settings
from sojourn.errors import DamagedJournal, StoreError, UserError
from sojourn.protocol.limits import decoded
from sojourn.settings import read_text
from sojourn.store.blobs import digest_of, disk_errors
from sojourn.store.files import open_atomic, private_file, private_store, write_atomically
from sojourn.store.journal import FolderStore

JOURNAL, BLOBS, ABOUT, LOCK = "journal.db", "blobs", "backup.toml", "lock"
_TRIES = 5
_PAUSE = 0.2


class BackupAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a backup; later versions may add fields."""

    made: str
    version: str
    blobs: int


def back_up(store: Path, target: Path) -> BackupAbout:
    """Copy a store into a file, while its coordinator runs or not."""
    if not (store / JOURNAL).exists():
        raise UserError(f"{store} has no journal: name the coordinator's --store, or its --settings")
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UserError(f"{target} cannot be written: choose a file in an existing folder")
    with disk_errors(f"backing up {store}"), tempfile.TemporaryDirectory(prefix=".backup-", dir=store) as name:
        kept = _matching(store, Path(name))
        about = BackupAbout(
            made=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), version=__version__, blobs=len(kept)
        )
        with open_atomic(target, mode=0o600) as file:
            _pack(file, about, Path(name) / JOURNAL, kept)
    return about


def restore(source: Path, store: Path, *, force: bool) -> BackupAbout:
    """Restore a backup into an empty store; with `force` into any, whose files are moved into a folder inside."""
    with disk_errors(f"restoring {store}"):
        private_store(store)
        with _exclusive(store), tempfile.TemporaryDirectory(prefix=".restore-", dir=store) as name:
            fresh = Path(name)
            if _in_use(store) and not force:
                raise UserError(
                    f"{store} is not empty: --force restores anyway, and moves its files into a folder inside"
                )
            about = _unpack(source, fresh)
            _check_journal(fresh / JOURNAL)
            _renumber(fresh)
            _chown(store, fresh / JOURNAL, fresh / BLOBS, *(fresh / BLOBS).iterdir())
            _move_away(store)
            # The journal is moved last: without it the store counts as empty, and the restore can be repeated.
            (fresh / BLOBS).rename(store / BLOBS)
            (fresh / JOURNAL).rename(store / JOURNAL)
    return about


def _matching(store: Path, folder: Path) -> list[Path]:
    """Copy the journal, and hard-link the blobs that it refers to, so that the coordinator cannot remove them.

    If a blob is removed after the journal was copied, both are copied again. A blob that is missing each time has not
    arrived yet; the restored coordinator requests it again.
    """
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        _copy_journal(store / JOURNAL, folder / JOURNAL)
        live = [digest.hex() for digest in sorted(_live(folder))]
        kept = [folder / name for name in live if _link(store / BLOBS / name, folder / name)]
        if len(kept) == len(live):
            break
    return kept


def _copy_journal(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    private_file(target)
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            new.execute("pragma journal_mode=delete")
    except sqlite3.Error as error:
        raise StoreError(f"{source} cannot be copied: {error}") from error


def _replayed(store: FolderStore) -> Coordinator:
    """Replay a store into a coordinator; a store with a damaged part is an error."""
    machine = Coordinator("cloud")
    try:
        state, records = store.load()
        if state is not None:
            machine.restore(state)
        for record in records:
            machine.apply(decoded(record, machine.record_form))
    except (DamagedJournal, msgspec.MsgspecError, LookupError) as error:
        raise StoreError(
            f"the journal cannot be replayed as it is ({error}): start its coordinator, which sets aside what is "
            "damaged, and try again; or use an earlier backup"
        ) from error
    return machine


def _live(folder: Path) -> set[bytes]:
    """Return the blobs that a coordinator with the journal in this folder would keep."""
    with closing(FolderStore(folder)) as store:
        return set(_replayed(store).live())


def _renumber(folder: Path) -> None:
    """Give tours numbers above all that were used since the backup, because sites ignore attempts that they saw end."""
    with closing(FolderStore(folder)) as store:
        machine = _replayed(store)
        machine.reserve_newer_attempts(int(time.time()))
        store.snapshot(machine.snapshot())


def _link(source: Path, target: Path) -> bool:
    if target.exists():
        return True
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        return False
    return True


def _pack(file: BinaryIO, about: BackupAbout, journal: Path, blobs: list[Path]) -> None:
    with tarfile.open(fileobj=file, mode="w") as tar:
        text = settings.dumps(msgspec.to_builtins(about)).encode()
        entry = tarfile.TarInfo(ABOUT)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
        tar.add(journal, JOURNAL)
        for blob in blobs:
            tar.add(blob, f"{BLOBS}/{blob.name}")


def _unpack(source: Path, folder: Path) -> BackupAbout:
    """Extract the files of a backup and check each of them."""
    about = None
    (folder / BLOBS).mkdir(mode=0o700)
    try:
        with tarfile.open(source, "r:") as tar:
            for entry in tar:
                content = tar.extractfile(entry) if entry.isfile() else None
                parent, _, name = entry.name.rpartition("/")
                if content is None or (parent, name) not in {("", ABOUT), ("", JOURNAL), (BLOBS, name)}:
                    raise UserError(f"{source} is not a backup of a coordinator: it contains {entry.name[:100]!r}")
                if name == ABOUT:
                    about = read_text(content.read().decode(), BackupAbout, f"{source}: {ABOUT}")
                elif name == JOURNAL:
                    private_file(folder / JOURNAL)
                    with (folder / JOURNAL).open("wb") as file:
                        shutil.copyfileobj(content, file)
                else:
                    _put_blob(folder / BLOBS, name, content.read(), source)
    except FileNotFoundError as error:
        raise UserError(f"{source}: {error.strerror}") from error
    except (tarfile.TarError, UnicodeDecodeError) as error:
        raise UserError(f"{source} is not a complete backup: {error}") from error
    if about is None or not (folder / JOURNAL).exists() or len([*(folder / BLOBS).iterdir()]) != about.blobs:
        raise UserError(f"{source} is not a complete backup: files are missing")
    return about


def _put_blob(folder: Path, name: str, data: bytes, source: Path) -> None:
    if digest_of(data).hex() != name:
        raise UserError(f"{source} is damaged: the blob {name[:12]} does not match its digest")
    write_atomically(folder / name, data, mode=0o600, sync=False)


def _check_journal(path: Path) -> None:
    """Check the journal's integrity, and raise its boot count above any that other nodes have received."""
    try:
        with closing(sqlite3.connect(path)) as db:
            (verdict,) = db.execute("pragma integrity_check").fetchone()
            if verdict != "ok":
                raise UserError(f"the journal in the backup is damaged: {verdict}")
            # A coordinator would have to boot every second to exceed the clock.
            db.execute("update boots set count = max(count, ?)", (int(time.time()),))
            db.commit()
    except sqlite3.Error as error:
        raise UserError(f"the journal in the backup is damaged: {error}") from error


def _in_use(store: Path) -> bool:
    blobs = store / BLOBS
    return (store / JOURNAL).exists() or (blobs.is_dir() and any(blobs.iterdir()))


def _move_away(store: Path) -> None:
    """Move the existing files into a new folder inside the store; an empty store is left as it is."""
    if not _in_use(store):
        shutil.rmtree(store / BLOBS, ignore_errors=True)
        return
    # The write-ahead log moves with its journal: SQLite would apply it to another journal of the same name.
    old = Path(tempfile.mkdtemp(prefix=f"before-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-", dir=store))
    for path in [*store.glob(f"{JOURNAL}*"), store / BLOBS]:
        if path.exists():
            path.rename(old / path.name)


def _chown(store: Path, *paths: Path) -> None:
    """As root, give these files to the owner of the store."""
    if os.geteuid() == 0:
        owner = store.stat()
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid)


@contextmanager
def _exclusive(store: Path) -> Iterator[None]:
    private_file(store / LOCK)
    with (store / LOCK).open("a") as lock:
        _chown(store, store / LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"a coordinator is running on {store}: stop it first") from None
        yield
