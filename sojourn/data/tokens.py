"""Tokens: whole numbers below the size of a vocabulary, cut into sequences; the bytes of a text are such."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sojourn.data.samples import Content, no_labels
from sojourn.data.series import Cut, Series
from sojourn.data.windows import starts_in, windows
from sojourn.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.source import DataSettings
    from sojourn.protocol.spec import InputSpec
    from sojourn.protocol.task import TaskSpec

SUFFIX = ".txt"
UNLABELLED = "text without labels"
_BLOCK = 1 << 20


def read_text(settings: DataSettings) -> Content:
    """The bytes of a text file, or of all text files below a folder, each a sequence of its own."""
    root = Path(settings.path)
    try:
        paths = sorted(path for path in root.rglob(f"*{SUFFIX}") if path.is_file()) if root.is_dir() else [root]
        sizes = [path.stat().st_size for path in paths]
        parts = [np.memmap(path, np.uint8, "r") for path, size in zip(paths, sizes, strict=True) if size]
    except (OSError, ValueError) as error:
        raise DataError(f"{root} cannot be read: {error}") from error
    if not parts:
        raise DataError(f"{root} holds no text: put files that end in {SUFFIX} there, with something in them")
    # A single file stays where it is: only what is trained on comes into memory.
    x = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return replace(_sequences(x, [len(part) for part in parts], str(root)), labelled_by=UNLABELLED)


def token_windows(content: Content, wanted: InputSpec, task: TaskSpec) -> Cut:
    """Sequences as long as the model takes them, and the same one token later."""
    if len(wanted.shape) != 1:
        raise DataError(f"{content.source}: a model of tokens takes sequences, not samples of shape {wanted.shape}")
    length, source = wanted.shape[0], content.source
    found = content if content.series else _from_array(content)
    tokens, series = whole_numbers(found.x, source), found.series
    _check_vocabulary(tokens, task.output[-1] if task.output else 0, source)
    if series is None or not len(starts := starts_in(series.pieces, length + 1, length)):
        longest = series.longest if series else 0
        raise DataError(
            f"{source}: its longest sequence has {longest:,} tokens, and the model needs {length:,} and the one that "
            "comes next"
        )
    x, y = (windows(tokens, starts + at, length, (length,), np.int64) for at in (0, 1))
    machine = np.searchsorted(series.pieces[:, 0], starts, side="right") - 1
    return Cut(x, y, machine, series.machines)


def whole_numbers(x: NDArray[np.generic], source: str) -> NDArray[np.generic]:
    """Numbers without fractions, which may be stored as floats."""
    if x.dtype.kind in "bui":
        return x
    if x.dtype.kind == "f" and np.array_equal(x, np.floor(x)) and np.isfinite(x).all() and np.abs(x).max() < 1 << 24:
        return x.astype(np.int64)
    raise DataError(f"{source} has values of type {x.dtype} with fractions, or none at all: tokens are whole numbers")


def _from_array(content: Content) -> Content:
    x = content.x
    if x.ndim not in (1, 2):
        raise DataError(
            f"{content.source} has an array of shape {x.shape}: tokens are one long sequence, or rows of one length"
        )
    lengths = [len(x)] if x.ndim == 1 else [x.shape[1]] * len(x)
    return _sequences(x.reshape(-1), lengths, content.source)


def _sequences(x: NDArray[np.generic], lengths: list[int], source: str) -> Content:
    ends = np.cumsum(lengths, dtype=np.int64)
    pieces = np.stack([ends - np.array(lengths, np.int64), ends], axis=1)
    series = Series(pieces, np.arange(len(lengths)), tuple(str(at) for at in range(len(lengths))))
    return Content(source, x, (), no_labels(len(x)), series=series)


def _check_vocabulary(tokens: NDArray[np.generic], size: int, source: str) -> None:
    for at in range(0, len(tokens), _BLOCK):
        block = tokens[at : at + _BLOCK]
        low, high = int(block.min()), int(block.max())
        if low < 0 or high >= size:
            raise DataError(
                f"{source} has the token {low if low < 0 else high}, and the job's vocabulary goes from 0 to {size - 1}"
            )
