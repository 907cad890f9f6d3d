"""Reads inputs (files or the body of a request), and formats predictions as classes, values or tokens."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sojourn.data.column_names import rows_by_name
from sojourn.data.npz import read_rows
from sojourn.data.samples import content_of, rows_in
from sojourn.data.series import latest_windows
from sojourn.data.source import DataSettings, Form, on_scale
from sojourn.errors import DataError
from sojourn.model.metrics import sigmoid, softmax
from sojourn.model.predictions import BatchOutput, scores_of
from sojourn.protocol.release import Card
from sojourn.protocol.task import TaskSpec

# Inputs: an image, an NPZ, NPY or CSV file, a text, or the body of a request. A forecast continues the end of a series,
# and a language model the end of a text, so only the last steps or tokens are used.

_MAX_PIXELS = 16_000_000
"""Maximum number of pixels of an image in a request."""


def read_inputs(settings: DataSettings, form: Form) -> tuple[NDArray[np.generic], bool]:
    """Return the rows of a file, in the model's shape and scale, and whether the file is a single sample."""
    path, one = settings.path, False
    found: NDArray[np.generic]
    match Path(path).suffix.lower():
        case ".csv":
            found = _csv_rows(settings, form)
        case ".txt" if form.task and form.task.kind == "tokens":
            from sojourn.data.samples import read_text  # noqa: PLC0415

            found, one = _end_of(read_text(settings).x, form, path), True
        case ".npz":
            found = read_rows(path, form.table or None)
        case ".npy":
            try:
                found = of_npy(Path(path).read_bytes(), path)
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
        case _:
            from sojourn.data.images import read_image  # noqa: PLC0415  # Pillow comes with it

            found, one = read_image(Path(path), form, path), True
    rows, single = _in_shape(found, form, path)
    return on_scale(rows, settings), one or single


def rows_of(x: object, form: Form, source: str) -> tuple[NDArray[np.generic], bool]:
    """Convert inputs of a program to rows in the model's shape; return them, and whether it is a single sample.

    x: an array or lists of numbers; a mapping from column names to numbers, or a list of mappings; the path of a file
    that `sojourn agent predict` reads; or several paths.
    """
    if isinstance(x, str | Path):
        return read_inputs(DataSettings(path=str(x)), form)
    if isinstance(x, list | tuple) and x and all(isinstance(each, str | Path) for each in x):
        return np.concatenate([read_inputs(DataSettings(path=str(each)), form)[0] for each in x]), False
    if isinstance(x, Mapping) or (isinstance(x, list | tuple) and any(isinstance(each, Mapping) for each in x)):
        named = rows_by_name([x] if isinstance(x, Mapping) else x, form.table or None, form.task or None)
        window = form.task.window if form.task else None
        rows, _ = _in_shape(named, form, source)
        return rows, isinstance(x, Mapping) or window is not None
    try:
        given = np.asarray(x)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"the input is not an array of numbers: {error}") from error
    return _in_shape(given, form, source)


def _csv_rows(settings: DataSettings, form: Form, text: TextIO | None = None) -> NDArray[np.generic]:
    from sojourn.data.csv import read_csv, read_features  # noqa: PLC0415
    from sojourn.data.csv_columns import ReadRequest  # noqa: PLC0415

    task = form.task or None
    if task is None or task.window is None:
        return read_features(settings, form, text)
    return latest_windows(
        read_csv(settings, ReadRequest(task, table=form.table or None), text), form.input, task.window.steps
    )


def _in_shape(x: NDArray[np.generic], form: Form, source: str) -> tuple[NDArray[np.generic], bool]:
    """Return one or several samples in the model's shape; of a longer series or text, the end."""
    try:
        return rows_in(x, form.input.shape, source)
    except DataError:
        window = form.task.window if form.task else None
        if window and x.ndim in (1, 2, 3) and x.dtype.kind in "buif":
            rows = latest_windows(content_of(x, None, (), source), form.input, window.steps)
            return rows, x.ndim < 3
        if form.task and form.task.kind == "tokens" and x.ndim == 1:
            return _end_of(x, form, source), True
        raise


def _end_of(tokens: NDArray[np.generic], form: Form, source: str) -> NDArray[np.generic]:
    length = form.input.shape[0]
    if len(tokens) < length:
        raise DataError(f"{source} has {len(tokens)} tokens, the model needs {length}")
    return np.asarray(tokens[-length:])[np.newaxis]


def of_npy(data: bytes, source: str) -> NDArray[np.generic]:
    """Decode an NPY array without unpickling, and without allocating more memory than the data has."""
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(file)
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise DataError(f"{source} cannot be read as NPY: {error}") from error
    offset = file.seek(0, io.SEEK_CUR)
    if dtype.kind not in "buif" or len(data) - offset != prod(shape) * dtype.itemsize:
        raise DataError(f"{source} is not a complete array of numbers")
    flat = np.frombuffer(data, dtype=dtype, offset=offset)
    return flat.reshape(shape, order="F" if by_columns else "C")


def of_csv(data: bytes, form: Form) -> NDArray[np.generic]:
    """Decode CSV rows."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"the body cannot be read as CSV: {error}") from error
    return _csv_rows(DataSettings(path="the body"), form, io.StringIO(text, newline=""))


def of_image(data: bytes, form: Form) -> NDArray[np.generic]:
    """Decode an image."""
    from sojourn.data.images import read_image  # noqa: PLC0415  # Pillow comes with it

    return read_image(io.BytesIO(data), form, "the body", _MAX_PIXELS)


TOP = 3
"""Default number of classes or tokens for each row."""


class AnomalyScore(NamedTuple):
    """The anomaly score of a sample, and whether it exceeds the device's threshold."""

    score: float
    threshold: float
    anomalous: bool


def anomalies(answer: BatchOutput, threshold: float) -> list[AnomalyScore]:
    """Return the anomaly scores of a batch; a score that is not a number counts as an anomaly."""
    found = [float(score) for score in scores_of(answer)]
    return [AnomalyScore(score, threshold, not score <= threshold) for score in found]


def plain_answers(card: Card, answer: BatchOutput, threshold: float, top: int = TOP) -> list[dict[str, Any]]:
    """Return a release's prediction for each row as plain values by name, ready for JSON.

    classification: `class`, `probability`, and the `top` likeliest. multilabel: `labels` and all `scores`. regression
    and forecast: `values` by name; a forecast has one for each future step. reconstruction: `score`, `threshold`,
    `anomalous`. tokens: the next `token`, its `probability`, and the `top` likeliest.
    """
    match card.learns.kind:
        case "classification":
            return [_likeliest(row, card.classes, "class", top) for row in softmax(answer.outputs)]
        case "multilabel":
            return [_labels(row, card.classes) for row in sigmoid(answer.outputs)]
        case "reconstruction":
            return [each._asdict() for each in anomalies(answer, threshold)]
        case "tokens":
            return [_likeliest(row, None, "token", top) for row in softmax(answer.outputs[:, -1])]
        case _:
            names = value_names(card.learns)
            rows = answer.outputs.astype(np.float64)
            return [{"values": dict(zip(names, _by_name(row), strict=True))} for row in rows]


def value_names(task: TaskSpec) -> tuple[str, ...]:
    """Return the names of the values: those of the job, otherwise `value`, or `value-1`, `value-2` ..."""
    count = task.output[-1] if task.output else 1
    if len(task.names) == count:
        return task.names
    return ("value",) if count == 1 else tuple(f"value-{at + 1}" for at in range(count))


def line_of(answer: dict[str, Any], width: int = 0) -> str:
    """Format a prediction as a line for people; class names are padded to `width` characters."""
    if "score" in answer:
        word = "ANOMALY" if answer["anomalous"] else "normal"
        return f"score {answer['score']:.4g}   threshold {answer['threshold']:.4g}   {word}"
    if "values" in answer:
        return "   ".join(f"{name} {_values(value)}" for name, value in answer["values"].items())
    if "scores" in answer:
        ranked = sorted(answer["scores"].items(), key=lambda item: -item[1])
        return "   ".join(f"{'+' if share > 0.5 else '-'} {name} {100 * share:.1f} %" for name, share in ranked)
    if "class" in answer:
        return "   ".join(f"{each['class']:<{width}} {100 * each['probability']:5.1f} %" for each in answer["top"])
    return "   ".join(f"{each['token']} {100 * each['probability']:.1f} %" for each in answer["top"])


def _values(value: float | list[float]) -> str:
    return " ".join(f"{each:.4g}" for each in value) if isinstance(value, list) else f"{value:.4g}"


def _by_name(row: NDArray[np.float64]) -> list[Any]:
    """Return the value or the values of each quantity; quantities are on the last axis."""
    found: list[Any] = row.tolist() if row.ndim < 2 else np.moveaxis(row, -1, 0).reshape(row.shape[-1], -1).tolist()
    return found


def _likeliest(row: NDArray[np.float64], names: Sequence[str] | None, what: str, top: int) -> dict[str, Any]:
    best = row.argsort(kind="stable")[::-1][:top]
    ranked = [{what: names[int(at)] if names else int(at), "probability": float(row[at])} for at in best]
    return {**ranked[0], "top": ranked}


def _labels(row: NDArray[np.float64], names: Sequence[str]) -> dict[str, Any]:
    found = dict(zip(names, row.tolist(), strict=True))
    return {"labels": [name for name, share in found.items() if share > 0.5], "scores": found}
