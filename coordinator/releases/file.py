"""A release as one file: the prediction graph with its card, protected against damage."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import msgspec

from sojourn.errors import DataError, MachineError, ModelError
from sojourn.protocol.release import BlobRef, Card, Goods
from sojourn.store.blobs import digest_of
from sojourn.store.files import write_atomically

MAGIC = b"sojourn-release\n"
FORMAT = 1
LARGEST_GRAPH = 512 << 20
"""The maximum size in bytes: more than any supported device could hold in memory next to its other work."""
LARGEST_CARD = 16 << 20
_LARGEST_FILE = LARGEST_GRAPH + LARGEST_CARD + 1024
_ITEM = {"float32": 4, "int64": 8}


class _Layout(msgspec.Struct, frozen=True):
    format: int
    card: bytes
    graph: bytes
    seal: bytes


@dataclass(frozen=True)
class ReleaseFile:
    """A release in memory; its digest, and so every signature, covers `card_bytes`."""

    card: Card
    graph: bytes
    card_bytes: bytes

    @property
    def goods(self) -> Goods:
        """The blobs that a device fetches."""
        return Goods(
            BlobRef(digest_of(self.graph), len(self.graph)), BlobRef(digest_of(self.card_bytes), len(self.card_bytes))
        )


def release_of(card: Card, graph: bytes) -> ReleaseFile:
    """Return the release with this card, if a reader would accept it."""
    return _release(msgspec.msgpack.encode(card), graph, "the release")


def release_from_blobs(card_bytes: bytes, graph: bytes, where: str) -> ReleaseFile:
    """Return the release of these two blobs, checked like one from a file."""
    release = _release(card_bytes, graph, where)
    if reason := disagreement(release):
        raise DataError(f"{where}: its card is not the card of its graph: {reason}")
    return release


def read_release(path: Path) -> ReleaseFile:
    """Read the release in a file; it must be complete, undamaged, and have a card that matches its graph."""
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise DataError(f"{path} has {size:,} bytes: the maximum for a release is {_LARGEST_FILE:,}")
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    layout = _layout(data, path)
    if layout.seal != _seal(layout.card, layout.graph):
        raise DataError(f"{path} is damaged: its content does not match its seal; create or copy it again")
    return release_from_blobs(layout.card, layout.graph, str(path))


def write_release(path: Path, release: ReleaseFile) -> None:
    """Write the release atomically: a reader finds the complete release or none."""
    layout = _Layout(FORMAT, release.card_bytes, release.graph, _seal(release.card_bytes, release.graph))
    try:
        write_atomically(path, MAGIC + msgspec.msgpack.encode(layout))
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from error


def disagreement(release: ReleaseFile) -> str | None:
    """Run the graph on the card's probe and return the difference; None if the card matches."""
    from sojourn.model.predictions import ReleasePredictor  # noqa: PLC0415  # writing needs no onnxruntime

    try:
        ReleasePredictor(release.graph, release.card).check_probe()
    except ModelError as error:
        return str(error)
    return None


def _layout(data: bytes, path: Path) -> _Layout:
    if not data.startswith(MAGIC):
        raise DataError(f"{path} is not a release: create one with `sojourn release create`")
    try:
        layout = msgspec.msgpack.decode(memoryview(data)[len(MAGIC) :], type=_Layout)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is cut short or damaged: {error}") from error
    if layout.format != FORMAT:
        raise DataError(f"{path} has the format {layout.format}; this version of Sojourn reads format {FORMAT}")
    return layout


def _release(card_bytes: bytes, graph: bytes, where: str) -> ReleaseFile:
    if not 0 < len(graph) <= LARGEST_GRAPH:
        raise DataError(f"{where}: its graph has {len(graph):,} bytes: it must have 1 to {LARGEST_GRAPH:,}")
    return ReleaseFile(read_card(card_bytes, where), graph, card_bytes)


def read_card(card_bytes: bytes, where: str) -> Card:
    """Read the card in a blob, if a device would accept it."""
    if len(card_bytes) > LARGEST_CARD:
        raise DataError(f"{where}: its card has {len(card_bytes):,} bytes: the maximum is {LARGEST_CARD:,}")
    try:
        card = msgspec.msgpack.decode(card_bytes, type=Card)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: its card is invalid: {error}") from error
    probe = card.probe
    x_bytes = probe.rows * prod(card.input.shape) * _ITEM[card.input.dtype]
    if not probe.rows or len(probe.x) != x_bytes or len(probe.logits) != probe.rows * prod(card.learns.output) * 4:
        raise DataError(f"{where}: the probe in its card does not have the shape of its input and classes")
    if (card.learns.kind == "reconstruction") != bool(card.anomaly):
        raise DataError(
            f"{where}: its card must have a threshold of anomalies if and only if it is for a reconstruction"
        )
    if probe.atol <= 0:
        raise DataError(f"{where}: the tolerance in its card is {probe.atol}")
    return card


def _seal(card: bytes, graph: bytes) -> bytes:
    return digest_of(card) + digest_of(graph)
