"""A bundle: the few small files that one node needs to join a fleet, as a tar.gz to copy to it."""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from typing import TYPE_CHECKING

from sojourn.errors import ConfigError
from sojourn.store.files import write_private

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LARGEST = 1 << 20
"""Bytes of all files: settings, a password or a certificate, and a few public keys are far less."""
_PLAIN = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


def write_bundle(path: Path, files: Mapping[str, bytes]) -> None:
    """Pack these files, for their owner alone."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    write_private(path, made.getvalue())


def read_bundle(path: Path) -> dict[str, bytes]:
    """The files of a bundle: plain ones only, without folders."""
    files: dict[str, bytes] = {}
    room = LARGEST
    try:
        with tarfile.open(path, "r:gz") as tar:
            for entry in tar:
                room -= entry.size
                if not entry.isfile() or not _PLAIN.fullmatch(entry.name) or room < 0:
                    raise ConfigError(f"{path} is not a bundle of ours: it holds {entry.name[:100]!r}")
                content = tar.extractfile(entry)
                files[entry.name] = content.read() if content else b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} is not a whole bundle: {error}") from error
    return files
