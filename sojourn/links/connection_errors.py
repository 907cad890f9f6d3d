"""Explains why a connection failed, with a remedy: refused, unanswered, or a wrong clock."""

from __future__ import annotations

import datetime as dt
import socket
import ssl

from sojourn.links.settings import BrokerSettings

_NOT_YET_VALID, _HAS_EXPIRED = 9, 10
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_SECONDS = 5.0
SET_THE_CLOCK = "set this machine's clock (timedatectl set-ntp true starts NTP)"


def clock_fault(error: ssl.SSLCertVerificationError, server: str, address: tuple[str, int]) -> str | None:
    """Return the message for a certificate that was refused only because of its dates; None for other reasons.

    The date has no time of day, so that repeated attempts log the same sentence, once.
    """
    if error.verify_code not in (_NOT_YET_VALID, _HAS_EXPIRED):
        return None
    now = dt.datetime.now(tz=dt.UTC)
    clock = f"this machine's date is {now:%Y-%m-%d}"
    if (valid := _validity(address)) and not valid[0] <= now <= valid[1]:
        text = f"{clock}, but the certificate of {server} is valid from {valid[0]:%Y-%m-%d} to {valid[1]:%Y-%m-%d}"
    else:
        state = "not valid yet" if error.verify_code == _NOT_YET_VALID else "no longer valid"
        text = f"{clock}, so a certificate of {server} is {state}"
    expired = error.verify_code == _HAS_EXPIRED
    renew = "; if the clock is right, renew the certificate" if expired else ""
    return f"{text}: {SET_THE_CLOCK}{renew}"


def _validity(address: tuple[str, int]) -> tuple[dt.datetime, dt.datetime] | None:
    """Return the validity dates of a server's certificate; nothing is sent to it."""
    from cryptography import x509  # noqa: PLC0415  # only where a certificate is refused

    try:
        shown = x509.load_pem_x509_certificate(ssl.get_server_certificate(address, timeout=_SECONDS).encode())
    except (OSError, ValueError):
        return None
    return shown.not_valid_before_utc, shown.not_valid_after_utc


UNSUPPORTED_PROTOCOL = 0x84

_BROKER_REASONS = {
    UNSUPPORTED_PROTOCOL: "it does not support this MQTT version: set protocol to another version, or to 'auto'",
    0x85: "it does not accept this client id",
    0x86: "bad username or password",
    0x87: "not authorised: check username, password and the broker's access rules",
    0x88: "it is unavailable",
    0x89: "it is busy",
    0x8A: "this client is banned",
    0x8B: "it is shutting down",
    0x8D: "it received nothing from this client for too long",
    0x8E: "another client connected with the same name: names must be unique in the fleet",
    0x93: "too many messages were in flight",
    0x95: "a packet was larger than it allows: lower max_payload",
    0x97: "its quota is exceeded",
}
_REMOTE_HINT = " for other machines: Mosquitto 2 listens only on localhost, unless its configuration has a `listener`"
_HOST_MISMATCH = (62, 64)
_ALERTS = {
    "CERTIFICATE_REQUIRED": "the broker requires a client certificate: set certificate_file and key_file",
    "UNKNOWN_CA": "the broker does not trust the CA of this client's certificate",
    "BAD_CERTIFICATE": "the broker does not accept this client's certificate",
    "CERTIFICATE_EXPIRED": "this client's certificate has expired by the broker's clock: renew it, or set that clock",
    "HANDSHAKE_FAILURE": "no agreement on TLS: the broker may require a client certificate",
    "WRONG_VERSION_NUMBER": "the broker does not use TLS on this port: switch tls off, or use its TLS port",
}


def broker_reason(code: int, name: str) -> str:
    """Explain an MQTT 5 reason code."""
    return _BROKER_REASONS.get(code, name.lower())


def cannot_connect(settings: BrokerSettings, error: OSError | UnicodeError) -> str:
    """Explain why no connection was made."""
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
            return f"cannot resolve the host name {settings.host!r}: check it, and this machine's network"
        case ConnectionRefusedError():
            return f"no broker listens at {where}{'' if settings.is_local else _REMOTE_HINT}"
        case ConnectionError() if settings.tls:
            return f"{where} closed the connection before TLS began: check that this is its TLS port"
        case TimeoutError():
            return f"no answer from {where}: check the address and the firewall"
        case _:
            return f"cannot reach {where}: {error.strerror or error}"


def tls_alert(text: str) -> str | None:
    """Return the meaning of a TLS alert that this text contains."""
    return next((meaning for alert, meaning in _ALERTS.items() if alert in text), None)


def unanswered(settings: BrokerSettings) -> str:
    """Explain a connection that ended before the broker's first reply."""
    hint = "" if settings.tls else ": if that is its TLS port, switch tls on"
    return f"the broker at {settings.address} closed the connection without an answer{hint}"
