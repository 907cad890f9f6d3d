"""A certificate that is not valid now: mostly the clock is wrong, and not the certificate."""

from __future__ import annotations

import datetime as dt
import ssl

_NOT_YET_VALID, _HAS_EXPIRED = 9, 10
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_SECONDS = 5.0
SET_THE_CLOCK = "set this machine's clock (timedatectl set-ntp true starts NTP)"


def clock_fault(error: ssl.SSLCertVerificationError, whose: str, address: tuple[str, int]) -> str | None:
    """What to say where a certificate was refused for the time alone; None where it was refused for something else.

    The date has no time of day: the same sentence is logged once, however often a connection is tried.
    """
    if error.verify_code not in (_NOT_YET_VALID, _HAS_EXPIRED):
        return None
    now = dt.datetime.now(tz=dt.UTC)
    clock = f"this machine's clock says {now:%Y-%m-%d}"
    if (valid := _validity(address)) and not valid[0] <= now <= valid[1]:
        text = f"{clock}, and the certificate of {whose} is valid from {valid[0]:%Y-%m-%d} to {valid[1]:%Y-%m-%d}"
    else:
        word = "not valid yet" if error.verify_code == _NOT_YET_VALID else "no longer valid"
        text = f"{clock}, and by it a certificate of {whose} is {word}"
    expired = error.verify_code == _HAS_EXPIRED
    renew = "; if the clock is right, the certificate needs to be renewed" if expired else ""
    return f"{text}: {SET_THE_CLOCK}{renew}"


def _validity(address: tuple[str, int]) -> tuple[dt.datetime, dt.datetime] | None:
    """The first and last moment of the certificate that a server shows; nothing is sent to it."""
    from cryptography import x509  # noqa: PLC0415  # only where a certificate is refused

    try:
        shown = x509.load_pem_x509_certificate(ssl.get_server_certificate(address, timeout=_SECONDS).encode())
    except (OSError, ValueError):
        return None
    return shown.not_valid_before_utc, shown.not_valid_after_utc
