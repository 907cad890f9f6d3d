"""Weights in a file, of whichever kind: safetensors, a state dict of torch's, or an ONNX file that Sojourn exported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.models.exported_file import read_exported
from coordinator.models.safetensors_file import read_safetensors
from coordinator.models.start_weights import StartWeights
from coordinator.models.state_dict_file import read_state_dict
from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LARGEST = 2 << 30
"""Bytes of a file: as many as the largest model has in double precision."""
READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    ".safetensors": read_safetensors,
    ".pt": read_state_dict,
    ".pth": read_state_dict,
    ".bin": read_state_dict,
    ".onnx": read_exported,
}


def read_weights(name: str) -> StartWeights:
    """The weights in a file; ModelError where there are none, with what to do."""
    path = Path(name)
    reader = READERS[path.suffix]
    try:
        if not path.is_file():
            raise ModelError(f"model.start: there is no file {name} on the coordinator's machine")
        if (size := path.stat().st_size) > LARGEST:
            raise ModelError(f"model.start: {name} has {size:,} bytes, and {LARGEST:,} are read at most")
        tensors = reader(path)
    except OSError as error:
        raise ModelError(f"model.start: {name} cannot be read: {error.strerror or error}") from error
    return StartWeights(tensors, path.name, buffers=path.suffix != ".onnx")
