"""A link over MQTT: one session after another, for as long as the link is open."""

from __future__ import annotations

import logging
import random
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from paho.mqtt.enums import MQTTProtocolVersion

from sojourn.errors import ConfigError, Fault, LinkError
from sojourn.links.link import PORTABLE_PAYLOAD
from sojourn.links.session import HEADER_ROOM, Ending, Identity, Session
from sojourn.links.settings import BrokerSettings, TlsSettings, read_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.links.link import Listener, Will

_LOG = logging.getLogger(__name__)
_FIRST_DELAY = 0.5
_REFUSED_DELAY = 4.0
_LONGEST_DELAY = 30.0
_STABLE_SECONDS = 10.0
_FLUSH_SECONDS = 1.0
_JOIN_SECONDS = 2.0
_PATIENCE = 15.0
"""Seconds for the broker to answer a connect."""
_FIRST_PATIENCE = 4.0
"""The same where another MQTT version is left to try: some brokers answer an unknown one with silence."""
_FLAPS_BEFORE_HINT = 3
_VERSIONS = {
    "auto": (MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311),
    "5": (MQTTProtocolVersion.MQTTv5,),
    "3.1.1": (MQTTProtocolVersion.MQTTv311,),
}


class MqttLink:
    """A `Link` to the broker in the settings, under the node's own name."""

    def __init__(self, settings: BrokerSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._username = name if settings.username is None else settings.username
        self._password = read_password(settings)
        self._context = TlsFiles(settings.tls)
        self._versions = _VERSIONS[settings.protocol]
        self._payload_limit = min(PORTABLE_PAYLOAD, settings.max_payload or PORTABLE_PAYLOAD)
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._attempt: Session | None = None
        """The newest connection, in whatever state."""
        self._session: Session | None = None
        """The same while it is up."""
        self._overflowing = False
        self._told: set[str] = set()

    @property
    def payload_limit(self) -> int:
        """The largest payload this broker takes from us; known for sure once the link is up."""
        return self._payload_limit

    def open(self, listener: Listener, filters: Sequence[str], will: Will | None) -> None:
        """Connect in the background, subscribe to the filters on every connect, and go on trying for ever."""
        if self._thread is not None:
            raise Fault("a link is opened only once")
        self._listener = listener
        identity = Identity(self._name, self._username, self._password, self._context.now(), tuple(filters), will)
        self._thread = threading.Thread(target=self._run, args=(identity,), name=f"mqtt-{self._name}", daemon=True)
        self._thread.start()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send, or drop when the link is down: whoever needs an answer asks again."""
        session = self._session
        limit = self._payload_limit if session is None else session.payload_limit
        # A packet over the broker's limit ends the connection, so it must not even be queued.
        if len(payload) > limit:
            raise LinkError(
                f"a payload of {len(payload)} bytes is over the {limit} that the broker at "
                f"{self._settings.address} takes",
            )
        if len(topic) > HEADER_ROOM - 16:
            raise LinkError(f"a topic of {len(topic)} characters is too long: {topic[:60]}...")
        if session is None:
            return
        taken = session.publish(topic, payload, retain=retain)
        if not taken and not self._overflowing:
            _LOG.warning("%s: the broker takes messages more slowly than we send; dropping some", self._name)
        self._overflowing = not taken

    def close(self) -> None:
        """Disconnect in good order (the will is not published)."""
        self._closing.set()
        self._session = None
        attempt = self._attempt
        if attempt is not None:
            attempt.disconnect(_FLUSH_SECONDS)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # A connect that hangs in the network may outlast this; its thread ends by itself and says nothing more.
            thread.join(_JOIN_SECONDS)

    def _run(self, identity: Identity) -> None:
        failures = 0
        while not self._closing.is_set():
            started = time.monotonic()
            identity = msgspec.structs.replace(identity, context=self._context.now())
            ending = self._connect_once(identity)
            if self._closing.is_set():
                return
            # Two clients with one name throw each other out right after connecting: that has to slow down too.
            failures = 0 if time.monotonic() - started > _STABLE_SECONDS and ending.answered else failures + 1
            reason = ending.reason
            if ending.flap and failures >= _FLAPS_BEFORE_HINT:
                reason += f", again and again: does another client use the name {self._name!r}?"
            self._tell_down(reason)
            self._closing.wait(_delay(failures, ending))

    def _connect_once(self, identity: Identity) -> Ending:
        """Serve one connection to its end, in the first MQTT version that the broker speaks."""
        ending = Ending("")
        for version in self._versions:
            patience = _PATIENCE if version == self._versions[-1] else _FIRST_PATIENCE
            self._attempt = Session(
                self._settings, identity, version, self._tell_up, self._tell_arrived, self._closing, patience
            )
            ending = self._attempt.run()
            self._session = self._attempt = None
            if ending.answered or self._closing.is_set():
                break
        return ending

    def _tell_up(self, session: Session) -> None:
        if self._closing.is_set() or self._listener is None:
            session.disconnect(0)
            return
        # The version that works is tried first from now on; the other stays, for a broker that is replaced.
        self._versions = tuple(sorted(self._versions, key=lambda version: version != session.protocol))
        self._payload_limit = session.payload_limit
        self._session = session
        self._told.clear()
        _LOG.info(
            "%s: connected to %s with MQTT %s, payloads of at most %d bytes",
            self._name,
            self._settings.address,
            "5" if session.protocol == MQTTProtocolVersion.MQTTv5 else "3.1.1",
            session.payload_limit,
        )
        self._listener.link_up(self)

    def _tell_down(self, reason: str) -> None:
        """Say once why the link is down, not at every try."""
        if reason in self._told or self._listener is None:
            return
        self._told.add(reason)
        _LOG.warning("%s: %s; trying again until it works", self._name, reason)
        self._listener.link_down(self, reason)

    def _tell_arrived(self, topic: str, payload: bytes) -> None:
        if self._listener is not None and not self._closing.is_set():
            self._listener.arrived(self, topic, payload)


class TlsFiles:
    """What TLS needs, read again before a connection when the files have changed: certificates are renewed."""

    def __init__(self, tls: bool | TlsSettings) -> None:
        self._tls = tls
        self._read = self._stamps()
        self._context = tls_context(tls)

    def now(self) -> ssl.SSLContext | None:
        """The context as the files have it; the one before, if they cannot be read at the moment."""
        if (stamps := self._stamps()) != self._read:
            try:
                self._context, self._read = tls_context(self._tls), stamps
            except ConfigError as error:
                _LOG.warning("%s", error)
        return self._context

    def _stamps(self) -> tuple[int, ...]:
        files = self._tls if isinstance(self._tls, TlsSettings) else TlsSettings()
        named = (files.ca_file, files.certificate_file, files.key_file)
        return tuple(Path(name).stat().st_mtime_ns for name in named if name and Path(name).exists())


def _delay(failures: int, ending: Ending) -> float:
    """Exponential back-off with jitter, so that a fleet does not come back all at once."""
    longest = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(max(failures - 1, 0), 16))
    if ending.refused:
        longest = max(longest, _REFUSED_DELAY)
    return longest * random.uniform(0.5, 1.0)


def tls_context(tls: bool | TlsSettings) -> ssl.SSLContext | None:
    """What TLS needs, or None without TLS."""
    if tls is False:
        return None
    files = tls if isinstance(tls, TlsSettings) else TlsSettings()
    if files.key_file is not None and files.certificate_file is None:
        raise ConfigError("broker.tls: key_file is given without certificate_file: give both")
    for what in ("ca_file", "certificate_file", "key_file"):
        _check_readable(what, getattr(files, what))
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
        if files.certificate_file is not None:
            context.load_cert_chain(files.certificate_file, files.key_file)
    except ssl.SSLError as error:
        raise ConfigError(
            f"broker.tls: ca_file, certificate_file or key_file does not hold what it should ({error.reason}): "
            "they must be PEM files, and the key must belong to the certificate",
        ) from error
    if files.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _check_readable(what: str, name: str | None) -> None:
    if name is None:
        return
    try:
        with Path(name).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"broker.tls: the {what} {name} cannot be read ({error.strerror}): check the path and its permissions",
        ) from error
