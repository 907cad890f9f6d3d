"""Where a device keeps the releases that it serves: `<store>/release/<line>/`, safe against a power cut at any point.

`current` and `previous` are small JSON files that name a graph and a card beside them. A file is whole and on the disk
before anything names it, `previous` is written before `current`, and what neither names is deleted last: so `current`
always names a release that works. A version that finds anomalies has a third file, with the threshold of this device.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Literal

import msgspec

from sojourn.errors import InvalidBlob, StoreError
from sojourn.protocol.limits import Name, Number
from sojourn.protocol.release import Goods, Parcel, Quantile, Version
from sojourn.store.blobs import LEAF, digest_of_hashes, disk_errors, leaf_hashes
from sojourn.store.files import BESIDE, move_into_place, sync_path, written_beside

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "release"
_FOLDER_MODE, _FILE_MODE = 0o750, 0o640
"""For programs of other users in the agent's group, and for nobody else."""
_AT_ONCE = 64 * LEAF
"""Bytes hashed at a time."""
_LARGEST = 1 << 12
"""Most bytes read of `current` or `previous`."""

Identity = tuple[int, int]
"""Tells one file under a name from the next: inode and time."""


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
        """The name of the file with what was measured here, of a version that finds anomalies."""
        return f"v{self.version}-{self.goods.card.digest.hex()[:8]}.threshold"


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From which score on a sample is an anomaly on this device: what `quantile` of `samples` of its own stay below.

    samples: 0 where it has none, and the card's threshold holds. data: changes when they do.
    """

    value: float
    quantile: Quantile
    samples: Number
    data: str = ""


class ReleaseFolder:
    """The releases of one line. One process writes, any number of others read."""

    def __init__(self, store: Path, line: str) -> None:
        self.line = line
        self._store = store
        self.path = store / FOLDER / line

    def place(self, served: ServedFiles, blobs: Path) -> None:
        """Bring a version's files into the folder and sync them. `current` still names the old version afterwards."""
        with disk_errors(f"keeping release {served.version} of {self.line}"):
            shared_folder(self._store, self.path)
            for name, parcel in self._parcels(served):
                if not self._is_whole(self.path / name, parcel):
                    self._take(blobs / parcel.digest.hex(), self.path / name, parcel)
            sync_path(self.path)

    def holds(self, served: ServedFiles) -> bool:
        """Whether all files of a version are here, and whole."""
        with disk_errors(f"looking at release {served.version} of {self.line}"):
            return all(self._is_whole(self.path / name, parcel) for name, parcel in self._parcels(served))

    def keep_threshold(self, served: ServedFiles, threshold: Threshold) -> None:
        """Keep what was measured of a version's scores here; whoever predicts with it looks again."""
        with disk_errors(f"keeping the threshold of release {served.version} of {self.line}"):
            self._write(served.threshold, msgspec.json.encode(threshold))
            if self.current() == served:
                self._name("current", served)  # another file under the same name is what programs look out for

    def threshold(self, served: ServedFiles) -> Threshold | None:
        """What was measured of a version's scores here; None where nothing was, or the file is damaged."""
        try:
            with (self.path / served.threshold).open("rb") as file:
                return msgspec.json.decode(file.read(_LARGEST), type=Threshold)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        except OSError as error:
            raise StoreError(f"{self.path / served.threshold} cannot be read: {error.strerror}") from error

    def make_current(self, served: ServedFiles) -> None:
        """Serve a version whose files are here; the one that was served becomes the previous one."""
        with disk_errors(f"serving release {served.version} of {self.line}"):
            current = self.current()
            if current == served:
                return
            if current is not None:
                self._name("previous", current)
            self._name("current", served)
            self.tidy()

    def withdraw(self) -> None:
        """Serve nothing, and keep nothing."""
        with disk_errors(f"withdrawing {self.line}"):
            if not self.path.is_dir():
                return
            for name in ("current", "previous"):
                (self.path / name).unlink(missing_ok=True)
                sync_path(self.path)
            self.tidy()

    def current(self) -> ServedFiles | None:
        """The version that is served; None for none, or where the file that names it is damaged."""
        return self._read("current")

    def previous(self) -> ServedFiles | None:
        """The version that was served before."""
        return self._read("previous")

    def identity(self) -> Identity | None:
        """Changes whenever another version is served; None while none is."""
        try:
            found = (self.path / "current").stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.path / 'current'} cannot be looked at: {error.strerror}") from error
        return found.st_ino, found.st_mtime_ns

    def read(self, served: ServedFiles) -> tuple[bytes, bytes]:
        """The graph and the card of a version, whole."""
        graph, card = (self._bytes(self.path / name, parcel) for name, parcel in self._parcels(served))
        return graph, card

    def read_card(self, served: ServedFiles) -> bytes:
        """The card of a version, whole."""
        return self._bytes(self.path / served.card, served.goods.card)

    def tidy(self) -> None:
        """Delete what neither `current` nor `previous` names: older versions, and what a killed process left."""
        kept = {"current", "previous"}
        for served in (self.current(), self.previous()):
            if served is not None:
                kept |= {served.graph, served.card, served.threshold}
        for path in self.path.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _parcels(self, served: ServedFiles) -> tuple[tuple[str, Parcel], ...]:
        return (served.graph, served.goods.graph), (served.card, served.goods.card)

    def _name(self, name: Literal["current", "previous"], served: ServedFiles) -> None:
        self._write(name, msgspec.json.encode(served))

    def _write(self, name: str, data: bytes) -> None:
        with written_beside(self.path / name, mode=_FILE_MODE, sync_folder=True) as file:
            file.write(data)
            os.fchmod(file.fileno(), _FILE_MODE)

    def _read(self, name: Literal["current", "previous"]) -> ServedFiles | None:
        try:
            with (self.path / name).open("rb") as file:
                served = msgspec.json.decode(file.read(_LARGEST), type=ServedFiles)
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            return None
        except OSError as error:
            raise StoreError(f"{self.path / name} cannot be read: {error.strerror}") from error
        return served if served.line == self.line else None

    def _take(self, blob: Path, target: Path, parcel: Parcel) -> None:
        """Give a blob a name in this folder: a second link to its file where the disk can do that, else a copy."""
        if not blob.exists():
            raise StoreError(f"the blob {parcel.digest.hex()[:12]} of a release of {self.line} is not here")
        beside = target.with_name(f"{target.name}{BESIDE}")
        beside.unlink(missing_ok=True)
        try:
            os.link(blob, beside)
        except OSError:  # another file system, or one without links
            shutil.copyfile(blob, beside)
        if not self._is_whole(beside, parcel):
            beside.unlink()
            raise InvalidBlob(f"a blob of a release of {self.line} does not match its digest")
        beside.chmod(_FILE_MODE)
        move_into_place(beside, target)

    def _is_whole(self, path: Path, parcel: Parcel) -> bool:
        try:
            size = path.stat().st_size
            return size == parcel.size and _digest(path, size) == parcel.digest
        except FileNotFoundError:
            return False

    def _bytes(self, path: Path, parcel: Parcel) -> bytes:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        if len(data) != parcel.size or digest_of_hashes(len(data), leaf_hashes(data)) != parcel.digest:
            raise InvalidBlob(f"{path} is damaged: it does not match its digest {parcel.digest.hex()[:12]}")
        return data


def lines(store: Path) -> tuple[str, ...]:
    """The lines that are served, by name."""
    try:
        found = sorted(path.parent.name for path in (store / FOLDER).glob("*/current"))
    except OSError as error:
        raise StoreError(f"{store / FOLDER} cannot be read: {error.strerror}") from error
    return tuple(found)


def shared_folder(store: Path, folder: Path) -> None:
    """Make a folder of the store that programs in the agent's group may look into."""
    for each in (store / FOLDER, folder):
        each.mkdir(parents=True, exist_ok=True)
        if each.stat().st_mode & 0o777 != _FOLDER_MODE:
            each.chmod(_FOLDER_MODE)
        sync_path(each.parent)
    mode = store.stat().st_mode & 0o777
    if not mode & 0o010:  # the group may pass through the store, not look around in it
        store.chmod(mode | 0o010)


def _digest(path: Path, size: int) -> bytes:
    """The digest of a file, read a few leaves at a time: a release may be larger than the memory to spare."""
    with path.open("rb", buffering=0) as file:
        return digest_of_hashes(size, b"".join(leaf_hashes(part) for part in iter(lambda: file.read(_AT_ONCE), b"")))
