"""Ports for what cannot be told to take any free one."""

from __future__ import annotations

import random
import socket

_CHOICE = range(10_000, 32_000)
"""Below those that Linux (from 32,768) and macOS (from 49,152) give to whoever connects or asks for any: one of these
would be somebody else's in the seconds until a broker takes it."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, and that the system gives to nobody by itself."""
    draw = random.Random()  # seeded by the system: several processes look for ports at once
    held: dict[int, socket.socket] = {}
    try:
        while len(held) < count:
            port = draw.choice(_CHOICE)
            if port in held:
                continue
            try:
                held[port] = socket.create_server(("127.0.0.1", port))
            except OSError:
                continue
    finally:
        for each in held.values():
            each.close()
    return list(held)
