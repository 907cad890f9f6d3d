"""Read weights from a file: safetensors, a torch state dict, or an ONNX file that Sojourn exported."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from coordinator.models.exported_file import read_exported
from coordinator.models.start_weights import StartWeights
from sojourn.errors import ModelError
from sojourn.text import clean

MAX_HEADER = 16 << 20
"""The maximum size in bytes of the header of a safetensors file."""
MAX_TENSORS = 1 << 16
MAX_AXES = 16
TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors in a file by name; ModelError if the file is invalid or exceeds a limit."""
    with path.open("rb") as file:
        if (length := int.from_bytes(file.read(8), "little")) > MAX_HEADER:
            raise ModelError(
                f"{path}: not a safetensors file, or a damaged one: its header would have {length:,} bytes"
            )
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            if not 0 < len(names) <= MAX_TENSORS:
                raise ModelError(f"{path}: it has {len(names)} tensors, and 1 to {MAX_TENSORS} are allowed")
            for name in names:
                _check_place(name, file.get_slice(name), path)
            return {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ModelError(f"{path}: not a safetensors file, or a damaged one: {clean(str(error), 200)}") from error


def _check_place(name: str, place: Any, path: Path) -> None:
    if (dtype := place.get_dtype()) not in TYPES:
        raise ModelError(f"{path}: {name[:100]!r} is of type {dtype}; accepted types are {', '.join(TYPES)}")
    if (axes := len(place.get_shape())) > MAX_AXES:
        raise ModelError(f"{path}: {name[:100]!r} has {axes:,} axes, and the maximum is {MAX_AXES}")


ADVICE = "save only the state dict: torch.save(model.state_dict(), ...)"


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read the tensors in a file by name; ModelError if it contains anything else."""
    _check_archive(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL +([\w.]+)", str(error))
        what = f"{code[1]}, which is code or an object" if code else "something other than tensors"
        raise ModelError(
            f"{path}: it is refused because it contains {what}, and only weights are accepted: {ADVICE}"
        ) from error
    except Exception as error:  # torch raises many types of errors for a damaged file
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ModelError(f"{path}: not a file that torch saved, or a damaged one: {reason}") from error
    return _tensors(found, path)


def _check_archive(path: Path) -> None:
    """Refuse compressed parts, which could be a thousand times as large after reading; torch never compresses."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise ModelError(f"{path}: a damaged file: {error}") from error
    if any(part.compress_type != zipfile.ZIP_STORED or part.file_size > path.stat().st_size for part in parts):
        raise ModelError(f"{path}: its parts are compressed, which torch never does: {ADVICE}")


def _tensors(found: object, path: Path) -> dict[str, Tensor]:
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{path}: it contains a {type(found).__name__} instead of a state dict: {ADVICE}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ModelError(
                f"{path}: it is not a state dict, because {str(name)[:100]!r} is a {type(value).__name__}: {ADVICE}"
            )
        if value.layout is not torch.strided or value.is_quantized or value.is_complex() or value.is_meta:
            raise ModelError(f"{path}: {name[:100]!r} is sparse, quantised, complex or empty: save it as plain float32")
    return {str(name): value for name, value in found.items()}


MAX_BYTES = 2 << 30
"""The maximum size of a file in bytes: that of the largest model in double precision."""
READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    ".safetensors": read_safetensors,
    ".pt": read_state_dict,
    ".pth": read_state_dict,
    ".bin": read_state_dict,
    ".onnx": read_exported,
}


def read_weights(name: str) -> StartWeights:
    """Read the weights in a file; ModelError states the problem and a fix."""
    path = Path(name)
    reader = READERS[path.suffix]
    try:
        if not path.is_file():
            raise ModelError(f"model.start: the coordinator's machine has no file {name}")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ModelError(f"model.start: {name} has {size:,} bytes, and the maximum is {MAX_BYTES:,}")
        tensors = reader(path)
    except OSError as error:
        raise ModelError(f"model.start: {name} cannot be read: {error.strerror or error}") from error
    return StartWeights(tensors, path.name, buffers=path.suffix != ".onnx")
