"""Landlock, where Linux has it (5.13 and newer): from now on this process opens only files below the paths it names.

What is open stays open. Nothing undoes it, and every thread and process that is started later inherits it.
"""

from __future__ import annotations

import ctypes
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls; they have the same numbers on every architecture."""
_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_REG = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
LIST = _READ_DIR
"""See which names are in a folder, and in those below it."""
READ = _READ_FILE | _READ_DIR
WRITE = READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _REFER | _TRUNCATE
"""Make, change and delete plain files, besides reading them."""
_KNOWN_BY = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights over files that a version of Landlock knows; what is not granted is denied."""
_TCP = 3
_SIGNALS_AND_SOCKETS = 3


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Which version of Landlock this kernel has and uses; 0 for none."""
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def restrict(rights: Iterable[tuple[Path, int]]) -> None:
    """Open nothing from now on but what is below these paths; a path that does not exist is left out.

    TCP is closed too where Landlock can, and signals to processes outside. OSError says why nothing was restricted.
    """
    libc, known = _libc(), version()
    files = _KNOWN_BY[max(each for each in _KNOWN_BY if each <= max(1, known))]
    size = 8 if known < 4 else 16 if known < 6 else 24
    ruleset = _Ruleset(files, _TCP, _SIGNALS_AND_SOCKETS)
    handle = _checked(libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0)))
    try:
        for path, allowed in rights:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _allow(libc, handle, path, allowed & files)
        _checked(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(libc.syscall(_RESTRICT_SELF, ctypes.c_int(handle), ctypes.c_uint32(0)))
    finally:
        os.close(handle)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, allowed: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            allowed &= _OF_FILES
        if allowed:
            rule = _PathBeneath(allowed, handle)
            _checked(
                libc.syscall(
                    _ADD_RULE,
                    ctypes.c_int(ruleset),
                    ctypes.c_int(_PATH_BENEATH),
                    ctypes.byref(rule),
                    ctypes.c_uint32(0),
                )
            )
    finally:
        os.close(handle)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
