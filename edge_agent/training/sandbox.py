"""The sandbox of a process that runs graphs from the network: restricts files, network and system calls.

A process must enter it before it loads onnxruntime, because threads inherit the restrictions when they start. The
report lists what this kernel cannot restrict; an old kernel is not a reason to decline every visit.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

MAX_FILE_SIZE = 2 << 30
MAX_OPEN_FILES = 1024
MEMORY_SHARE = 0.75
"""The share of the machine's memory that training may use if the owner has set no limit."""
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ssl/openssl.cnf", "/etc/localtime", "/etc/os-release",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/sys/devices/system", "/sys/bus/pci/devices",
    "/sys/devices/pci0000:00", "/sys/class/drm", "/dev/null", "/dev/zero", "/dev/urandom",
)  # fmt: skip
"""The paths that the libraries of Python and onnxruntime read; none of them contains private data."""


class SandboxReport(msgspec.Struct, frozen=True, tag="sandboxed"):
    """What the sandbox blocks, and what it cannot block on this system."""

    closed: tuple[str, ...]
    open: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"blocked: {', '.join(self.closed) or 'nothing'}"
        return f"{text}; not blocked: {', '.join(self.open)}" if self.open else text


def enter_sandbox(read: Iterable[Path], write: Iterable[Path] = ()) -> SandboxReport:
    """Restrict this process: it can read and write these paths and read Python's, without network or programs."""
    _bound_files()
    try:
        from edge_agent.training import kernel_sandbox  # noqa: PLC0415  # ctypes is for the worker alone
    except (ImportError, MemoryError) as error:  # a Python without ctypes, or with a broken one
        return SandboxReport((), (f"files, network and programs (this Python has no ctypes: {error})",))
    closed: list[str] = []
    left: list[str] = []
    reads = [*map(Path, _SYSTEM), *python_paths(), *read]
    rights = [(path, kernel_sandbox.READ) for path in reads] + [(path, kernel_sandbox.WRITE) for path in write]
    rights.append((_project_root(), kernel_sandbox.LIST))
    try:
        kernel_sandbox.restrict(
            [*rights, *((_project_root() / name, kernel_sandbox.READ) for name in ("edge_agent", "sojourn"))]
        )
        closed.append(f"all other files (Landlock {kernel_sandbox.version()})")
    except OSError as error:
        left.append(f"the files that its user can read (no Landlock in this kernel: {error.strerror})")
    try:
        kernel_sandbox.forbid()
        closed.append("network, programs and other processes (seccomp)")
    except OSError as error:
        left.append(f"network and programs (no seccomp: {error.strerror})")
    return SandboxReport(tuple(closed), tuple(left))


def python_paths() -> list[Path]:
    """Return the folders in which this interpreter finds modules, except the project's own."""
    roots = [sys.prefix, sys.base_prefix, sys.exec_prefix, *(path for path in sys.path if path)]
    return [path for path in dict.fromkeys(map(Path, roots)) if path != _project_root()]


def exposed(secrets: Iterable[Path], read: Iterable[Path]) -> list[tuple[Path, Path]]:
    """Return the secret files that a worker could read, each with the readable path that contains it."""
    roots = [path.resolve() for path in (*map(Path, _SYSTEM), *python_paths(), *read)]
    return [
        (secret, root)
        for secret in secrets
        for root in roots
        if secret.exists() and secret.resolve().is_relative_to(root)
    ]


def _project_root() -> Path:
    """Return the folder that contains the project's packages."""
    return Path(__file__).resolve().parents[2]


def bound_memory(megabytes: int | None) -> None:
    """Limit this process's private writable memory; the default is `MEMORY_SHARE` of the machine's memory.

    Call this after all libraries are loaded, so that a limit that is too low fails the work and not the process. The
    address space is not limited, because onnxruntime reserves far more of it than it uses.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _lower(resource.RLIMIT_DATA, int(machine * MEMORY_SHARE) if megabytes is None else megabytes << 20)


def _bound_files() -> None:
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_SIZE)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, wanted: int) -> None:
    """Set a hard limit, unless it is already lower."""
    soft, hard = resource.getrlimit(which)
    known = [each for each in (soft, hard, wanted) if each != resource.RLIM_INFINITY]
    resource.setrlimit(which, (min(known), min(known)))
