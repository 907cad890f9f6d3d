"""The two parts of the sandbox that the Linux kernel enforces: Landlock for files, seccomp for system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Landlock (Linux 5.13 and newer): restricts the files that this process can open to those below the listed paths.
#
# Open files stay open. The restriction is permanent, and later threads and processes inherit it.

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls; they have the same numbers on every architecture."""
_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_REG = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
LIST = _READ_DIR
"""List the names in a folder and its subfolders."""
READ = _READ_FILE | _READ_DIR
WRITE = READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _REFER | _TRUNCATE
"""Create, change and delete regular files, and read them."""
_KNOWN_BY = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights that each version of Landlock knows; a right that is not granted is denied."""
_TCP = 3
_SIGNALS_AND_SOCKETS = 3


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Return the version of Landlock that this kernel supports; 0 without Landlock."""
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def restrict(rights: Iterable[tuple[Path, int]]) -> None:
    """Restrict the process to files below these paths; paths that do not exist are skipped.

    If Landlock supports it, TCP and signals to outside processes are blocked, too. Raises OSError if the kernel cannot
    restrict the process.
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


# A seccomp filter of system calls: the process cannot connect, start programs or access other processes.
#
# The filter lists forbidden calls, because the calls that numpy, onnxruntime and custom objectives need are not known
# for every board. A forbidden call fails with EPERM.

_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD = 0x00010000
_TOO_NEW = 451
"""Calls from this number on are newer than this list. They fail with ENOSYS, as on an older kernel."""

FORBIDDEN: dict[str, tuple[int, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "execve": (59, 221), "execveat": (322, 281), "fork": (57, None),
    "vfork": (58, None), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "kcmp": (312, 272), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "personality": (135, 92), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186),
    "msgctl": (71, 187), "semget": (64, 190), "semctl": (66, 191), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "mknodat": (259, 33), "utimensat": (280, 88), "setuid": (105, 146),
    "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147),
    "setresgid": (119, 149), "setfsuid": (122, 151), "setfsgid": (123, 152), "setgroups": (116, 159),
    "capset": (126, 91), "setpriority": (141, 140), "ioprio_set": (251, 30), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "chmod": (90, None), "chown": (92, None), "lchown": (94, None), "mknod": (133, None),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "ioperm": (173, None), "iopl": (172, None),
}  # fmt: skip
"""The forbidden calls with their numbers on x86_64 and on aarch64. Landlock protects only the content of files, so the
calls that change modes, owners and times are listed, too."""


@dataclass(frozen=True)
class _Architecture:
    """The system call numbers of a processor architecture."""

    audit: int
    column: int
    """Its column in `FORBIDDEN`."""
    clone: int
    clone3: int
    own_process_only: tuple[int, ...]
    """kill and tgkill: allowed only with the process's own id."""
    prlimit: int


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 0, 56, 435, (62, 234), 302),
    "aarch64": _Architecture(0xC00000B7, 1, 220, 435, (129, 131), 261),
}


class _Step(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("steps", ctypes.POINTER(_Step)))


def forbid() -> None:
    """Install the filter for this process and its children; raise OSError if the kernel cannot."""
    steps = [_Step(*step) for step in _steps(_ARCHITECTURES.get(platform.machine()))]
    program = _Program(len(steps), (_Step * len(steps))(*steps))
    libc = _libc()
    _checked(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0))


def _steps(architecture: _Architecture | None) -> list[tuple[int, int, int, int]]:
    if architecture is None:
        raise OSError(errno.ENOSYS, f"the system calls of {platform.machine()} are unknown")
    denied, missing = (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)
    allowed = (_RETURN, 0, 0, _ALLOW)
    load_argument = (_LOAD, 0, 0, _FIRST_ARGUMENT)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _TOO_NEW),
        missing,
        # Allow threads, not processes. A filter cannot see the flags of clone3; if it fails, libraries use clone.
        (_JUMP_EQUAL, 0, 1, architecture.clone3),
        missing,
        (_JUMP_EQUAL, 0, 4, architecture.clone),
        load_argument,
        (_JUMP_SET, 1, 0, _CLONE_THREAD),
        denied,
        allowed,
    ]
    for number in architecture.own_process_only:
        steps += [(_JUMP_EQUAL, 0, 4, number), load_argument, (_JUMP_EQUAL, 1, 0, os.getpid()), denied, allowed]
    steps += [(_JUMP_EQUAL, 0, 4, architecture.prlimit), load_argument, (_JUMP_EQUAL, 1, 0, 0), denied, allowed]
    for call in FORBIDDEN.values():
        if (forbidden := call[architecture.column]) is not None:
            steps += [(_JUMP_EQUAL, 0, 1, forbidden), denied]
    return [*steps, allowed]
