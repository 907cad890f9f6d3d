"""Who may read a store: its owner, whatever the umask was, and nobody else but for releases."""

from __future__ import annotations

import hashlib
import logging
import os
from typing import TYPE_CHECKING

import pytest

from edge_agent.releases.folder import shared_folder
from sojourn.store.blobs import LEAF, FolderBlobs, digest_of
from sojourn.store.journal import FolderStore
from sojourn.store.private import private_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=[0, 0o022, 0o077])
def umask(request) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Every file and folder of a store, by its path, with its mode."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): f"{path.stat().st_mode & 0o777:o}" for path in found}


def test_a_store_is_readable_by_its_owner_only_whatever_the_umask(umask: int, tmp_path: Path) -> None:
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


def test_a_store_with_wider_modes_is_narrowed_at_start_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    # The group may still pass through, as programs do that use a release.
    assert {mode for path, mode in modes(tmp_path / "store").items() if path != "."} == {"600", "700"}
    assert modes(tmp_path / "store")["."] == "710"
    assert [record.message for record in caplog.records] == [
        f"others could look into {tmp_path / 'store'}: modes of 5 files and folders were narrowed"
    ]
    store.close()
    caplog.clear()
    FolderStore(tmp_path / "store").close()
    assert caplog.text == ""


def test_releases_stay_readable_for_the_group_and_an_owners_data_stays_as_it_is(tmp_path: Path) -> None:
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


def test_a_link_in_a_store_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    other.chmod(0o644)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "journal.db-wal").symlink_to(other)
    private_store(tmp_path / "store")
    assert other.stat().st_mode & 0o777 == 0o644
