"""Compiled kits on the disk, by recipe: whoever simulates the same model again does not wait for torch again."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sojourn.errors import InvalidBlob, InvalidMessage
from sojourn.protocol.envelope import pack_blob, unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.store.files import write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

MOST = 64
"""At most this many kits are kept; the one not used for longest goes first."""
_HASH = hashlib.sha256().digest_size


class CachedKit(msgspec.Struct, frozen=True):
    """A kit, and the model that it starts from."""

    kit: Kit
    initial: bytes


class KitCache:
    """A folder of kits. It is only ever a short cut: what cannot be read or written is compiled, as without it."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sojourn" / "kits"

    def find(self, recipe: str) -> tuple[Kit, NDArray[np.float32]] | None:
        """What came of a recipe before."""
        path = self._folder / recipe
        try:
            data = path.read_bytes()
            path.touch()
        except OSError:
            return None
        if hashlib.sha256(data[_HASH:]).digest() != data[:_HASH]:
            return None
        try:
            found = unpack_blob(data[_HASH:], CachedKit)
        except (InvalidBlob, InvalidMessage):
            return None
        return found.kit, np.frombuffer(found.initial, "<f4").astype(np.float32)

    def keep(self, recipe: str, kit: Kit, initial: NDArray[np.float32]) -> None:
        """Keep what came of a recipe for another time."""
        data = pack_blob(CachedKit(kit, initial.astype("<f4").tobytes()))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / recipe, hashlib.sha256(data).digest() + data, sync=False)
            for old in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-MOST]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.debug("%s is not kept for another time: %s", recipe, error)
