"""Permissions of a store: only its owner can read it, under any umask; the group can read releases."""

from __future__ import annotations

import hashlib
import logging
import os
from typing import TYPE_CHECKING

import pytest

from edge_agent.releases.folder import shared_folder
from sojourn.store.blobs import LEAF, FolderBlobs, digest_of
from sojourn.store.files import private_store
from sojourn.store.journal import FolderStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=[0, 0o022, 0o077])
def umask(request) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the mode of every file and folder of a store, by path."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): f"{path.stat().st_mode & 0o777:o}" for path in found}


def test_store_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    folder, data = tmp_path / "node" / "store", b"x" * (LEAF + 1)
    store = FolderStore(folder)
    store.append(b"record", sync=True)
    whole = store.blobs.put(b"whole").hex()
    partial = store.blobs.partial(digest_of(data), len(data))
    partial.add_hashes(0, hashlib.sha256(data[:LEAF]).digest())
    partial.write(0, data[:LEAF])
    part = digest_of(data).hex()
    empty = digest_of(b"")
    store.blobs.partial(empty, 0)
    store.blobs.complete(empty)
    assert modes(folder) == {
        ".": "700",
        "blobs": "700",
        f"blobs/{whole}": "600",
        f"blobs/{part}.part": "600",
        f"blobs/{part}.hashes": "600",
        f"blobs/{empty.hex()}": "600",
        "journal.db": "600",
        "journal.db-shm": "600",
        "journal.db-wal": "600",
        "lock": "600",
    }
    store.close()


def test_wider_modes_are_narrowed_at_start_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = FolderStore(tmp_path / "store")
    store.append(b"record", sync=True)
    store.blobs.put(b"blob")
    store.close()
    assert caplog.text == ""
    for path in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    store = FolderStore(tmp_path / "store")
    assert store.load() == (None, [b"record"])
    # The group may still traverse it, as programs that use a release do.
    assert {mode for path, mode in modes(tmp_path / "store").items() if path != "."} == {"600", "700"}
    assert modes(tmp_path / "store")["."] == "710"
    assert [record.message for record in caplog.records] == [
        f"other users had access to {tmp_path / 'store'}: removed their permissions from 5 files and folders"
    ]
    store.close()
    caplog.clear()
    FolderStore(tmp_path / "store").close()
    assert caplog.text == ""


def test_releases_stay_group_readable_and_data_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    digest = FolderBlobs(folder / "blobs").put(b"graph")
    shared_folder(folder, folder / "release" / "digits")
    (folder / "blobs" / digest.hex()).chmod(0o640)
    os.link(folder / "blobs" / digest.hex(), folder / "release" / "digits" / "v1.onnx")
    (folder / "data.npz").touch()
    (folder / "data.npz").chmod(0o644)
    FolderStore(folder).close()
    found = modes(folder)
    assert found["."][1:] == "10"
    assert (found["release"], found["release/digits"], found["release/digits/v1.onnx"]) == ("750", "750", "640")
    assert (found["data.npz"], found["blobs"]) == ("644", "700")


def test_symlink_in_store_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    other.chmod(0o644)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "journal.db-wal").symlink_to(other)
    private_store(tmp_path / "store")
    assert other.stat().st_mode & 0o777 == 0o644
