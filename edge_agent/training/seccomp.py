"""A filter of system calls (seccomp): this process makes no connection, starts no program and touches no other process.

It lists what is forbidden, not what is allowed: numpy, onnxruntime and an owner's objectives need no more of the system
than they did, and what they do not need is not known for every board. A forbidden call fails with EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from dataclasses import dataclass

_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where they are in what a filter looks at."""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD = 0x00010000
_TOO_NEW = 451
"""Calls from this number on are newer than this list. They look as if the kernel did not have them, as many do not."""

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
"""What is forbidden, with its numbers on x86_64 and on aarch64. Landlock guards what files hold, and not their modes,
owners and times: so these are here too."""


@dataclass(frozen=True)
class _Architecture:
    """How a processor's system calls are numbered."""

    audit: int
    column: int
    """Of `FORBIDDEN`."""
    clone: int
    clone3: int
    own_process_only: tuple[int, ...]
    """kill, tgkill: the process itself, by its number."""
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
    """Have the kernel refuse all that is on the list, here and in what is started; OSError says why it does not."""
    steps = [_Step(*step) for step in _steps(_ARCHITECTURES.get(platform.machine()))]
    program = _Program(len(steps), (_Step * len(steps))(*steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _steps(architecture: _Architecture | None) -> list[tuple[int, int, int, int]]:
    if architecture is None:
        raise OSError(errno.ENOSYS, f"the system calls of {platform.machine()} are not known here")
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
        # Threads, and no processes. Of the newer call a filter does not see the flags: without it, the older is used.
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
