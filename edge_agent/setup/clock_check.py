"""Whether the clock can be right: a board without one of its own starts somewhere in the past."""

from __future__ import annotations

import ctypes
import datetime as dt
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.links.settings import TlsSettings

if TYPE_CHECKING:
    from sojourn.links.settings import BrokerSettings

_UNSYNCHRONISED = 5
_ROOM = 512
"""More than any kernel's `struct timex`."""


def installed() -> dt.datetime:
    """When this program was put here: no right clock shows a time before."""
    return dt.datetime.fromtimestamp(Path(__file__).stat().st_mtime, tz=dt.UTC)


def synchronised() -> bool | None:
    """Whether the kernel says that something keeps its clock right; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_ROOM))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED


def outside_certificates(broker: BrokerSettings, now: dt.datetime) -> str | None:
    """Which of the certificates that are configured is not valid at this time."""
    # Not at the top: the commands that do not ask this need not load it.
    from cryptography import x509  # noqa: PLC0415

    files = broker.tls if isinstance(broker.tls, TlsSettings) else TlsSettings()
    for name in filter(None, (files.ca_file, files.certificate_file)):
        try:
            certificates = x509.load_pem_x509_certificates(Path(name).read_bytes())
        except (OSError, ValueError):
            continue  # that is told where the broker is tried
        for each in certificates:
            first, last = each.not_valid_before_utc, each.not_valid_after_utc
            if not first <= now <= last:
                return f"{name} is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    return None


def fault(broker: BrokerSettings, now: dt.datetime, since: dt.datetime) -> str | None:
    """Why this cannot be the right time, if so."""
    if now < since:
        return f"it says {now:%Y-%m-%d %H:%M} UTC, which is before this program was installed ({since:%Y-%m-%d})"
    if outside := outside_certificates(broker, now):
        return f"it says {now:%Y-%m-%d} UTC, and {outside}"
    return None
