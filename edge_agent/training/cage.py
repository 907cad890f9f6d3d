"""The cage of a process that runs graphs which others sent: what it may read, write and do from now on.

It is closed before onnxruntime is loaded, since that starts threads, and what they may do is settled when they start.
What a system cannot do is told, and the rest is closed all the same: an old kernel is no reason to decline every visit.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST_FILE = 2 << 30
MOST_FILES = 1024
MEMORY_SHARE = 0.75
"""Of the machine's memory, where the owner has set no limit."""
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ssl/openssl.cnf", "/etc/localtime", "/etc/os-release",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/sys/devices/system", "/sys/bus/pci/devices",
    "/sys/devices/pci0000:00", "/sys/class/drm", "/dev/null", "/dev/zero", "/dev/urandom",
)  # fmt: skip
"""What Python's and onnxruntime's libraries read, and nothing that an owner keeps to himself."""


class CageReport(msgspec.Struct, frozen=True, tag="caged"):
    """What a worker can no longer do, and what it still could because the system has no means against it."""

    closed: tuple[str, ...]
    open: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = f"closed: {', '.join(self.closed) or 'nothing'}"
        return f"{words}; open: {', '.join(self.open)}" if self.open else words


def close_cage(read: Iterable[Path], write: Iterable[Path] = ()) -> CageReport:
    """From now on: read these paths and what Python needs, write those, and no network, program or other process."""
    _bound_files()
    try:
        from edge_agent.training import landlock, seccomp  # noqa: PLC0415  # ctypes is for the worker alone
    except (ImportError, MemoryError) as error:  # a Python without it, or one that may not make it work here
        return CageReport((), (f"files, network and programs (Python has no ctypes here: {error})",))
    closed: list[str] = []
    left: list[str] = []
    reads = [*map(Path, _SYSTEM), *python_paths(), *read]
    rights = [(path, landlock.READ) for path in reads] + [(path, landlock.WRITE) for path in write]
    rights.append((_ours(), landlock.LIST))
    try:
        landlock.restrict([*rights, *((_ours() / name, landlock.READ) for name in ("edge_agent", "sojourn"))])
        closed.append(f"all other files (Landlock {landlock.version()})")
    except OSError as error:
        left.append(f"the files that its user can read (no Landlock in this kernel: {error.strerror})")
    try:
        seccomp.forbid()
        closed.append("network, programs and other processes (seccomp)")
    except OSError as error:
        left.append(f"network and programs (no seccomp: {error.strerror})")
    return CageReport(tuple(closed), tuple(left))


def python_paths() -> list[Path]:
    """Where this interpreter finds its modules, besides our own."""
    roots = [sys.prefix, sys.base_prefix, sys.exec_prefix, *(path for path in sys.path if path)]
    return [path for path in dict.fromkeys(map(Path, roots)) if path != _ours()]


def exposed(secrets: Iterable[Path], read: Iterable[Path]) -> list[tuple[Path, Path]]:
    """Those of an agent's own files that a worker could read all the same, each with the path that it may read."""
    roots = [path.resolve() for path in (*map(Path, _SYSTEM), *python_paths(), *read)]
    return [
        (secret, root)
        for secret in secrets
        for root in roots
        if secret.exists() and secret.resolve().is_relative_to(root)
    ]


def _ours() -> Path:
    """The folder that our packages are in."""
    return Path(__file__).resolve().parents[2]


def bound_memory(megabytes: int | None) -> None:
    """Have allocations beyond this fail here, before the system is short of memory; unless told, at most of it.

    To be called when all libraries are loaded, so that a limit which is too low fails the work and not the process. Not
    the address space: onnxruntime reserves far more of it than it uses. What is private and writable counts.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _lower(resource.RLIMIT_DATA, int(machine * MEMORY_SHARE) if megabytes is None else megabytes << 20)


def _bound_files() -> None:
    _lower(resource.RLIMIT_FSIZE, LARGEST_FILE)
    _lower(resource.RLIMIT_NOFILE, MOST_FILES)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, wanted: int) -> None:
    """Set a limit that cannot be raised again, unless it is lower already."""
    soft, hard = resource.getrlimit(which)
    known = [each for each in (soft, hard, wanted) if each != resource.RLIM_INFINITY]
    resource.setrlimit(which, (min(known), min(known)))
