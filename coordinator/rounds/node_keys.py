"""The keys with which devices sign, as the fleet's folder has them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

import msgspec

from sojourn.errors import ConfigError
from sojourn.protocol.limits import Name
from sojourn.protocol.signed_hop import PublicKey
from sojourn.settings import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)
SigningPolicy = Literal["enrolled", "require", "off"]
"""Whose results must be signed: of devices that have joined with a key of their own, of all, or nobody's."""


class _KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: dict[Name, PublicKey] = {}


class NodeKeys:
    """Public keys by the names of devices; of a file, read again whenever it changes."""

    def __init__(
        self, path: Path | None = None, policy: SigningPolicy = "enrolled", keys: Mapping[str, bytes] | None = None
    ) -> None:
        self._path, self.policy = path, policy
        self._keys: dict[str, bytes] = dict(keys or {})
        self._read: int | None = None
        self._reported: dict[str, set[str]] = {}
        """The devices of each site without a key that the log has a warning of."""

    def now(self) -> dict[str, bytes]:
        """All keys; none where nobody has to sign."""
        if self.policy == "off":
            return {}
        stamp = self._stamp()
        if self._path is not None and stamp != self._read:
            self._read = stamp
            try:
                self._keys = dict(read_file(self._path, _KeysFile).keys) if stamp else {}
            except ConfigError as error:  # the keys of before count on, rather than none
                log.warning("%s", error)
        return self._keys

    def of(self, devices: Iterable[str]) -> dict[str, bytes]:
        """The keys of these devices, as far as they have some."""
        known = self.now()
        return {device: known[device] for device in devices if device in known} if known else {}

    def newly_without(self, site: str, devices: Iterable[str]) -> list[str]:
        """Which of these devices have no key and were not reported before; none where no device signs at all."""
        known = self.now()
        if self.policy == "off" or not (known or self._path or self.policy == "require"):
            return []
        reported = self._reported.setdefault(site, set())
        reported.difference_update(known)
        new = [device for device in devices if device not in known and device not in reported]
        reported.update(new)
        return new

    def _stamp(self) -> int:
        try:
            return self._path.stat().st_mtime_ns if self._path else 0
        except OSError:
            return 0
