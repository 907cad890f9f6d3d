"""An ONNX file that Sojourn exported keeps the names of the model's tensors, so that a job can start from it.

What a graph computes with is often not the tensor as torch has it: turned round, joined with others or computed away.
So a note in the file says of each tensor where it is, and holds those that are nowhere else.
"""

from __future__ import annotations

import base64
from math import prod
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

NOTE = "sojourn.tensors"
PLANE = 2
Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class Whereabout(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a tensor is: in an initializer, perhaps turned round, or else here."""

    name: str
    shape: Annotated[tuple[Whole, ...], msgspec.Meta(max_length=16)]
    initializer: str = ""
    turned: bool = False
    data: str = ""
    """Its numbers (float32, little-endian) in base64."""


def with_names(graph: bytes, tensors: Mapping[str, NDArray[np.float32]]) -> bytes:
    """The graph, with a note of where these tensors are in it."""
    model = onnx.load_from_string(graph)
    places = {numpy_helper.to_array(each).tobytes(): each.name for each in model.graph.initializer}
    notes = [_noted(name, np.ascontiguousarray(values, "<f4"), places) for name, values in tensors.items()]
    model.metadata_props.add(key=NOTE, value=msgspec.json.encode(notes).decode())
    return bytes(model.SerializeToString())


def _noted(name: str, values: NDArray[np.float32], places: Mapping[bytes, str]) -> Whereabout:
    if found := places.get(values.tobytes()):
        return Whereabout(name, values.shape, found)
    if values.ndim == PLANE and (found := places.get(np.ascontiguousarray(values.T).tobytes())):
        return Whereabout(name, values.shape, found, turned=True)
    return Whereabout(name, values.shape, data=base64.b64encode(values.tobytes()).decode())


def read_exported(path: Path) -> dict[str, Tensor]:
    """The tensors of a model by name; ModelError for an ONNX file from elsewhere, whose tensors have other names."""
    import torch  # noqa: PLC0415  # takes seconds and 280 MB: who only writes such a file needs none of it

    try:
        model = onnx.load_from_string(path.read_bytes())
        note = next((each.value for each in model.metadata_props if each.key == NOTE), None)
        places = {each.name: each for each in model.graph.initializer}
        if note is None:
            raise ModelError(
                f"{path}: it does not say how torch calls its tensors, as files of `sojourn job export` do since "
                "0.6.0: start from the job itself (job:NAME), from safetensors or from a state dict"
            )
        found = msgspec.json.decode(note, type=list[Whereabout])
        return {each.name: torch.from_numpy(_values(each, places, path).copy()) for each in found}
    except ModelError:
        raise
    except Exception as error:  # what protobuf raises has many names
        raise ModelError(f"{path}: no ONNX file, or a damaged one: {str(error)[:200]}") from error


def _values(each: Whereabout, places: Mapping[str, onnx.TensorProto], path: Path) -> NDArray[np.float32]:
    if each.initializer:
        tensor = places.get(each.initializer)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(f"{path}: {each.name[:100]!r} is not where the file says")
        values = numpy_helper.to_array(tensor)
    else:
        values = np.frombuffer(base64.b64decode(each.data, validate=True), "<f4")
    if values.size != prod(each.shape) or values.dtype != np.float32:
        raise ModelError(f"{path}: {each.name[:100]!r} is not of the shape that the file says: {list(each.shape)}")
    return values.T.reshape(each.shape) if each.turned else values.reshape(each.shape)
