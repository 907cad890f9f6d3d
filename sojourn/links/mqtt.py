"""A link over MQTT: one session after another, as long as the link is open."""

from __future__ import annotations

import logging
import random
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from paho.mqtt.enums import MQTTProtocolVersion

from sojourn.errors import ConfigError, Fault, LinkError
from sojourn.links.link import PORTABLE_PAYLOAD, Listener, Will
from sojourn.links.session import HEADER_ROOM, Ending, Identity, Session
from sojourn.links.settings import BrokerSettings, TlsSettings, read_password

_LOG = logging.getLogger(__name__)
_FIRST_RECONNECT_DELAY = 0.5
_REFUSED_RECONNECT_DELAY = 4.0
_LONGEST_RECONNECT_DELAY = 30.0
_STABLE_SECONDS = 10.0
_FLUSH_SECONDS = 1.0
_JOIN_SECONDS = 2.0
_CONNACK_TIMEOUT = 15.0
"""Seconds for the broker to answer a connect."""
_FIRST_CONNACK_TIMEOUT = 4.0
"""The same if another MQTT version is left to try: some brokers do not answer an unknown version."""
_FLAPS_BEFORE_HINT = 3
_VERSIONS = {
    "auto": (MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311),
    "5": (MQTTProtocolVersion.MQTTv5,),
    "3.1.1": (MQTTProtocolVersion.MQTTv311,),
}


class MqttLink:
    """A `Link` to the broker in the settings, under the node's name."""

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
        """The latest connection, in any state."""
        self._session: Session | None = None
        """The latest connection while it is up."""
        self._overflowing = False
        self._reported: set[str] = set()

    @property
    def payload_limit(self) -> int:
        """The largest payload that this broker accepts; final once the link is up."""
        return self._payload_limit

    def open(self, listener: Listener, filters: Sequence[str], will: Will | None) -> None:
        """Connect in the background, subscribe to the filters on every connect, and retry forever."""
        if self._thread is not None:
            raise Fault("a link is opened only once")
        self._listener = listener
        identity = Identity(self._name, self._username, self._password, self._context.current(), tuple(filters), will)
        self._thread = threading.Thread(target=self._run, args=(identity,), name=f"mqtt-{self._name}", daemon=True)
        self._thread.start()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send, or drop if the link is down: a sender that needs a reply asks again."""
        session = self._session
        limit = self._payload_limit if session is None else session.payload_limit
        # A packet over the broker's limit ends the connection, so it must not even be queued.
        if len(payload) > limit:
            raise LinkError(
                f"a payload of {len(payload)} bytes exceeds the {limit} bytes that the broker at "
                f"{self._settings.address} accepts",
            )
        if len(topic) > HEADER_ROOM - 16:
            raise LinkError(f"a topic of {len(topic)} characters is too long: {topic[:60]}...")
        if session is None:
            return
        taken = session.publish(topic, payload, retain=retain)
        if not taken and not self._overflowing:
            _LOG.warning("%s: the broker accepts messages more slowly than they are sent; dropping some", self._name)
        self._overflowing = not taken

    def close(self) -> None:
        """Disconnect cleanly (the will is not published)."""
        self._closing.set()
        self._session = None
        attempt = self._attempt
        if attempt is not None:
            attempt.disconnect(_FLUSH_SECONDS)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # A connect that hangs in the network may outlast this; its thread ends later without further reports.
            thread.join(_JOIN_SECONDS)

    def _run(self, identity: Identity) -> None:
        failures = 0
        while not self._closing.is_set():
            started = time.monotonic()
            identity = msgspec.structs.replace(identity, context=self._context.current())
            ending = self._connect_once(identity)
            if self._closing.is_set():
                return
            # Two clients with one name disconnect each other right after connecting: that needs the back-off, too.
            failures = 0 if time.monotonic() - started > _STABLE_SECONDS and ending.answered else failures + 1
            reason = ending.reason
            if ending.flap and failures >= _FLAPS_BEFORE_HINT:
                reason += f", repeatedly: does another client use the name {self._name!r}?"
            self._report_down(reason)
            self._closing.wait(_reconnect_delay(failures, ending))

    def _connect_once(self, identity: Identity) -> Ending:
        """Serve one connection to its end, in the first MQTT version that the broker supports."""
        ending = Ending("")
        for version in self._versions:
            timeout = _CONNACK_TIMEOUT if version == self._versions[-1] else _FIRST_CONNACK_TIMEOUT
            self._attempt = Session(
                self._settings, identity, version, self._on_up, self._on_arrived, self._closing, timeout
            )
            ending = self._attempt.run()
            self._session = self._attempt = None
            if ending.answered or self._closing.is_set():
                break
        return ending

    def _on_up(self, session: Session) -> None:
        if self._closing.is_set() or self._listener is None:
            session.disconnect(0)
            return
        # The working version is tried first from now on; the other is kept, in case the broker is replaced.
        self._versions = tuple(sorted(self._versions, key=lambda version: version != session.protocol))
        self._payload_limit = session.payload_limit
        self._session = session
        self._reported.clear()
        _LOG.info(
            "%s: connected to %s with MQTT %s, payloads of at most %d bytes",
            self._name,
            self._settings.address,
            "5" if session.protocol == MQTTProtocolVersion.MQTTv5 else "3.1.1",
            session.payload_limit,
        )
        self._listener.link_up(self)

    def _report_down(self, reason: str) -> None:
        """Report once why the link is down, not at every attempt."""
        if reason in self._reported or self._listener is None:
            return
        self._reported.add(reason)
        _LOG.warning("%s: %s; retrying", self._name, reason)
        self._listener.link_down(self, reason)

    def _on_arrived(self, topic: str, payload: bytes) -> None:
        if self._listener is not None and not self._closing.is_set():
            self._listener.arrived(self, topic, payload)


class TlsFiles:
    """The TLS context, loaded again before a connection if the files have changed, as certificates are renewed."""

    def __init__(self, tls: bool | TlsSettings) -> None:
        self._tls = tls
        self._read = self._stamps()
        self._context = tls_context(tls)

    def current(self) -> ssl.SSLContext | None:
        """Return the context of the current files; the previous one if they cannot be read now."""
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


def _reconnect_delay(failures: int, ending: Ending) -> float:
    """Return an exponential back-off with jitter, so that a fleet does not reconnect all at once."""
    longest = min(_LONGEST_RECONNECT_DELAY, _FIRST_RECONNECT_DELAY * 2.0 ** min(max(failures - 1, 0), 16))
    if ending.refused:
        longest = max(longest, _REFUSED_RECONNECT_DELAY)
    return longest * random.uniform(0.5, 1.0)


def tls_context(tls: bool | TlsSettings) -> ssl.SSLContext | None:
    """Return the TLS context, or None without TLS."""
    if tls is False:
        return None
    files = tls if isinstance(tls, TlsSettings) else TlsSettings()
    if files.key_file is not None and files.certificate_file is None:
        raise ConfigError("broker.tls: key_file is set without certificate_file: set both")
    for what in ("ca_file", "certificate_file", "key_file"):
        _check_readable(what, getattr(files, what))
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
        if files.certificate_file is not None:
            context.load_cert_chain(files.certificate_file, files.key_file)
    except ssl.SSLError as error:
        raise ConfigError(
            f"broker.tls: ca_file, certificate_file or key_file has unexpected content ({error.reason}): "
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
            f"broker.tls: cannot read the {what} {name} ({error.strerror}): check the path and its permissions",
        ) from error
