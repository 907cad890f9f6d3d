"""A store is for its owner alone, whatever the umask, and also where an earlier version made it with wider modes."""

from __future__ import annotations

import errno
import logging
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS = 0o077
_GROUP_PASSES = 0o010
"""On a device programs of the agent's group pass through the store to its releases; they cannot look around in it."""


def private_store(folder: Path) -> None:
    """Make the folder of a store, or take from others what they may do with one that is there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    narrowed = sum([_narrow(folder.resolve(), kept=_GROUP_PASSES), *map(_narrow, _found(folder))])
    if narrowed:
        log.info("others could look into %s: modes of %d files and folders were narrowed", folder, narrowed)


def private_file(path: Path) -> None:
    """Make a file that its owner alone can read, unless there is one."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _found(folder: Path) -> Iterator[Path]:
    """What a node keeps in its store. Releases are for the group, and what else lies there is not the node's own."""
    yield from folder.glob("journal.db*")
    yield folder / "lock"
    for name in ("blobs", "features"):
        yield folder / name
        yield from (folder / name).glob("*")


def _narrow(path: Path, kept: int = 0) -> bool:
    """Take from others what they may do with a file or folder, but for `kept`; says whether there was any of it."""
    try:
        # Opened first, and never through a link: who restores a store may be root, and must not touch another file.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            mode = stat.S_IMODE(found.st_mode)
            # A blob with a second name is a release, too, and the group may read that.
            second_name = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
            if second_name or not mode & _OTHERS & ~kept:
                return False
            os.fchmod(handle, mode & (~_OTHERS | kept))
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):  # another's file, or a disk without modes
            log.warning("whether others may read %s cannot be changed: %s", path, error.strerror)
        return False
    return True
