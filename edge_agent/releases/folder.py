"""The folder of a served model line, `<store>/release/<line>/`, which is safe against a power cut at any point.

`current` and `previous` are small JSON files that name a graph and a card in the same folder. A file is complete and
synced before another file names it, `previous` is written before `current`, and unnamed files are deleted last: so
`current` always names a working release. A version that detects anomalies has a third file, the device's threshold.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from sojourn.errors import InvalidBlob, StoreError
from sojourn.protocol.limits import Name, Number
from sojourn.protocol.release import BlobRef, Goods, Quantile, Version
from sojourn.store.blobs import LEAF, digest_of_hashes, disk_errors, leaf_hashes
from sojourn.store.files import TEMP_SUFFIX, move_into_place, open_atomic, sync_path

FOLDER = "release"
_FOLDER_MODE, _FILE_MODE = 0o750, 0o640
"""Access for the agent's user and group only."""
_HASH_CHUNK = 64 * LEAF
"""Bytes hashed at a time."""
_MAX_JSON_BYTES = 1 << 12
"""Maximum bytes to read of a JSON file."""

Identity = tuple[int, int]
"""Distinguishes two files with the same name: inode and modification time."""


class ServedFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version of a line, and the files that hold it."""

    line: Name
    version: Version
    goods: Goods

    @property
    def graph(self) -> str:
        """The name of the graph's file."""
        return f"v{self.version}-{self.goods.graph.digest.hex()[:8]}.onnx"

    @property
    def card(self) -> str:
        """The name of the card's file."""
        return f"v{self.version}-{self.goods.card.digest.hex()[:8]}.card"

    @property
    def threshold(self) -> str:
        """The name of the file with this device's threshold, of a version that detects anomalies."""
        return f"v{self.version}-{self.goods.card.digest.hex()[:8]}.threshold"


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The score above which a sample is an anomaly on this device: the `quantile` of its samples' scores.

    samples: 0 if the device has none, and the card's threshold is used. data: changes when the samples change.
    """

    value: float
    quantile: Quantile
    samples: Number
    data: str = ""


class ReleaseFolder:
    """The releases of one line. One process writes; any number of processes read."""

    def __init__(self, store: Path, line: str) -> None:
        self.line = line
        self._store = store
        self.path = store / FOLDER / line

    def place(self, served: ServedFiles, blobs: Path) -> None:
        """Place a version's files in the folder and sync them; `current` still names the old version."""
        with disk_errors(f"storing release {served.version} of {self.line}"):
            shared_folder(self._store, self.path)
            for name, ref in self._files_of(served):
                if not self._is_intact(self.path / name, ref):
                    self._take(blobs / ref.digest.hex(), self.path / name, ref)
            sync_path(self.path)

    def holds(self, served: ServedFiles) -> bool:
        """Whether all files of a version are in the folder and intact."""
        with disk_errors(f"checking release {served.version} of {self.line}"):
            return all(self._is_intact(self.path / name, ref) for name, ref in self._files_of(served))

    def keep_threshold(self, served: ServedFiles, threshold: Threshold) -> None:
        """Store a version's threshold; programs that use the version reload it."""
        with disk_errors(f"storing the threshold of release {served.version} of {self.line}"):
            self._write(served.threshold, msgspec.json.encode(threshold))
            if self.current() == served:
                self._name("current", served)  # programs notice a new file under this name

    def threshold(self, served: ServedFiles) -> Threshold | None:
        """Return the device's threshold for a version; None if it is missing or damaged."""
        try:
            with (self.path / served.threshold).open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_JSON_BYTES), type=Threshold)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        except OSError as error:
            raise StoreError(f"{self.path / served.threshold} cannot be read: {error.strerror}") from error

    def make_current(self, served: ServedFiles) -> None:
        """Serve a version whose files are in the folder; the current one becomes the previous one."""
        with disk_errors(f"serving release {served.version} of {self.line}"):
            current = self.current()
            if current == served:
                return
            if current is not None:
                self._name("previous", current)
            self._name("current", served)
            self.tidy()

    def withdraw(self) -> None:
        """Stop serving the line, and delete its files."""
        with disk_errors(f"withdrawing {self.line}"):
            if not self.path.is_dir():
                return
            for name in ("current", "previous"):
                (self.path / name).unlink(missing_ok=True)
                sync_path(self.path)
            self.tidy()

    def current(self) -> ServedFiles | None:
        """Return the served version; None if there is none, or if the file that names it is damaged."""
        return self._read("current")

    def previous(self) -> ServedFiles | None:
        """Return the version that was served before."""
        return self._read("previous")

    def identity(self) -> Identity | None:
        """Return a value that changes whenever another version is served; None while none is."""
        try:
            found = (self.path / "current").stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.path / 'current'} cannot be read: {error.strerror}") from error
        return found.st_ino, found.st_mtime_ns

    def read(self, served: ServedFiles) -> tuple[bytes, bytes]:
        """Return the verified graph and card of a version."""
        graph, card = (self._bytes(self.path / name, ref) for name, ref in self._files_of(served))
        return graph, card

    def read_card(self, served: ServedFiles) -> bytes:
        """Return the verified card of a version."""
        return self._bytes(self.path / served.card, served.goods.card)

    def tidy(self) -> None:
        """Delete the files that neither `current` nor `previous` names: older versions and incomplete files."""
        kept = {"current", "previous"}
        for served in (self.current(), self.previous()):
            if served is not None:
                kept |= {served.graph, served.card, served.threshold}
        for path in self.path.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _files_of(self, served: ServedFiles) -> tuple[tuple[str, BlobRef], ...]:
        return (served.graph, served.goods.graph), (served.card, served.goods.card)

    def _name(self, name: Literal["current", "previous"], served: ServedFiles) -> None:
        self._write(name, msgspec.json.encode(served))

    def _write(self, name: str, data: bytes) -> None:
        with open_atomic(self.path / name, mode=_FILE_MODE, sync_folder=True) as file:
            file.write(data)
            os.fchmod(file.fileno(), _FILE_MODE)

    def _read(self, name: Literal["current", "previous"]) -> ServedFiles | None:
        try:
            with (self.path / name).open("rb") as file:
                served = msgspec.json.decode(file.read(_MAX_JSON_BYTES), type=ServedFiles)
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            return None
        except OSError as error:
            raise StoreError(f"{self.path / name} cannot be read: {error.strerror}") from error
        return served if served.line == self.line else None

    def _take(self, blob: Path, target: Path, ref: BlobRef) -> None:
        """Link a blob into this folder, or copy it if the file system cannot link."""
        if not blob.exists():
            raise StoreError(f"the blob {ref.digest.hex()[:12]} of a release of {self.line} is missing")
        temporary = target.with_name(f"{target.name}{TEMP_SUFFIX}")
        temporary.unlink(missing_ok=True)
        try:
            os.link(blob, temporary)
        except OSError:  # another file system, or one without links
            shutil.copyfile(blob, temporary)
        if not self._is_intact(temporary, ref):
            temporary.unlink()
            raise InvalidBlob(f"a blob of a release of {self.line} does not match its digest")
        temporary.chmod(_FILE_MODE)
        move_into_place(temporary, target)

    def _is_intact(self, path: Path, ref: BlobRef) -> bool:
        try:
            size = path.stat().st_size
            return size == ref.size and _digest(path, size) == ref.digest
        except FileNotFoundError:
            return False

    def _bytes(self, path: Path, ref: BlobRef) -> bytes:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        if len(data) != ref.size or digest_of_hashes(len(data), leaf_hashes(data)) != ref.digest:
            raise InvalidBlob(f"{path} is damaged: it does not match its digest {ref.digest.hex()[:12]}")
        return data


def lines(store: Path) -> tuple[str, ...]:
    """Return the names of the served lines."""
    try:
        found = sorted(path.parent.name for path in (store / FOLDER).glob("*/current"))
    except OSError as error:
        raise StoreError(f"{store / FOLDER} cannot be read: {error.strerror}") from error
    return tuple(found)


def shared_folder(store: Path, folder: Path) -> None:
    """Create a folder in the store that programs in the agent's group can read."""
    for each in (store / FOLDER, folder):
        each.mkdir(parents=True, exist_ok=True)
        if each.stat().st_mode & 0o777 != _FOLDER_MODE:
            each.chmod(_FOLDER_MODE)
        sync_path(each.parent)
    mode = store.stat().st_mode & 0o777
    if not mode & 0o010:  # the group may enter the store, but not list it
        store.chmod(mode | 0o010)


def _digest(path: Path, size: int) -> bytes:
    """Return the digest of a file, read in chunks, since a release may be larger than the free memory."""
    with path.open("rb", buffering=0) as file:
        return digest_of_hashes(size, b"".join(leaf_hashes(part) for part in iter(lambda: file.read(_HASH_CHUNK), b"")))
