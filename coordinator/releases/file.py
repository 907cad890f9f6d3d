"""A release as one file: the prediction graph with its card, sealed against damage."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import msgspec

from sojourn.errors import DataError, MachineError, ModelError
from sojourn.protocol.release import Card, Goods, Parcel
from sojourn.store.blobs import digest_of
from sojourn.store.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"sojourn-release\n"
FORMAT = 1
LARGEST_GRAPH = 512 << 20
"""Bytes: more than any device here could hold in memory beside its other work."""
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
    """A release in memory; `card_bytes` are what its digest, and so every signature, is over."""

    card: Card
    graph: bytes
    card_bytes: bytes

    @property
    def goods(self) -> Goods:
        """What a device fetches."""
        return Goods(
            Parcel(digest_of(self.graph), len(self.graph)), Parcel(digest_of(self.card_bytes), len(self.card_bytes))
        )


def release_of(card: Card, graph: bytes) -> ReleaseFile:
    """The release with this card, if a reader would take it."""
    return _release(msgspec.msgpack.encode(card), graph, "the release")


def put_together(card_bytes: bytes, graph: bytes, where: str) -> ReleaseFile:
    """The release in these two blobs, proven as one that is read from a file."""
    release = _release(card_bytes, graph, where)
    if why := disagreement(release):
        raise DataError(f"{where}: its card is not the card of its graph: {why}")
    return release


def read_release(path: Path) -> ReleaseFile:
    """The release in a file: whole, undamaged, and with a card that tells of its graph."""
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise DataError(f"{path} has {size:,} bytes: a release may have {_LARGEST_FILE:,}")
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    layout = _layout(data, path)
    if layout.seal != _seal(layout.card, layout.graph):
        raise DataError(f"{path} is damaged: its content is not what it was sealed with; make or fetch it again")
    return put_together(layout.card, layout.graph, str(path))


def write_release(path: Path, release: ReleaseFile) -> None:
    """Write beside and rename: whoever reads sees a whole release or none."""
    layout = _Layout(FORMAT, release.card_bytes, release.graph, _seal(release.card_bytes, release.graph))
    try:
        write_atomically(path, MAGIC + msgspec.msgpack.encode(layout))
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from error


def disagreement(release: ReleaseFile) -> str | None:
    """Why the graph is not the one that the card tells of, by running it on the card's probe; None if it is."""
    from sojourn.model.predictor import ReleasePredictor  # noqa: PLC0415  # onnxruntime is not needed to write one

    try:
        ReleasePredictor(release.graph, release.card).check_probe()
    except ModelError as error:
        return str(error)
    return None


def _layout(data: bytes, path: Path) -> _Layout:
    if not data.startswith(MAGIC):
        raise DataError(f"{path} is not a release: `sojourn release create` makes one")
    try:
        layout = msgspec.msgpack.decode(memoryview(data)[len(MAGIC) :], type=_Layout)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is cut short or damaged: {error}") from error
    if layout.format != FORMAT:
        raise DataError(f"{path} has the format {layout.format}; this version of Sojourn reads format {FORMAT}")
    return layout


def _release(card_bytes: bytes, graph: bytes, where: str) -> ReleaseFile:
    if not 0 < len(graph) <= LARGEST_GRAPH:
        raise DataError(f"{where}: a graph of {len(graph):,} bytes is none, or more than {LARGEST_GRAPH:,}")
    return ReleaseFile(read_card(card_bytes, where), graph, card_bytes)


def read_card(card_bytes: bytes, where: str) -> Card:
    """The card in a blob, if it is one that a device would read."""
    if len(card_bytes) > LARGEST_CARD:
        raise DataError(f"{where}: a card of {len(card_bytes):,} bytes is more than {LARGEST_CARD:,}")
    try:
        card = msgspec.msgpack.decode(card_bytes, type=Card)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: its card says what no card can: {error}") from error
    probe = card.probe
    x_bytes = probe.rows * prod(card.input.shape) * _ITEM[card.input.dtype]
    if not probe.rows or len(probe.x) != x_bytes or len(probe.logits) != probe.rows * prod(card.learns.output) * 4:
        raise DataError(f"{where}: the probe in its card does not have the shape of its input and classes")
    if (card.learns.kind == "reconstruction") != bool(card.anomaly):
        raise DataError(f"{where}: a card names a threshold of anomalies for a reconstruction, and for nothing else")
    if probe.atol <= 0:
        raise DataError(f"{where}: the tolerance in its card is {probe.atol}")
    return card


def _seal(card: bytes, graph: bytes) -> bytes:
    return digest_of(card) + digest_of(graph)
