"""The one atomic write: a file is written beside its place and renamed; readers see the old one or the new one."""

from __future__ import annotations

import grp
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BESIDE = ".new"
"""How the names of files end that are still being written, or were when their process was killed."""


@contextmanager
def written_beside(
    path: Path, *, mode: int = 0o666, sync: bool = True, sync_folder: bool = False
) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of `path` when all went well, and is gone when it did not.

    mode: of the new file, less the umask. sync: the content survives a power cut. sync_folder: so does the new name.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}{BESIDE}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(handle, "wb") as file:
            yield file
        move_into_place(beside, path, sync=sync, sync_folder=sync_folder)
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(
    path: Path, data: bytes | memoryview, *, mode: int = 0o666, sync: bool = True, sync_folder: bool = False
) -> None:
    """Write a file of these bytes in one step."""
    with written_beside(path, mode=mode, sync=sync, sync_folder=sync_folder) as file:
        file.write(data)


def move_into_place(beside: Path, path: Path, *, sync: bool = True, sync_folder: bool = False) -> None:
    """Give a file that is whole the name under which it is read."""
    if sync:
        sync_path(beside)
    beside.replace(path)
    if sync_folder:
        sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Have a file or a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_private(path: Path, data: bytes | str, *, group: str | None = None) -> None:
    """Write a file for its owner alone, or also for a group to read where there is such a group."""
    try:
        with written_beside(path, mode=0o600) as file:
            file.write(data.encode() if isinstance(data, str) else data)
            _share(file.fileno(), group, 0o640)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def private_folder(path: Path, *, group: str | None = None, passable: bool = False) -> Path:
    """Make a folder for its owner alone; a group may look into it, or anybody may pass through."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711 if passable else 0o700)
        _share(path, group, 0o750)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}") from error
    return path


def _share(path: Path | int, group: str | None, mode: int) -> None:
    """Give it to a group, if there is one of that name and we may."""
    if group is None or os.geteuid() != 0:
        return
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:  # its package is not installed here: whoever installs it makes the files anew
        return
    os.chown(path, -1, number)
    os.chmod(path, mode)  # noqa: PTH101  # an open file has no path
