"""The summary of a device's data that operators read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sojourn.data.checks import data_warnings, is_quantity, label_counts, value_range
from sojourn.data.labels import by_number, label_name, quantities
from sojourn.data.samples import UNLABELLED, Content, DataWarning
from sojourn.data.series import as_series, forecast_windows
from sojourn.data.source import DataSettings, format_of, on_scale, read_content
from sojourn.errors import DataError
from sojourn.protocol.data_summary import (
    CLASSES,
    SERIES,
    TARGETS,
    TEXT,
    WARNINGS,
    DataSummary,
    DataSurvey,
    Quantity,
    SeriesSummary,
)
from sojourn.protocol.limits import MAX_NUMBER
from sojourn.protocol.spec import InputSpec, TableSpec
from sojourn.protocol.task import TaskSpec

_MAX_NAME, _MAX_TEXT = 80, 300


def survey(settings: DataSettings, task: TaskSpec | None = None, table: TableSpec | None = None) -> DataSurvey:
    """Summarize the data and its warnings; for unreadable data, return a summary with a fault.

    Images are counted, but only some are opened, because there may be many.
    task: the job's task, if known; data that cannot be used for it is a fault.
    table: the columns of the job's table, which the data must have.
    """
    shape: tuple[int, ...]
    try:
        if format_of(settings) == "images":
            from sojourn.data.images import survey_images  # noqa: PLC0415  # imports Pillow

            content, shape, values = survey_images(settings, task)
            values = _rescaled_range(values, settings)
        else:
            content = read_content(settings, "train", task=task, table=table)
            content = as_series(content) if task and task.kind == "forecast" and not content.series else content
            shape, values = tuple(int(size) for size in content.x.shape[1:]), value_range(content.x)
        if not len(content.label_index):
            why = "".join(f". {each.text}" for each in content.warnings)
            raise DataError(f"{settings.path} has no samples: add some, or the device declines every visit{why}")
        _check(content, task)
    except (DataError, MemoryError) as error:
        text = str(error) or f"{settings.path}: not enough memory to read it"
        return DataSurvey(DataSummary(fault=text[:_MAX_TEXT]))
    warnings = data_warnings(content, task)
    messages = [*(each.text for each in warnings), *(f"skipped: {text}" for text in content.skipped)]
    # A predicted quantity has no classes, even if its values are whole numbers.
    content = replace(content, labels=()) if _is_predicted(content, task) else content
    return DataSurvey(
        _summary(content, shape, values, warnings),
        tuple(messages),
        tuple(label_name(label, content.names) for label in content.labels),
    )


def _check(content: Content, task: TaskSpec | None) -> None:
    """Raise DataError if the data cannot be used for the task, as far as can be checked without a model."""
    if task is None:
        return
    if task.kind == "regression":
        quantities(content, task)
    elif task.kind == "forecast" and task.window:
        forecast_windows(content, InputSpec((task.window.steps, max(1, content.x.shape[1]))), task)


def _rescaled_range(values: tuple[float, float] | None, settings: DataSettings) -> tuple[float, float] | None:
    if values is None or not settings.scale:
        return values
    low, high = sorted(float(value) for value in on_scale(np.array(values), settings))
    return low, high


def _summary(
    content: Content, shape: tuple[int, ...], values: tuple[float, float] | None, warnings: Sequence[DataWarning]
) -> DataSummary:
    names = [label_name(label, content.names) for label in content.labels]
    named = sorted(zip(names, label_counts(content).tolist(), strict=True), key=lambda each: by_number(each[0]))
    predicted = _quantities(content)
    messages = [f"{warning.what}; to do: {warning.remedy}" for warning in warnings]
    if content.skipped:
        messages.append("some samples are skipped; to do: see the device's log")
    low, high = values or (None, None)
    return DataSummary(
        samples=len(content.label_index),
        shape=shape[:8],
        dtype=content.x.dtype.name[:_MAX_NAME],
        low=_clamped(low),
        high=_clamped(high),
        classes=tuple(name[:_MAX_NAME] for name, _ in named[:CLASSES]),
        counts=tuple(count for _, count in named[:CLASSES]),
        class_count=len(named),
        labels=content.label_source[:_MAX_TEXT],
        warnings=tuple(text[:_MAX_TEXT] for text in messages[:WARNINGS]),
        targets=predicted[:TARGETS],
        target_count=len(predicted),
        series=_series(content),
    )


def _series(content: Content) -> SeriesSummary | None:
    series = content.series
    if series is None:
        return None
    kind = TEXT if content.label_source == UNLABELLED else SERIES
    return SeriesSummary(kind, len(np.unique(series.machine)), series.longest, series.gaps)


def _is_predicted(content: Content, task: TaskSpec | None) -> bool:
    return task.kind == "regression" if task else is_quantity(content)


def _quantities(content: Content) -> tuple[Quantity, ...]:
    """Return the quantities that jobs can predict, each with its range."""
    targets = content.targets
    if targets is None or content.labels or targets.dtype.kind not in "buif":
        return ()
    columns = targets.reshape(len(targets), -1)
    names = content.target_names if len(content.target_names) == columns.shape[1] else [""] * columns.shape[1]
    ranges = (value_range(columns[:, at]) or (None, None) for at in range(columns.shape[1]))
    return tuple(Quantity(name[:_MAX_NAME], *map(_clamped, each)) for name, each in zip(names, ranges, strict=True))


def _clamped(value: float | None) -> float | None:
    return None if value is None else min(max(value, -MAX_NUMBER), MAX_NUMBER)
