"""The weights of a kit that are not trained: they stand in it once, and every graph that uses them is given them here.

Where a graph is run, onnxruntime is handed the kit's own bytes: `with_references` writes into the graph that there are
such tensors, and of what shape, but not their numbers, which would be there several times by then. Where somebody needs
a plain ONNX file, `whole` writes the numbers too. The graph is inspected before (`sojourn.model.inspection`), with the
names that are given to it: the kit came from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sojourn.errors import GraphRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sojourn.protocol.spec import FrozenTensor, Kit

    Use = Literal[
        "train", "predict", "score", "trunk", "two_stream", "fused", "taps", "votes", "slope", "open_train", "soft"
    ]
    """The graphs of a kit, as `FrozenTensor.graphs` calls them."""

PREFIX = "frozen/"
"""Before a tensor's name in a graph, so that it is no other value's."""
_GRAPH = 7 << 3 | 2
"""The field of a model that holds its graph."""
_INITIALIZER = 5 << 3 | 2
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1 << 3 | 2, 2 << 3, 8 << 3 | 2, 9 << 3 | 2
_EXTERNAL_DATA, _DATA_LOCATION = 13 << 3 | 2, 14 << 3
_ELSEWHERE = 1
"""A data location: not in the graph."""
_FLOAT = 1
_KEY, _VALUE = 1 << 3 | 2, 2 << 3 | 2
_LONGEST_VARINT = 10
_VARINT, _BYTES = 0, 2


def graph_in(kit: Kit, use: Use) -> bytes:
    """One of the kit's graphs as it stands there, without the frozen weights that it uses."""
    if use == "trunk":
        return kit.trunk.graph if kit.trunk else b""
    if use == "score":
        return kit.score or b""
    if use in ("votes", "slope", "open_train"):
        it = kit.outliers
        return {"votes": it.votes, "slope": it.slope, "open_train": it.train}[use] if it else b""
    if use == "soft":
        return kit.more.soft if kit.more else b""
    if use == "taps":
        return kit.more.taps.graph if kit.more and kit.more.taps else b""
    if use == "two_stream":
        return kit.two_stream.graph if kit.two_stream else b""
    if use == "fused":
        return kit.two_stream.fused if kit.two_stream else b""
    return kit.train if use == "train" else kit.predict


def given_to(kit: Kit, use: Use) -> tuple[FrozenTensor, ...]:
    """The frozen tensors that one of the kit's graphs uses."""
    return tuple(tensor for tensor in kit.frozen if use in tensor.graphs)


def names_of(tensors: Iterable[FrozenTensor]) -> frozenset[str]:
    """What tensors are called in graphs."""
    return frozenset(f"{PREFIX}{tensor.name}" for tensor in tensors)


def whole(kit: Kit, use: Use) -> bytes:
    """One of the kit's graphs as a plain ONNX file, with the frozen weights inside."""
    tensors = given_to(kit, use)
    return _with_initializers(graph_in(kit, use), [_initializer(tensor, _numbers(tensor)) for tensor in tensors])


def with_references(graph: bytes, tensors: Sequence[FrozenTensor]) -> bytes:
    """The graph with these tensors' names and shapes; whoever loads it hands their numbers over."""
    return _with_initializers(graph, [_initializer(tensor, _reference(tensor)) for tensor in tensors])


def _with_initializers(graph: bytes, tensors: Sequence[bytes]) -> bytes:
    if not tensors:
        return graph
    begin, start, end = _graph_field(graph)
    size = end - start + sum(map(len, tensors))
    return b"".join((graph[:begin], bytes([_GRAPH]), _varint(size), graph[start:end], *tensors, graph[end:]))


def _initializer(tensor: FrozenTensor, content: Sequence[bytes]) -> bytes:
    dims = b"".join(map(_varint, tensor.shape))
    parts = (
        *_field(_DIMS, dims),
        bytes([_DATA_TYPE, _FLOAT]),
        *_field(_NAME, f"{PREFIX}{tensor.name}".encode()),
        *content,
    )
    return b"".join((bytes([_INITIALIZER]), _varint(sum(map(len, parts))), *parts))


def _numbers(tensor: FrozenTensor) -> Sequence[bytes]:
    return _field(_RAW_DATA, tensor.data)


def _reference(tensor: FrozenTensor) -> Sequence[bytes]:
    """In the form of a tensor whose numbers are in another file, which nobody reads: they are handed over by name."""
    entries = {"location": PREFIX.rstrip("/"), "length": str(len(tensor.data))}
    pairs = (b"".join((*_field(_KEY, key.encode()), *_field(_VALUE, text.encode()))) for key, text in entries.items())
    return (*(part for pair in pairs for part in _field(_EXTERNAL_DATA, pair)), bytes([_DATA_LOCATION, _ELSEWHERE]))


def _field(key: int, content: bytes) -> tuple[bytes, bytes, bytes]:
    return bytes([key]), _varint(len(content)), content


def _graph_field(model: bytes) -> tuple[int, int, int]:
    """Where the field with the graph begins, and from where to where the graph itself is."""
    at = 0
    while at < len(model):
        begin = at
        key, at = _number(model, at)
        if key & 7 not in (_VARINT, _BYTES):
            break
        length, at = _number(model, at)
        if key == _GRAPH and at + length <= len(model):
            return begin, at, at + length
        at += length if key & 7 == _BYTES else 0
    raise GraphRefused("the graph is refused: it is no ONNX file that weights could be put into")


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number in protobuf's form, and where the next thing begins."""
    value = 0
    for place, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 127) << 7 * place
        if byte < 128:  # the bit that says that more follows
            return value, at + place + 1
    raise GraphRefused("the graph is refused: it is cut off")


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:  # seven bits each
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
