"""Sessions of onnxruntime for inspected graphs, with the frozen weights of their kit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as refusals

from sojourn.errors import GraphRefused, ModelError
from sojourn.model.inspection import inspected
from sojourn.protocol.spec import FrozenTensor, Kit

Use = Literal[
    "train", "predict", "score", "trunk", "two_stream", "fused", "taps", "votes", "slope", "open_train", "soft"
]
"""The graphs of a kit, named as in `FrozenTensor.graphs`."""

GRAPH_NAMES: dict[Use, str] = {
    "train": "the training graph",
    "predict": "the prediction graph",
    "score": "the scoring graph",
    "trunk": "the trunk",
    "two_stream": "the two-stream graph",
    "fused": "the graph of the fused model",
    "taps": "the graph of layer inputs",
    "votes": "the graph of votes",
    "slope": "the graph of input gradients",
    "open_train": "the training graph with outliers",
    "soft": "the training graph with soft targets",
}
"""The graphs of a kit, as messages name them."""

# Frozen weights are in a kit once, and are supplied to every graph that uses them.
#
# To run a graph, `with_references` adds only the names and shapes of the tensors, and onnxruntime reads the numbers
# from the kit's memory without a copy. `complete_graph` adds the numbers too, for a plain ONNX file. The graph is
# inspected first (`sojourn.model.inspection`) with the supplied names, because the kit is untrusted.

PREFIX = "frozen/"
"""The prefix of a frozen tensor's name in a graph, which makes it unique."""
_GRAPH = 7 << 3 | 2
"""The model field with the graph."""
_INITIALIZER = 5 << 3 | 2
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1 << 3 | 2, 2 << 3, 8 << 3 | 2, 9 << 3 | 2
_EXTERNAL_DATA, _DATA_LOCATION = 13 << 3 | 2, 14 << 3
_ELSEWHERE = 1
"""The data location of external data."""
_FLOAT = 1
_KEY, _VALUE = 1 << 3 | 2, 2 << 3 | 2
_MAX_VARINT = 10
_VARINT, _BYTES = 0, 2


def graph_bytes(kit: Kit, use: Use) -> bytes:
    """Return one of the kit's graphs, without the frozen weights that it uses; empty if the kit does not have it."""
    more, outliers, streams = kit.more, kit.outliers, kit.two_stream
    graphs: dict[Use, bytes] = {
        "train": kit.train,
        "predict": kit.predict,
        "score": kit.score or b"",
        "trunk": kit.trunk.graph if kit.trunk else b"",
        "two_stream": streams.graph if streams else b"",
        "fused": streams.fused if streams else b"",
        "taps": more.taps.graph if more and more.taps else b"",
        "votes": outliers.votes if outliers else b"",
        "slope": outliers.slope if outliers else b"",
        "open_train": outliers.train if outliers else b"",
        "soft": more.soft if more else b"",
    }
    return graphs[use]


def frozen_tensors(kit: Kit, use: Use) -> tuple[FrozenTensor, ...]:
    """Return the frozen tensors that a graph uses."""
    return tuple(tensor for tensor in kit.frozen if use in tensor.graphs)


def frozen_names(tensors: Iterable[FrozenTensor]) -> frozenset[str]:
    """Return the names of frozen tensors in graphs."""
    return frozenset(f"{PREFIX}{tensor.name}" for tensor in tensors)


def complete_graph(kit: Kit, use: Use) -> bytes:
    """Return one of the kit's graphs as a plain ONNX file that includes the frozen weights."""
    tensors = frozen_tensors(kit, use)
    initializers = [_initializer(tensor, _field(_RAW_DATA, tensor.data)) for tensor in tensors]
    return _with_initializers(graph_bytes(kit, use), initializers)


def with_references(graph: bytes, tensors: Sequence[FrozenTensor]) -> bytes:
    """Return the graph with references to these tensors; their numbers are supplied when it is loaded."""
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


def _reference(tensor: FrozenTensor) -> Sequence[bytes]:
    """Return the fields of an external tensor; its file is never read, because the numbers are supplied by name."""
    entries = {"location": PREFIX.rstrip("/"), "length": str(len(tensor.data))}
    pairs = (b"".join((*_field(_KEY, key.encode()), *_field(_VALUE, text.encode()))) for key, text in entries.items())
    return (*(part for pair in pairs for part in _field(_EXTERNAL_DATA, pair)), bytes([_DATA_LOCATION, _ELSEWHERE]))


def _field(key: int, content: bytes) -> tuple[bytes, bytes, bytes]:
    return bytes([key]), _varint(len(content)), content


def _graph_field(model: bytes) -> tuple[int, int, int]:
    """Return the start of the graph field, and the start and end of the graph."""
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
    raise GraphRefused("the graph is rejected: it is not an ONNX file")


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a protobuf varint, and the position after it."""
    value = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 127) << 7 * place
        if byte < 128:  # the continuation bit is not set
            return value, at + place + 1
    raise GraphRefused("the graph is rejected: it is truncated")


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:  # seven bits each
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


RUNTIME_ERRORS = (
    refusals.Fail,
    refusals.InvalidArgument,
    refusals.InvalidGraph,
    refusals.InvalidProtobuf,
    refusals.NotImplemented,
    refusals.RuntimeException,
)
"""Errors that onnxruntime raises for a graph that it cannot load or run."""
_LOADER_ERRORS = (ValueError, RuntimeError, MemoryError)
"""Errors of its loader before it reads the graph."""
_FATAL = 4

onnxruntime.disable_telemetry_events()


def session_options(threads: int = 1, *, spin: bool = False) -> onnxruntime.SessionOptions:
    """Return default session options; with one thread, results repeat bit for bit.

    spin: threads spin between operators, which is faster on an otherwise idle machine. They sleep as soon as a run
    ends, so that they do not take a core from the rest of the program.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin and threads > 1 else "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.load_model_format", "ONNX")  # the format that was inspected
    options.log_severity_level = _FATAL  # errors are raised
    return options


def open_session(
    graph: bytes,
    options: onnxruntime.SessionOptions | None = None,
    name: str = "the graph",
    frozen: Sequence[FrozenTensor] = (),
) -> onnxruntime.InferenceSession:
    """Inspect and load a graph; raise GraphRefused or ModelError if that fails.

    frozen: tensors that the graph references; their bytes must live as long as the session.
    """
    inspected(graph, name, frozen_names(frozen))
    options = options or session_options()
    if frozen:
        options.add_external_initializers(
            [f"{PREFIX}{each.name}" for each in frozen], [_value(each) for each in frozen]
        )
    try:
        return onnxruntime.InferenceSession(with_references(graph, frozen), options, providers=["CPUExecutionProvider"])
    except (*RUNTIME_ERRORS, *_LOADER_ERRORS) as error:
        version = onnxruntime.__version__
        raise ModelError(f"onnxruntime {version} cannot load {name}: {first_line(error)}") from error


def _value(tensor: FrozenTensor) -> onnxruntime.OrtValue:
    """Return a tensor's value without a copy."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.frombuffer(tensor.data, "<f4").reshape(tensor.shape))


def first_line(error: Exception) -> str:
    """Return the first line of onnxruntime's message: the rest is a stack trace."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
