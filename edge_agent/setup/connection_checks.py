"""Checks whether a device can connect: its clock fits the certificates, and the broker accepts it."""

from __future__ import annotations

import ctypes
import datetime as dt
import sys
import threading
from pathlib import Path

from paho.mqtt.enums import MQTTProtocolVersion

from sojourn.links.mqtt import tls_context
from sojourn.links.session import Identity, Session
from sojourn.links.settings import BrokerSettings, TlsSettings, read_password
from sojourn.protocol.topics import Address, inbox_filter

_UNSYNCHRONISED = 5
_TIMEX_BYTES = 512
"""Larger than any kernel's `struct timex`."""


def installed() -> dt.datetime:
    """Return when this program was installed; a correct clock cannot show an earlier time."""
    return dt.datetime.fromtimestamp(Path(__file__).stat().st_mtime, tz=dt.UTC)


def synchronised() -> bool | None:
    """Whether the kernel reports a synchronised clock; None if that is unknown."""
    if sys.platform != "linux":
        return None
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED


def outside_certificates(broker: BrokerSettings, now: dt.datetime) -> str | None:
    """Describe the first configured certificate that is not valid at this time; None if all are valid."""
    # Imported here, so that other commands do not load it.
    from cryptography import x509  # noqa: PLC0415

    files = broker.tls if isinstance(broker.tls, TlsSettings) else TlsSettings()
    for name in filter(None, (files.ca_file, files.certificate_file)):
        try:
            certificates = x509.load_pem_x509_certificates(Path(name).read_bytes())
        except (OSError, ValueError):
            continue  # the connection test reports this
        for each in certificates:
            first, last = each.not_valid_before_utc, each.not_valid_after_utc
            if not first <= now <= last:
                return f"{name} is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    return None


def fault(broker: BrokerSettings, now: dt.datetime, since: dt.datetime) -> str | None:
    """Return why this time cannot be correct; None if it can."""
    if now < since:
        return f"the clock shows {now:%Y-%m-%d %H:%M} UTC, before this program was installed ({since:%Y-%m-%d})"
    if outside := outside_certificates(broker, now):
        return f"the clock shows {now:%Y-%m-%d} UTC, but {outside}"
    return None


_CONNECT_TIMEOUT = 20.0
_VERSIONS = {
    "auto": (MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311),
    "5": (MQTTProtocolVersion.MQTTv5,),
    "3.1.1": (MQTTProtocolVersion.MQTTv311,),
}


def refusal_of(settings: BrokerSettings, fleet: str, name: str) -> str | None:
    """Return why the broker refuses the device; None if it accepts it.

    The test uses a separate client id: with the device's id, the broker would disconnect a running agent.
    """
    username = name if settings.username is None else settings.username
    filters = (inbox_filter(fleet, Address("device", name)),)
    identity = Identity(
        f"{name}-preflight", username, read_password(settings), tls_context(settings.tls), filters, None
    )
    reason: str | None = None
    for version in _VERSIONS[settings.protocol]:
        accepted = threading.Event()

        def on_connect(session: Session, accepted: threading.Event = accepted) -> None:
            accepted.set()
            session.disconnect(0)

        session = Session(
            settings, identity, version, on_connect, lambda _t, _p: None, threading.Event(), _CONNECT_TIMEOUT
        )
        ending = session.run()
        if accepted.is_set():
            return None
        reason = ending.reason
        if ending.answered:
            break
    return reason
