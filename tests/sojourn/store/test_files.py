"""Atomic writes to a temporary file that is renamed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sojourn.errors import ConfigError
from sojourn.store.files import move_into_place, open_atomic, write_atomically, write_private

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the inodes of all synced files and folders."""
    inodes: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        inodes.append(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return inodes


def test_old_content_remains_until_the_new_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with open_atomic(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_old_content_and_leaves_no_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError), open_atomic(path) as file:
        file.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("sync_folder", [True, False])
def test_requested_syncs_are_performed(sync: bool, sync_folder: bool, tmp_path: Path, synced: list[int]) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"content", sync=sync, sync_folder=sync_folder)
    wanted = [path.stat().st_ino] * sync + [tmp_path.stat().st_ino] * sync_folder
    assert synced == wanted


def test_file_modes_are_set_from_the_first_byte(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        with open_atomic(tmp_path / "own", mode=0o600) as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
        write_atomically(tmp_path / "open", b"")
        write_private(tmp_path / "private", "text")
    finally:
        os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"own": 0o600, "open": 0o644, "private": 0o600}


def test_planted_symlink_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / f".key.{os.getpid()}.new").symlink_to(victim)
    with pytest.raises(ConfigError, match="key cannot be written"):
        write_private(tmp_path / "key", b"secret")
    assert victim.read_bytes() == b"mine"


def test_finished_file_is_moved_into_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    (tmp_path / "temporary").write_bytes(b"new")
    move_into_place(tmp_path / "temporary", path)
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], b"new")
