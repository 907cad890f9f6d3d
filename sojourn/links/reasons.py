"""Why a connection failed, in words that tell a person what to do."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from sojourn.links.clock_fault import clock_fault

if TYPE_CHECKING:
    from sojourn.links.settings import BrokerSettings

UNSUPPORTED_PROTOCOL = 0x84

_SAID_BY_BROKER = {
    UNSUPPORTED_PROTOCOL: "it does not speak this MQTT version: set protocol to another, or to 'auto'",
    0x85: "it does not accept this client id",
    0x86: "bad username or password",
    0x87: "not authorised: check username, password and the broker's access rules",
    0x88: "it is unavailable",
    0x89: "it is busy",
    0x8A: "this client is banned",
    0x8B: "it is shutting down",
    0x8D: "it heard nothing from us for too long",
    0x8E: "another client connected with the same name: names must be unique in the fleet",
    0x93: "too many messages were in flight",
    0x95: "a packet was too large for it: lower max_payload",
    0x97: "its quota is exceeded",
}
_FOR_OTHERS = " for other machines: Mosquitto 2 listens on localhost alone, unless its configuration has a `listener`"
_HOST_MISMATCH = (62, 64)
_ALERTS = {
    "CERTIFICATE_REQUIRED": "the broker wants a client certificate: set certificate_file and key_file",
    "UNKNOWN_CA": "the broker does not trust the CA of our certificate",
    "BAD_CERTIFICATE": "the broker does not accept our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired by the broker's clock: renew it, or set that clock",
    "HANDSHAKE_FAILURE": "no agreement on TLS: the broker may want a client certificate",
    "WRONG_VERSION_NUMBER": "the broker does not speak TLS on this port: switch tls off, or use its TLS port",
}


def said_by_broker(code: int, name: str) -> str:
    """What an MQTT 5 reason code means."""
    return _SAID_BY_BROKER.get(code, name.lower())


def cannot_connect(settings: BrokerSettings, error: OSError | UnicodeError) -> str:
    """Why no connection was made at all."""
    where = settings.address
    match error:
        case ssl.SSLCertVerificationError() if error.verify_code in _HOST_MISMATCH:
            return f"the certificate of the broker at {where} is for another host: {error.verify_message}"
        case ssl.SSLCertVerificationError():
            fault = clock_fault(error, f"the broker at {where}", (settings.host, settings.effective_port))
            untrusted = f"is not trusted ({error.verify_message}): check ca_file"
            return fault or f"the certificate of the broker at {where} {untrusted}"
        case ssl.SSLError():
            return f"TLS with {where} failed: {tls_alert(str(error)) or error.reason or error}"
        case socket.gaierror() | UnicodeError():
            return f"the host name {settings.host!r} cannot be resolved: check it, and this machine's network"
        case ConnectionRefusedError():
            return f"no broker listens at {where}{'' if settings.here else _FOR_OTHERS}"
        case ConnectionError() if settings.tls:
            return f"{where} closed the connection when TLS was to begin: check that this is its TLS port"
        case TimeoutError():
            return f"no answer from {where}: check the address and the firewall"
        case _:
            return f"{where} cannot be reached: {error.strerror or error}"


def tls_alert(text: str) -> str | None:
    """What a TLS alert that stands in this text means."""
    return next((meaning for alert, meaning in _ALERTS.items() if alert in text), None)


def unanswered(settings: BrokerSettings) -> str:
    """Why a connection ended before the broker said a word."""
    hint = "" if settings.tls else ": if that is its TLS port, switch tls on"
    return f"the broker at {settings.address} closed the connection without an answer{hint}"
