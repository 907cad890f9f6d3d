"""The weights of a kit that are not trained: they stand in it once, and every graph that uses them is given them here.

A graph is completed by writing the tensors into it as ONNX initializers, in protobuf's own form. What comes of it is
inspected like any other graph (`sojourn.model.inspection`), since the kit came from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.errors import GraphRefused

if TYPE_CHECKING:
    from sojourn.protocol.spec import FrozenTensor, Kit

PREFIX = "frozen/"
"""Before a tensor's name in a graph, so that it is no other value's."""
_GRAPH = 7 << 3 | 2
"""The field of a model that holds its graph."""
_INITIALIZER = 5 << 3 | 2
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1 << 3 | 2, 2 << 3, 8 << 3 | 2, 9 << 3 | 2
_FLOAT = 1
_LONGEST_VARINT = 10
_VARINT, _BYTES = 0, 2


def train_graph(kit: Kit) -> bytes:
    """The training graph, whole."""
    return _completed(kit.train, kit, "train")


def predict_graph(kit: Kit) -> bytes:
    """The prediction graph, whole."""
    return _completed(kit.predict, kit, "predict")


def score_graph(kit: Kit) -> bytes:
    """The graph of each sample's loss, whole."""
    return _completed(kit.score or b"", kit, "score")


def _completed(graph: bytes, kit: Kit, name: str) -> bytes:
    tensors = [_initializer(tensor) for tensor in kit.frozen if name in tensor.graphs]
    if not tensors:
        return graph
    begin, start, end = _graph_field(graph)
    size = end - start + sum(map(len, tensors))
    return b"".join((graph[:begin], bytes([_GRAPH]), _varint(size), graph[start:end], *tensors, graph[end:]))


def _initializer(tensor: FrozenTensor) -> bytes:
    dims = b"".join(map(_varint, tensor.shape))
    parts = (
        bytes([_DIMS]), _varint(len(dims)), dims,
        bytes([_DATA_TYPE, _FLOAT]),
        bytes([_NAME]), _varint(len(name := f"{PREFIX}{tensor.name}".encode())), name,
        bytes([_RAW_DATA]), _varint(len(tensor.data)), tensor.data,
    )  # fmt: skip
    return b"".join((bytes([_INITIALIZER]), _varint(sum(map(len, parts))), *parts))


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
