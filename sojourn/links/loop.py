"""The loop that moves one paho client's bytes.

Paho's own loop wakes up every second, selects on at most 1024 files, and writes a byte to itself for every publish.
This one sleeps until there is work.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paho.mqtt.client import Client, SocketLike

_READ = selectors.EVENT_READ
_WRITE = selectors.EVENT_WRITE


class MqttLoop:
    """Runs on one thread; `wake` may be called on any."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # With this callback set, paho leaves all writing to us; from two threads it would garble the stream. It has
        # nothing to do: the loop looks after every step, and whoever adds something on another thread wakes it.
        client.on_socket_register_write = lambda *_: None

    def run(self, nap: Callable[[], float], feed: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Serve the connection until it ends or is over, fed at every step, asleep for at most a nap at a time."""
        client, connection = self._client, self._client.socket()
        if connection is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, _READ)
            selector.register(connection, _READ)
            watched = _READ
            while client.socket() is not None and not is_over():
                wanted = _READ | _WRITE if client.want_write() else _READ
                if wanted != watched:
                    selector.modify(connection, wanted)
                    watched = wanted
                pending = _pending(connection)
                ready = {key.fileobj: mask for key, mask in selector.select(0 if pending else nap())}
                if pending or ready.get(connection, 0) & _READ:
                    client.loop_read()
                if self._reader in ready:
                    self._reader.recv(4096)
                feed()
                if client.want_write():
                    client.loop_write()
                client.loop_misc()

    def wake(self) -> None:
        """Make the loop look for work."""
        # Full: it is awake already. Closed: nobody is left to wake.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def close(self) -> None:
        """Close the connection, if it is open still, and let go of the client."""
        connection = self._client.socket()
        if connection is not None:
            connection.close()
        self._client.on_socket_register_write = None
        self._reader.close()
        self._writer.close()


def _pending(connection: SocketLike) -> int:
    """Bytes that TLS has decrypted already, of which a selector knows nothing."""
    return connection.pending() if isinstance(connection, ssl.SSLSocket) else 0
