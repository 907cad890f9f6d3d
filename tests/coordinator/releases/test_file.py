"""Tests of release files: a written file can be read, and every damaged file is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import numpy_helper

from coordinator.releases import file
from coordinator.releases.adopting import adopt
from coordinator.releases.file import MAGIC, ReleaseFile, read_release, release_from_blobs, release_of, write_release
from coordinator.releases.making import Material, Wanted, make
from sojourn.errors import DataError, MachineError
from sojourn.protocol.release import BlobRef, Goods
from sojourn.store.blobs import digest_of
from tests.coordinator.releases.release_material import linear


@cache
def release(bias: float = 0.0) -> ReleaseFile:
    model = linear()
    tensor = model.graph.initializer[1]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(bias), "b"))
    adopted = adopt(model.SerializeToString(), "it")
    rows = np.random.default_rng(2).standard_normal((20, 4)).astype(np.float32)
    material = Material(adopted.graph, adopted.input, ("a", "b", "c"), None, None)
    return make(material, Wanted("wine", 7), rows, None, {"model": "it"})


def layout(card: bytes, graph: bytes, seal: bytes | None = None, form: int = 1) -> bytes:
    seal = digest_of(card) + digest_of(graph) if seal is None else seal
    return MAGIC + msgspec.msgpack.encode({"format": form, "card": card, "graph": graph, "seal": seal})


def test_release_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "wine-7.release"
    path.write_bytes(b"an older one")
    write_release(path, release())
    read = read_release(path)
    assert (read.graph, read.card_bytes) == (release().graph, release().card_bytes)
    assert (read.card.line, read.card.version, read.card.classes) == ("wine", 7, ("a", "b", "c"))
    assert read.goods == Goods(
        BlobRef(digest_of(read.graph), len(read.graph)), BlobRef(digest_of(read.card_bytes), len(read.card_bytes))
    )
    assert [each.name for each in tmp_path.iterdir()] == ["wine-7.release"]


def test_every_truncation_and_flipped_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "it"
    write_release(path, release())
    whole = path.read_bytes()
    for end in {*range(40), *range(0, len(whole), 17), len(whole) - 1}:
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"not a release|cut short or damaged"):
            read_release(path)
    for at in {*range(60), *range(0, len(whole), 13), len(whole) - 1}:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(DataError):
            read_release(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DataError, match="cut short or damaged"):
        read_release(path)


def test_graph_with_card_of_another_is_rejected(tmp_path: Path) -> None:
    path, one, other = tmp_path / "it", release(), release(0.5)
    path.write_bytes(layout(one.card_bytes, one.graph))
    read_release(path)
    path.write_bytes(layout(one.card_bytes, other.graph))
    with pytest.raises(DataError, match=r"not the card of its graph: the predictions .* differ by up to 0\.5"):
        read_release(path)
    path.write_bytes(layout(one.card_bytes, b"no graph at all"))
    with pytest.raises(DataError, match="not the card of its graph: release 7 of wine is rejected: it is not an ONNX"):
        read_release(path)
    path.write_bytes(layout(one.card_bytes, one.graph, bytes(64)))
    with pytest.raises(DataError, match="is damaged"):
        read_release(path)


def changed(**fields: object) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(release().card, **fields))


def probed(**fields: object) -> bytes:
    return changed(probe=msgspec.structs.replace(release().card.probe, **fields))


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (b"\xc1", "its card is invalid"),
        (msgspec.msgpack.encode({"line": "wine"}), "its card is invalid"),
        (changed(version=0), "its card is invalid"),
        (changed(line="Wine!"), "its card is invalid"),
        (changed(encoding="int4"), "its card is invalid"),
        (changed(classes=("a", "b")), "probe in its card"),
        (probed(rows=0, x=b"", logits=b""), "probe in its card"),
        (probed(x=release().card.probe.x[:-4]), "probe in its card"),
        (probed(logits=b""), "probe in its card"),
        (probed(atol=float("nan")), "its card is invalid"),
        (probed(atol=-1.0), "its card is invalid"),
        (probed(atol=0.0), "tolerance"),
    ],
)
def test_invalid_card_is_rejected(card: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        release_from_blobs(card, release().graph, "it")


def test_other_formats_and_sizes_are_rejected(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "it"
    path.write_bytes(layout(release().card_bytes, release().graph, form=2))
    with pytest.raises(DataError, match="has the format 2"):
        read_release(path)
    path.write_bytes(b"PK\3\4 something else")
    with pytest.raises(DataError, match="is not a release"):
        read_release(path)
    with pytest.raises(DataError, match="no such file"):
        read_release(tmp_path / "none")
    with pytest.raises(DataError, match="cannot be read"):
        read_release(tmp_path)
    with pytest.raises(DataError, match="it must have 1 to"):
        release_of(release().card, b"")
    write_release(path, release())
    for limit, words in (
        ("LARGEST_GRAPH", "its graph"),
        ("LARGEST_CARD", "its card"),
        ("_LARGEST_FILE", "release is 100"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(file, limit, 100)
            with pytest.raises(DataError, match=words):
                read_release(path)


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be written"):
        write_release(tmp_path / "no" / "folder", release())
    (tmp_path / "taken").mkdir()
    with pytest.raises(MachineError, match="cannot be written"):
        write_release(tmp_path / "taken", release())
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


def test_card_bytes_are_preserved_with_unknown_fields() -> None:
    """A card of a newer version has unknown fields; its digest covers the signed bytes."""
    fields = msgspec.msgpack.decode(release().card_bytes) | {"colour": "blue"}
    data = msgspec.msgpack.encode(fields)
    read = release_from_blobs(data, release().graph, "it")
    assert msgspec.json.encode(read.card) == msgspec.json.encode(release().card)
    assert read.goods.card.digest == digest_of(data)
