"""Clearing what a broker keeps of a member that was removed: its presence, and retained messages of it and for it.

A broker that takes up who its members are goes on with what it has retained, and a removed device would stay on every
roster. So whoever has the fleet's folder connects to the broker on the same machine with a certificate made for the
moment, waits until the broker has taken up the new access list, in which that certificate's name may empty the
member's topics, empties them, and takes over the member's own connection, if it has one, to end it.
"""

from __future__ import annotations

import ssl
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from sojourn.brokers.acl import CLEANER
from sojourn.brokers.fleet import CA_FILE, authority_of, read
from sojourn.errors import LinkError
from sojourn.store.files import write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paho.mqtt.reasoncodes import ReasonCode

    from sojourn.brokers.certificates import Authority

HOST = "127.0.0.1"
_NOT_AUTHORISED = 0x87
_ANSWER_SECONDS = 30.0
_PAUSE = 0.1


def clear(folder: Path, name: str, left: Sequence[str], patience: float) -> bool:
    """Empty the topics that a member left, once the broker has read its files again; then end its connection.

    Returns False if no broker of this fleet answers on this machine. LinkError if it did not read its files in time.
    """
    port, authority = read(folder).listeners.certificate, authority_of(folder)
    try:
        with _Cleaner(folder, authority, CLEANER, port) as cleaner:
            deadline = time.monotonic() + patience
            while not cleaner.empties(left[0]):
                if time.monotonic() > deadline:
                    raise LinkError(f"the broker at {HOST}:{port} has not read its files again")
                time.sleep(_PAUSE)
            for topic in left[1:]:
                cleaner.empties(topic)
        with _Cleaner(folder, authority, name, port):
            return True
    except OSError:
        return False


class _Cleaner:
    """One connection under a name, with a certificate that nobody keeps."""

    def __init__(self, folder: Path, authority: Authority, name: str, port: int) -> None:
        self._answers: dict[int, int] = {}
        self._answered = threading.Condition()
        self._connected: int | None = None
        self._port = port
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.tls_set_context(_context(folder, authority, name))
        self._client.on_connect = lambda _c, _u, _f, code, _p: self._enter(code)
        self._client.on_publish = lambda _c, _u, mid, code, _p: self._take(mid, code)

    def empties(self, topic: str) -> bool:
        """Have nothing retained on a topic; False if the broker does not let us."""
        mid = self._client.publish(topic, b"", qos=1, retain=True).mid
        self._wait(lambda: mid in self._answers)
        return self._answers.pop(mid) != _NOT_AUTHORISED

    def __enter__(self) -> Self:
        self._client.connect(HOST, self._port)
        self._client.loop_start()
        self._wait(lambda: self._connected is not None)
        if self._connected:
            raise LinkError(f"the broker at {HOST}:{self._port} refused the connection (code {self._connected})")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _wait(self, done: Callable[[], bool]) -> None:
        with self._answered:
            if not self._answered.wait_for(done, _ANSWER_SECONDS):
                raise LinkError(f"the broker at {HOST}:{self._port} does not answer")

    def _enter(self, code: ReasonCode) -> None:
        with self._answered:
            self._connected = code.value if code.is_failure else 0
            self._answered.notify_all()

    def _take(self, mid: int, code: ReasonCode) -> None:
        with self._answered:
            self._answers[mid] = code.value
            self._answered.notify_all()


def _context(folder: Path, authority: Authority, name: str) -> ssl.SSLContext:
    issued = authority.for_node(name)
    context = ssl.create_default_context(cafile=str(folder / CA_FILE))
    with tempfile.TemporaryDirectory() as place:  # the ssl module reads them from files only
        certificate, key = Path(place) / "pem", Path(place) / "key"
        write_private(certificate, issued.certificate)
        write_private(key, issued.key)
        context.load_cert_chain(certificate, key)
    return context
