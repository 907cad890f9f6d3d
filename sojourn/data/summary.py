"""Looking at data as a device reads it, without any job: the summary that people read of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sojourn.data.data_survey import DataSurvey
from sojourn.data.doubts import counts_of, doubts_of, is_quantity
from sojourn.data.labels import by_number
from sojourn.data.scale_check import range_of
from sojourn.data.series import forecast_windows, series_in
from sojourn.data.source import format_of, on_scale, read_content
from sojourn.data.targets import quantities
from sojourn.data.tokens import UNLABELLED
from sojourn.errors import DataError
from sojourn.protocol.data_summary import CLASSES, SERIES, TARGETS, TEXT, WARNINGS, DataSummary, Quantity, SeriesSummary
from sojourn.protocol.limits import MOST_FIGURE
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.data.samples import Content, Doubt
    from sojourn.data.source import DataSettings
    from sojourn.protocol.spec import TableSpec
    from sojourn.protocol.task import TaskSpec

_NAME, _SENTENCE = 80, 300


def survey(settings: DataSettings, task: TaskSpec | None = None, table: TableSpec | None = None) -> DataSurvey:
    """What the data is taken for, and what looks odd about it; data that cannot be read is a summary with a fault.

    Images are counted and only some of them opened: there may be many, and no job has said in which size it wants them.
    task: what the data is looked at for, where that is known; then it is a fault if there is nothing to learn it from.
    table: the columns of the job's table, which the data must have.
    """
    shape: tuple[int, ...]
    try:
        if format_of(settings) == "images":
            from sojourn.data.image_survey import survey_images  # noqa: PLC0415  # Pillow comes with it

            content, shape, values = survey_images(settings, task)
            values = _on_scale(values, settings)
        else:
            content = read_content(settings, "train", task=task, table=table)
            content = series_in(content) if task and task.kind == "forecast" and not content.series else content
            shape, values = tuple(int(size) for size in content.x.shape[1:]), range_of(content.x)
        if not len(content.which):
            why = "".join(f". {each.what} ({each.detail}); to do: {each.remedy}" for each in content.doubts)
            raise DataError(f"{settings.path} holds no samples: put some there, a visit without any is declined{why}")
        _check(content, task)
    except (DataError, MemoryError) as error:
        text = str(error) or f"{settings.path}: there is not enough memory to read it"
        return DataSurvey(DataSummary(fault=text[:_SENTENCE]))
    doubts = doubts_of(content, task)
    warnings = [f"{each.what} ({each.detail}); to do: {each.remedy}" for each in doubts]
    warnings += [f"left out: {text}" for text in content.skipped]
    # What a job predicts as a quantity has no classes, even if it is whole numbers.
    content = replace(content, labels=()) if _is_predicted(content, task) else content
    return DataSurvey(_summary(content, shape, values, doubts), tuple(warnings), tuple(_names(content)))


def _check(content: Content, task: TaskSpec | None) -> None:
    """Whether what the task needs can be made of the data, as far as that is known without a model."""
    if task is None:
        return
    if task.kind == "regression":
        quantities(content, task)
    elif task.kind == "forecast" and task.window:
        forecast_windows(content, InputSpec((task.window.steps, max(1, content.x.shape[1]))), task)


def _on_scale(values: tuple[float, float] | None, settings: DataSettings) -> tuple[float, float] | None:
    if values is None or not settings.scale:
        return values
    low, high = sorted(float(value) for value in on_scale(np.array(values), settings))
    return low, high


def _summary(
    content: Content, shape: tuple[int, ...], values: tuple[float, float] | None, doubts: Sequence[Doubt]
) -> DataSummary:
    named = sorted(zip(_names(content), counts_of(content).tolist(), strict=True), key=lambda each: by_number(each[0]))
    predicted = _quantities(content)
    warnings = [f"{doubt.what}; to do: {doubt.remedy}" for doubt in doubts]
    if content.skipped:
        warnings.append("some of it cannot be read and is left out; to do: see the device's log")
    low, high = values or (None, None)
    return DataSummary(
        samples=len(content.which),
        shape=shape[:8],
        dtype=content.x.dtype.name[:_NAME],
        low=_told(low),
        high=_told(high),
        classes=tuple(name[:_NAME] for name, _ in named[:CLASSES]),
        counts=tuple(count for _, count in named[:CLASSES]),
        class_count=len(named),
        labels=content.labelled_by[:_SENTENCE],
        warnings=tuple(text[:_SENTENCE] for text in warnings[:WARNINGS]),
        targets=predicted[:TARGETS],
        target_count=len(predicted),
        series=_series(content),
    )


def _series(content: Content) -> SeriesSummary | None:
    series = content.series
    if series is None:
        return None
    kind = TEXT if content.labelled_by == UNLABELLED else SERIES
    return SeriesSummary(kind, len(np.unique(series.machine)), series.longest, series.gaps)


def _is_predicted(content: Content, task: TaskSpec | None) -> bool:
    return task.kind == "regression" if task else is_quantity(content)


def _quantities(content: Content) -> tuple[Quantity, ...]:
    """What may be predicted of the data, each with its range."""
    targets = content.targets
    if targets is None or content.labels or targets.dtype.kind not in "buif":
        return ()
    columns = targets.reshape(len(targets), -1)
    names = content.target_names if len(content.target_names) == columns.shape[1] else [""] * columns.shape[1]
    ranges = (range_of(columns[:, at]) or (None, None) for at in range(columns.shape[1]))
    return tuple(Quantity(name[:_NAME], *map(_told, each)) for name, each in zip(names, ranges, strict=True))


def _told(value: float | None) -> float | None:
    return None if value is None else min(max(value, -MOST_FIGURE), MOST_FIGURE)


def _names(content: Content) -> list[str]:
    """The labels as the names that they mean; one that means none stays a number, and is an error in any job."""
    names = content.names
    return [
        names[label] if isinstance(label, int) and 0 <= label < len(names) else str(label) for label in content.labels
    ]
