"""Data checks before training: each warning describes a likely mistake and its fix."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, prod

import numpy as np
from numpy.typing import NDArray

from sojourn.data.labels import shorten
from sojourn.data.samples import Content, DataWarning, finite_rows
from sojourn.data.series import Windows
from sojourn.protocol.spec import ValueRange
from sojourn.protocol.task import TaskSpec

MAX_RATIO = 8
"""Two ranges are on different scales if one is more than this many times as wide as the other."""
_BLOCK = 1 << 20
"""Values read per block, which bounds memory."""
_COMMON_SCALES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 16.0), (0.0, 255.0), (0.0, 65535.0))
"""Common scales: data that lies within one and fills more than half of it is assumed to use it."""


def value_range(x: NDArray[np.generic]) -> tuple[float, float] | None:
    """Return the smallest and largest finite value, or None if there is none."""
    low, high = np.inf, -np.inf
    x = x.steps if isinstance(x, Windows) else x  # read each step once, although windows overlap
    step = max(1, _BLOCK // max(1, prod(x.shape[1:])))
    for at in range(0, len(x) if x.dtype.kind in "buif" else 0, step):
        block = x[at : at + step]
        block = block[np.isfinite(block)] if block.dtype.kind == "f" else block
        if block.size:
            low, high = min(low, float(block.min())), max(high, float(block.max()))
    return (low, high) if low <= high else None


def target_scale_warning(found: tuple[float, float], wanted: tuple[float, float], name: str) -> DataWarning | None:
    """Return a warning if a device's target range is on another scale than the job's.

    A device may cover only a small part of the job's range, so a narrow range is accepted.
    """
    (low, high), (least, most) = found, wanted
    if not (isfinite(least) and isfinite(most) and least < most):
        return None
    if low <= most and high >= least and high - low <= MAX_RATIO * (most - least):
        return None
    detail = f"{name[:40]!r} ranges from {low:g} to {high:g}"
    return DataWarning(
        f"a target is on another scale: in the job's samples it ranges from {least:g} to {most:g}",
        detail,
        "convert it to the job's unit with data.target_scale, or set the right columns with data.targets",
    )


def scale_warning(found: tuple[float, float], wanted: ValueRange) -> DataWarning | None:
    """Return a warning if a device's values are outside the job's range or on another scale."""
    (low, high), (least, most) = found, (wanted.low, wanted.high)
    if not (isfinite(least) and isfinite(most) and least < most):
        return None
    source = "the job requires values" if wanted.demanded else "the job's exemplars range"
    expected = f"{source} from {least:g} to {most:g}"
    scale = f"{_common_scale(low, high)} to {_common_scale(least, most)}"
    detail = f'they range from {low:g} to {high:g}; data.scale = "{scale}" may fit'
    remedy = "convert them to that scale with data.scale (--scale)"
    span, width = high - low, most - least
    slack = 1e-6 * width
    if wanted.demanded and (low < least - slack or high > most + slack):
        return DataWarning(f"values are outside the job's range: {expected}", detail, remedy)
    side = low > most or high < least
    negative = least >= 0 and low < -width / 4
    if side or negative or span > MAX_RATIO * width or 0 < span < width / MAX_RATIO:
        return DataWarning(f"values are on another scale: {expected}", detail, remedy)
    return None


def _common_scale(low: float, high: float) -> str:
    fits = ((a, b) for a, b in _COMMON_SCALES if a <= low and high <= b and (high - low) * 2 > b - a)
    a, b = next(fits, (low, high))
    return f"{a:g}..{b:g}"


# A device may have few samples, few classes and unbalanced ones: these checks only ask whether labels look like labels
# and values look like values.

_MIN_SAMPLES = 10
"""With fewer samples, most checks are skipped."""
_MAX_CLASSES = 100
"""A column with more distinct numbers than this does not look like labels."""
_LARGE_LABEL = 1000
_MAX_TARGETS = 64
"""At most this many targets are checked."""
_NAME_TARGETS = "set the right columns with data.targets"
_PREDICT_ADVICE = 'a job with [task] kind = "regression" predicts them directly; a classifier needs them in bins'
_NAME_LABEL = 'set the right column: data.label = "first", a name or a number (--label)'


def data_warnings(content: Content, task: TaskSpec | None = None) -> list[DataWarning]:
    """Return all warnings, the most serious first; with a task, only the checks that matter to it."""
    if not len(content.label_index):
        return list(content.warnings)
    if task is not None and task.kind != "classification":
        targets = _target_warnings(content, task) if task.kind == "regression" else ()
        return [*targets, *content.warnings, *_series_warnings(content), *_value_warnings(content)]
    labels = list(_label_warnings(content)) if content.labels else []
    # If the labels are suspicious, their classes mean nothing.
    classes = [] if labels or not content.labels else _class_warnings(content)
    targets = _target_warnings(content) if not content.labels else ()
    return [*labels, *targets, *content.warnings, *_series_warnings(content), *_value_warnings(content), *classes]


def label_counts(content: Content) -> NDArray[np.int64]:
    """Return the number of samples of each label; empty without labels."""
    if not content.labels:
        return np.zeros(0, np.int64)
    return np.bincount(content.label_index, minlength=len(content.labels))


def is_quantity(content: Content) -> bool:
    """Return whether the targets are numbers that cannot be classes."""
    return content.targets is not None and (not content.labels or bool(_fractional_label(content)))


def _label_warnings(content: Content) -> Iterator[DataWarning]:
    """Check whether labels look like ids, measurements or pixels, and whether a guessed column is the wrong one."""
    samples, counts = len(content.label_index), label_counts(content)
    if samples < _MIN_SAMPLES:
        return
    # Only a CSV file's label column can be guessed wrong; elsewhere the labels are named.
    first = content.guessed and _looks_like_labels(content.x[:, 0], counts.max() / samples)
    remedy = 'the first column looks like labels: set data.label = "first" (--label first)' if first else _NAME_LABEL
    remedy = remedy if content.label_source.startswith(("column", "the last")) else "check whether these are the labels"
    share, found = counts.max() / samples, f"{len(content.labels):,} distinct labels in {samples:,} samples"
    if fractions := _fractional_label(content):
        kinds = f"{found}, such as {fractions}"
        yield DataWarning(
            "labels are numbers with fractions, like measurements", kinds, f"{_PREDICT_ADVICE}; or {remedy}"
        )
    elif 2 * len(content.labels) > samples:
        yield DataWarning("nearly every sample has a different label, as if labels were ids", found, remedy)
    elif _looks_like_measurements(content):
        low, high = min(_integer_labels(content)), max(_integer_labels(content))
        yield DataWarning(
            "labels look like measurements", f"{found}, from {low} to {high}", f"{_PREDICT_ADVICE}; or {remedy}"
        )
    elif first and len(content.labels) > 1:
        most = f"{share:.0%} of the labels are {content.labels[int(counts.argmax())]}; {found}"
        yield DataWarning("labels look like values or pixels", most, remedy)
    elif share >= 0.9 and (len(content.labels) > 1 or content.guessed):
        text = f"{share:.0%} of the labels are {str(content.labels[int(counts.argmax())])[:40]!r}"
        yield DataWarning("nearly all labels are the same", text, f"if that is wrong, {remedy}")


def _looks_like_labels(column: NDArray[np.generic], share: float) -> bool:
    """Return whether a column looks much more like labels than one in which one value has this share."""
    values, counts = np.unique(column, return_counts=True)
    if not 2 <= len(values) <= min(_MAX_CLASSES, len(column) // 3) or not np.isfinite(values).all():
        return False
    small = bool((values == np.floor(values)).all()) and values[0] >= 0 and values[-1] < _MAX_CLASSES
    return small and counts.max() / len(column) <= 0.75 * share and share >= 0.5


def _integer_labels(content: Content) -> list[int]:
    return [label for label in content.labels if isinstance(label, int)]


def _looks_like_measurements(content: Content) -> bool:
    """Return whether integer labels do not look like classes: below -1, in the thousands, or many with gaps."""
    numbers = _integer_labels(content)
    if not numbers or content.names:
        return False
    span = max(numbers) - min(numbers) + 1
    gaps = len(numbers) > 20 and span > 2 * len(numbers)
    return min(numbers) < -1 or gaps or (max(numbers) >= _LARGE_LABEL and span > 2 * len(numbers))


def _fractional_label(content: Content) -> str:
    """Return a label with a fraction if all labels are numbers, or an empty string."""
    texts = [label for label in content.labels if isinstance(label, str)]
    try:
        values = [(float(text), text) for text in texts]
    except ValueError:
        return ""
    return next((text[:20] for value, text in values if not value.is_integer()), "") if texts else ""


def _target_warnings(content: Content, task: TaskSpec | None = None) -> Iterator[DataWarning]:
    """Check whether targets vary, and whether they are in the job's unit."""
    targets = content.targets
    if targets is None or targets.dtype.kind not in "buif" or not targets.size:
        return
    columns = targets.reshape(len(targets), -1) if targets.ndim < 3 else targets.reshape(-1, targets.shape[-1])
    ranges = task.ranges if task and len(task.ranges) == columns.shape[1] else ()
    for at in range(min(columns.shape[1], _MAX_TARGETS)):
        found = value_range(columns[:, at])
        name = content.target_names[at] if at < len(content.target_names) else f"column {at + 1}"
        if found and found[0] == found[1] and len(targets) >= _MIN_SAMPLES:
            detail = f"{name[:40]!r} is {found[0]:g} in all {len(targets):,} samples"
            yield DataWarning("a target is constant", detail, f"a model cannot learn from it; {_NAME_TARGETS}")
        elif found and ranges and (warning := target_scale_warning(found, ranges[at], name)):
            yield warning


def _series_warnings(content: Content) -> Iterator[DataWarning]:
    """Check whether a channel looks like an undeclared time column, which would hide gaps."""
    x = content.x
    if content.series is None or x.ndim != 2 or len(x) < _MIN_SAMPLES or content.series.timed:
        return
    start, stop = content.series.pieces[0] if len(content.series.pieces) else (0, 0)
    steps = np.diff(x[start : min(stop, start + 1000)].astype(np.float64), axis=0)
    rising = [at for at in range(x.shape[1]) if len(steps) >= _MIN_SAMPLES - 1 and (steps[:, at] > 0).all()]
    if rising:
        names = content.series.channels or tuple(f"column {at + 1}" for at in range(x.shape[1]))
        remedy = "if it is the time, set data.time, so that gaps are detected and the model does not train on a clock"
        yield DataWarning("a channel only increases, like time", shorten(names[at] for at in rising), remedy)


def _value_warnings(content: Content) -> Iterator[DataWarning]:
    x = content.x
    if x.dtype.kind not in "buif" or not x.size:
        return
    if bad := np.count_nonzero(~finite_rows(x)):
        remedy = "fill in the missing values; these samples are skipped"
        yield DataWarning("values are missing, NaN or infinite", f"in {bad:,} of {len(x):,} samples", remedy)
    if len(x) > 1 and all(bool((x[at : at + 1024] == x[0]).all()) for at in range(0, len(x), 1024)):
        yield DataWarning(
            "all samples are identical", f"the same values {len(x):,} times", "check whether this is the right file"
        )
    elif content.guessed and len(x) >= _MIN_SAMPLES and x.ndim == 2 and _is_row_count(x[:, 0]):
        remedy = "save the file without it (pandas: to_csv(..., index=False))"
        yield DataWarning(
            "the first column counts the rows and is used as a feature", f"{x[0, 0]:g}, {x[1, 0]:g}, ...", remedy
        )


def _is_row_count(column: NDArray[np.generic]) -> bool:
    return column[0] in (0, 1) and np.array_equal(column, np.arange(len(column)) + column[0])


def _class_warnings(content: Content) -> Iterator[DataWarning]:
    names = [str(label) for label in content.labels]
    by_folded_name: dict[str, list[str]] = {}
    for name in names:
        by_folded_name.setdefault(name.casefold().strip(), []).append(name)
    if duplicates := next((each for each in by_folded_name.values() if len(each) > 1), None):
        yield DataWarning(
            "class names differ only in case or spaces",
            shorten(duplicates),
            "spell them identically: they count as different classes",
        )
    counts = label_counts(content)
    single = [name for name, count in zip(names, counts, strict=True) if count == 1]
    if single and len(content.label_index) >= _MIN_SAMPLES and 2 * len(names) <= len(content.label_index):
        remedy = "add samples of them, or check for typos"
        yield DataWarning("some classes have only one sample", shorten(single), remedy)
