"""Files that are written beside their place and renamed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sojourn.errors import ConfigError
from sojourn.store.files import move_into_place, write_atomically, write_private, written_beside

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of all that was synced."""
    inodes: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        inodes.append(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return inodes


def test_the_old_content_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with written_beside(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_halfway_leaves_the_old_content_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError), written_beside(path) as file:
        file.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("sync_folder", [True, False])
def test_what_is_asked_for_survives_a_power_cut(
    sync: bool, sync_folder: bool, tmp_path: Path, synced: list[int]
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"content", sync=sync, sync_folder=sync_folder)
    wanted = [path.stat().st_ino] * sync + [tmp_path.stat().st_ino] * sync_folder
    assert synced == wanted


def test_modes_are_kept_from_the_first_byte_on(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        with written_beside(tmp_path / "own", mode=0o600) as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
        write_atomically(tmp_path / "open", b"")
        write_private(tmp_path / "private", "text")
    finally:
        os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"own": 0o600, "open": 0o644, "private": 0o600}


def test_a_link_that_lies_in_wait_beside_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / f".key.{os.getpid()}.new").symlink_to(victim)
    with pytest.raises(ConfigError, match="key cannot be written"):
        write_private(tmp_path / "key", b"secret")
    assert victim.read_bytes() == b"mine"


def test_a_whole_file_is_moved_into_its_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    (tmp_path / "beside").write_bytes(b"new")
    move_into_place(tmp_path / "beside", path)
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], b"new")
