"""Reads a state dict that torch saved: weights only, so that nothing in the file is ever run."""

from __future__ import annotations

import pickle
import re
import zipfile
from typing import TYPE_CHECKING

import torch

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

ONLY = "save torch.save(model.state_dict(), ...) alone"


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors in a file by name; ModelError where it holds anything else."""
    _check_archive(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL +([\w.]+)", str(error))
        what = f"{code[1]}, which is code or an object" if code else "something else than tensors"
        raise ModelError(
            f"{path}: it is not read, since it holds {what}, and only weights are taken: {ONLY}"
        ) from error
    except Exception as error:  # a damaged file makes torch raise almost anything
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ModelError(f"{path}: no file that torch saved, or a damaged one: {reason}") from error
    return _tensors(found, path)


def _check_archive(path: Path) -> None:
    """A file whose parts are packed could be a thousand times as large once it is read; torch packs nothing."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise ModelError(f"{path}: a damaged file: {error}") from error
    if any(part.compress_type != zipfile.ZIP_STORED or part.file_size > path.stat().st_size for part in parts):
        raise ModelError(f"{path}: its parts are compressed, as torch never saves them: {ONLY}")


def _tensors(found: object, path: Path) -> dict[str, Tensor]:
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{path}: it holds a {type(found).__name__} and no state dict: {ONLY}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ModelError(
                f"{path}: it is no state dict: {str(name)[:100]!r} is a {type(value).__name__} and no tensor: {ONLY}"
            )
        if value.layout is not torch.strided or value.is_quantized or value.is_complex() or value.is_meta:
            raise ModelError(f"{path}: {name[:100]!r} is sparse, quantised, complex or empty: save it as plain float32")
    return {str(name): value for name, value in found.items()}
