"""The figures that are read from the machine and not from the node: disk, journal, certificates.

They are read while somebody scrapes, on the scraper's thread: a node that waits for a full disk still tells that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.links.settings import TlsSettings
from sojourn.metrics.catalogue import CERTIFICATE, DISK_FREE, DISK_SIZE, JOURNAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.links.settings import BrokerSettings
    from sojourn.metrics.reading import Reading


class Surroundings:
    """A node's folder, and the certificates that its links use."""

    def __init__(self, store: Path, brokers: Mapping[str, BrokerSettings]) -> None:
        """`brokers`: how each role of peers is reached."""
        self._store = store
        self._certificates = [found for peer, broker in brokers.items() for found in _certificates(peer, broker)]

    def read(self, into: Reading) -> None:
        """Put what is there; what cannot be read is left out."""
        journal = self._store / "journal.db"
        into.put(JOURNAL, sum(map(_size, (journal, journal.with_name("journal.db-wal")))))
        try:
            disk = os.statvfs(self._store)
        except OSError:
            disk = None
        if disk is not None:
            into.put(DISK_FREE, disk.f_bavail * disk.f_frsize)
            into.put(DISK_SIZE, disk.f_blocks * disk.f_frsize)
        for each in self._certificates:
            if (ends := each.ends()) is not None:
                into.put(CERTIFICATE, ends, each.whose, each.peer)


class WatchedCertificate:
    """A file with certificates, read again when it has changed: a device has its own renewed while it runs."""

    def __init__(self, whose: str, peer: str, file: str) -> None:
        self.whose, self.peer = whose, peer
        self._path = Path(file).expanduser()
        self._stamp = 0
        self._ends: float | None = None

    def ends(self) -> float | None:
        """When the first of them ends, in seconds since 1970; None where that cannot be read."""
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._stamp:
                self._ends, self._stamp = _first_end(self._path.read_bytes()), stamp
        except (OSError, ValueError):
            return None
        return self._ends


def _first_end(pem: bytes) -> float:
    from cryptography import x509  # noqa: PLC0415  # its megabytes only where there are certificates to watch

    return min(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(pem))


def _certificates(peer: str, broker: BrokerSettings) -> list[WatchedCertificate]:
    tls = broker.tls if isinstance(broker.tls, TlsSettings) else TlsSettings()
    files = {"own": tls.certificate_file, "authority": tls.ca_file}
    return [WatchedCertificate(whose, peer, file) for whose, file in files.items() if file]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
