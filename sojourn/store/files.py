"""Atomic file writes, and private files and folders."""

from __future__ import annotations

import errno
import grp
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sojourn.errors import ConfigError

TEMP_SUFFIX = ".new"
"""The suffix of files that are being written, or were when their process was killed."""


@contextmanager
def open_atomic(path: Path, *, mode: int = 0o666, sync: bool = True, sync_folder: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` on success and is deleted on failure.

    mode: of the new file, less the umask. sync: the content survives a power failure. sync_folder: so does the name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMP_SUFFIX}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(handle, "wb") as file:
            yield file
        move_into_place(temporary, path, sync=sync, sync_folder=sync_folder)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(
    path: Path, data: bytes | memoryview, *, mode: int = 0o666, sync: bool = True, sync_folder: bool = False
) -> None:
    """Write a file atomically."""
    with open_atomic(path, mode=mode, sync=sync, sync_folder=sync_folder) as file:
        file.write(data)


def move_into_place(temporary: Path, path: Path, *, sync: bool = True, sync_folder: bool = False) -> None:
    """Rename a complete file to its final name."""
    if sync:
        sync_path(temporary)
    temporary.replace(path)
    if sync_folder:
        sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Flush a file or a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_private(path: Path, data: bytes | str, *, group: str | None = None) -> None:
    """Write a file that only its owner, and the group if it exists, can read."""
    try:
        with open_atomic(path, mode=0o600) as file:
            file.write(data.encode() if isinstance(data, str) else data)
            _share(file.fileno(), group, 0o640)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def private_folder(path: Path, *, group: str | None = None, passable: bool = False) -> Path:
    """Create a folder for its owner; a group may read it, and with `passable` all users may traverse it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711 if passable else 0o700)
        _share(path, group, 0o750)
    except OSError as error:
        raise ConfigError(f"{path} cannot be created: {error.strerror}") from error
    return path


def _share(path: Path | int, group: str | None, mode: int) -> None:
    """Change the group, if it exists and this process runs as root."""
    if group is None or os.geteuid() != 0:
        return
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:  # its package is not installed; its installation writes the files again
        return
    os.chown(path, -1, number)
    os.chmod(path, mode)  # noqa: PTH101  # an open file has no path


log = logging.getLogger(__name__)

_OTHERS = 0o077
_GROUP_PASSES = 0o010
"""On a device, programs of the agent's group traverse the store to its releases, but cannot list it."""


def private_store(folder: Path) -> None:
    """Create the folder of a store, or remove other users' permissions from an existing one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    narrowed = sum([_narrow(folder.resolve(), kept=_GROUP_PASSES), *map(_narrow, _found(folder))])
    if narrowed:
        log.info("other users had access to %s: removed their permissions from %d files and folders", folder, narrowed)


def private_file(path: Path) -> None:
    """Create a file that only its owner can read, unless it exists."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _found(folder: Path) -> Iterator[Path]:
    """Yield the private files of a store; releases are for the group, and other files do not belong to the node."""
    yield from folder.glob("journal.db*")
    yield folder / "lock"
    for name in ("blobs", "features"):
        yield folder / name
        yield from (folder / name).glob("*")


def _narrow(path: Path, kept: int = 0) -> bool:
    """Remove other users' permissions except `kept`; return whether there were any."""
    try:
        # Opened first and never through a link: root may restore a store, and must not change another file.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            mode = stat.S_IMODE(found.st_mode)
            # A blob with a second hard link is also a release, which the group may read.
            second_name = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
            if second_name or not mode & _OTHERS & ~kept:
                return False
            os.fchmod(handle, mode & (~_OTHERS | kept))
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):  # a file of another user, or a file system without modes
            log.warning("cannot change the permissions of %s: %s", path, error.strerror)
        return False
    return True
