"""Names of a model's tensors in an exported ONNX file, so that a job can start from it.

A graph's constants often differ from torch's tensors: they are transposed, joined or folded. So a note in the file
states where each tensor is, and contains those that are nowhere else.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

NOTE = "sojourn.tensors"
PLANE = 2
Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class TensorPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a tensor is: in an initialiser, which may be transposed, or in this note."""

    name: str
    shape: Annotated[tuple[Natural, ...], msgspec.Meta(max_length=16)]
    initializer: str = ""
    transposed: bool = False
    data: str = ""
    """Its values (float32, little-endian) in base64."""


def with_names(graph: bytes, tensors: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Add a note to the graph that states where these tensors are in it."""
    model = onnx.load_from_string(graph)
    places = {numpy_helper.to_array(each).tobytes(): each.name for each in model.graph.initializer}
    notes = [_place(name, np.ascontiguousarray(values, "<f4"), places) for name, values in tensors.items()]
    model.metadata_props.add(key=NOTE, value=msgspec.json.encode(notes).decode())
    return bytes(model.SerializeToString())


def _place(name: str, values: NDArray[np.float32], places: Mapping[bytes, str]) -> TensorPlace:
    if found := places.get(values.tobytes()):
        return TensorPlace(name, values.shape, found)
    if values.ndim == PLANE and (found := places.get(np.ascontiguousarray(values.T).tobytes())):
        return TensorPlace(name, values.shape, found, transposed=True)
    return TensorPlace(name, values.shape, data=base64.b64encode(values.tobytes()).decode())


def read_exported(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a model by name; ModelError for an ONNX file of another tool, which has other names."""
    import torch  # noqa: PLC0415  # takes seconds and 280 MB, and writing does not need it

    try:
        model = onnx.load_from_string(path.read_bytes())
        note = next((each.value for each in model.metadata_props if each.key == NOTE), None)
        places = {each.name: each for each in model.graph.initializer}
        if note is None:
            raise ModelError(
                f"{path}: it does not contain torch's tensor names, which files of `sojourn job "
                "export` contain: start from the job itself (job:NAME), from safetensors or from a state dict"
            )
        found = msgspec.json.decode(note, type=list[TensorPlace])
        return {each.name: torch.from_numpy(_values(each, places, path).copy()) for each in found}
    except ModelError:
        raise
    except Exception as error:  # protobuf raises many types of errors
        raise ModelError(f"{path}: not an ONNX file, or a damaged one: {str(error)[:200]}") from error


def _values(each: TensorPlace, places: Mapping[str, onnx.TensorProto], path: Path) -> NDArray[np.float32]:
    if each.initializer:
        tensor = places.get(each.initializer)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(f"{path}: {each.name[:100]!r} is not in the initialiser that the file names")
        values = numpy_helper.to_array(tensor)
    else:
        values = np.frombuffer(base64.b64decode(each.data, validate=True), "<f4")
    if values.size != prod(each.shape) or values.dtype != np.float32:
        raise ModelError(f"{path}: {each.name[:100]!r} does not have the stated shape: {list(each.shape)}")
    return values.T.reshape(each.shape) if each.transposed else values.reshape(each.shape)
