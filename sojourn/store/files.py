"""Files that not everybody may read: written beside and renamed, so that a reader sees the old one or the new one."""

from __future__ import annotations

import grp
import os
from typing import TYPE_CHECKING

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def write_private(path: Path, data: bytes | str, *, group: str | None = None) -> None:
    """Write a file for its owner alone, or also for a group to read where there is such a group."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    content = data.encode() if isinstance(data, str) else data
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _share(beside, group, 0o640)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
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


def _share(path: Path, group: str | None, mode: int) -> None:
    """Give it to a group, if there is one of that name and we may."""
    if group is None or os.geteuid() != 0:
        return
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:  # its package is not installed here: whoever installs it makes the files anew
        return
    os.chown(path, -1, number)
    path.chmod(mode)
