"""Ports for programs that cannot be asked to take any free one."""

from __future__ import annotations

import random
import socket

from tests.waiting import LIMIT

_CHOICE = range(10_000, 32_000)
"""Below the ports that Linux (from 32,768) and macOS (from 49,152) give to outgoing connections: one of those could be
taken in the seconds until a broker binds it, or while a broker is restarted."""
_RESERVED: list[socket.socket] = []
"""One abstract socket for each port that this process has handed out; the system frees them when the process ends."""


def free_ports(count: int) -> list[int]:
    """Ports that are free now, and that no other test process on this machine is given while this one runs."""
    draw = random.Random()  # seeded by the system: several processes look for ports at once
    found: list[int] = []
    while len(found) < count:
        port = draw.choice(_CHOICE)
        if _reserve(port) and _is_free(port):
            found.append(port)
    return found


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a program accepts connections at this port."""
    try:
        socket.create_connection((host, port), timeout=LIMIT).close()
    except OSError:
        return False
    return True


def _reserve(port: int) -> bool:
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0sojourn-test-port-{port}")
    except OSError:
        mark.close()
        return False
    _RESERVED.append(mark)
    return True


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
