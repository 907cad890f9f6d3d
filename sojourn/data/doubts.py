"""What looks odd about data, so that a mistake is seen before a model is trained on it: each with what to do.

A device may have few samples, few classes and uneven ones, and that is no mistake: what is asked here is whether labels
look like labels and values like values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.data.labels import shorten
from sojourn.data.samples import Doubt
from sojourn.data.scale_check import range_of, target_doubt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from sojourn.data.samples import Content
    from sojourn.protocol.task import TaskSpec

_FEW = 10
"""Of fewer samples nothing is concluded."""
_MOST_CLASSES = 100
"""A column of numbers with more different ones than this does not look like labels."""
_LARGEST = 1000
_COLUMNS = 64
"""Of so many targets it is looked whether they are odd."""
_NAME_TARGETS = "name the right columns with data.targets"
_PREDICT = 'a job with [task] kind = "regression" predicts them as they are, a classifier needs them in bins'
_NAME_IT = 'name the right column: data.label = "first", a name or a number (--label)'


def doubts_of(content: Content, task: TaskSpec | None = None) -> list[Doubt]:
    """All that looks odd, the worst first; of labels and targets what matters to the task, if there is one."""
    if not len(content.which):
        return list(content.doubts)
    if task is not None and task.kind != "classification":
        targets = _of_targets(content, task) if task.kind == "regression" else ()
        return [*targets, *content.doubts, *_of_series(content), *_of_values(content)]
    labels = list(_of_labels(content)) if content.labels else []
    classes = (
        [] if labels or not content.labels else _of_classes(content)
    )  # of what are no labels there are no classes to speak of
    targets = _of_targets(content) if not content.labels else ()
    return [*labels, *targets, *content.doubts, *_of_series(content), *_of_values(content), *classes]


def counts_of(content: Content) -> NDArray[np.int64]:
    """How many samples each label has; nothing where there are no labels."""
    if not content.labels:
        return np.zeros(0, np.int64)
    return np.bincount(content.which, minlength=len(content.labels))


def is_quantity(content: Content) -> bool:
    """Whether what samples are compared with is numbers of which no classes can be made."""
    return content.targets is not None and (not content.labels or bool(_fractions(content)))


def _of_labels(content: Content) -> Iterator[Doubt]:
    """Whether they are ids, measurements or pixels; where nobody said which column they are, whether another is."""
    samples, counts = len(content.which), counts_of(content)
    if samples < _FEW:
        return
    # Only a column of a CSV file can be the wrong one by a guess; elsewhere somebody has named the labels.
    first = content.guessed and _column_of_labels(content.x[:, 0], counts.max() / samples)
    remedy = 'the first column looks like labels: set data.label = "first" (--label first)' if first else _NAME_IT
    remedy = remedy if content.labelled_by.startswith(("column", "the last")) else "look whether these are the labels"
    share, found = counts.max() / samples, f"{len(content.labels):,} different ones in {samples:,} samples"
    if fractions := _fractions(content):
        kinds = f"{found}, such as {fractions}"
        yield Doubt("labels are numbers with fractions, as of a measurement", kinds, f"{_PREDICT}; or {remedy}")
    elif 2 * len(content.labels) > samples:
        yield Doubt("nearly every sample has a label of its own, as if labels were ids", found, remedy)
    elif _spread(content):
        low, high = min(_numbers(content)), max(_numbers(content))
        yield Doubt("labels look like measurements", f"{found}, from {low} to {high}", f"{_PREDICT}; or {remedy}")
    elif first and len(content.labels) > 1:
        most = f"{share:.0%} of them are {content.labels[int(counts.argmax())]}; {found}"
        yield Doubt("labels look like values or pixels", most, remedy)
    elif share >= 0.9 and (len(content.labels) > 1 or content.guessed):
        text = f"{share:.0%} of them are {str(content.labels[int(counts.argmax())])[:40]!r}"
        yield Doubt("nearly all labels are the same", text, f"if that is not so, {remedy}")


def _column_of_labels(column: NDArray[np.generic], share: float) -> bool:
    """Whether a column looks much more like labels than one in which a single value has this share."""
    values, counts = np.unique(column, return_counts=True)
    if not 2 <= len(values) <= min(_MOST_CLASSES, len(column) // 3) or not np.isfinite(values).all():
        return False
    small = bool((values == np.floor(values)).all()) and values[0] >= 0 and values[-1] < _MOST_CLASSES
    return small and counts.max() / len(column) <= 0.75 * share and share >= 0.5


def _numbers(content: Content) -> list[int]:
    return [label for label in content.labels if isinstance(label, int)]


def _spread(content: Content) -> bool:
    """Whether labels are whole numbers that no classes have: below 0, in the thousands, or many with gaps."""
    numbers = _numbers(content)
    if not numbers or content.names:
        return False
    span = max(numbers) - min(numbers) + 1
    gaps = len(numbers) > 20 and span > 2 * len(numbers)
    return min(numbers) < -1 or gaps or (max(numbers) >= _LARGEST and span > 2 * len(numbers))


def _fractions(content: Content) -> str:
    """One of the labels, if all are numbers and some have a fraction."""
    texts = [label for label in content.labels if isinstance(label, str)]
    try:
        values = [(float(text), text) for text in texts]
    except ValueError:
        return ""
    return next((text[:20] for value, text in values if not value.is_integer()), "") if texts else ""


def _of_targets(content: Content, task: TaskSpec | None = None) -> Iterator[Doubt]:
    """Whether quantities say anything, and whether they are in the job's unit."""
    targets = content.targets
    if targets is None or targets.dtype.kind not in "buif" or not targets.size:
        return
    columns = targets.reshape(len(targets), -1) if targets.ndim < 3 else targets.reshape(-1, targets.shape[-1])
    ranges = task.ranges if task and len(task.ranges) == columns.shape[1] else ()
    for at in range(min(columns.shape[1], _COLUMNS)):
        found = range_of(columns[:, at])
        name = content.target_names[at] if at < len(content.target_names) else f"column {at + 1}"
        if found and found[0] == found[1] and len(targets) >= _FEW:
            detail = f"{name[:40]!r} is {found[0]:g} in all of {len(targets):,} samples"
            yield Doubt("a target is always the same", detail, f"nothing can be learnt of it; {_NAME_TARGETS}")
        elif found and ranges and (doubt := target_doubt(found, ranges[at], name)):
            yield doubt


def _of_series(content: Content) -> Iterator[Doubt]:
    """Whether a channel is the time, which nobody has said, so that gaps are not seen."""
    x = content.x
    if content.series is None or x.ndim != 2 or len(x) < _FEW or content.series.timed:
        return
    start, stop = content.series.pieces[0] if len(content.series.pieces) else (0, 0)
    steps = np.diff(x[start : min(stop, start + 1000)].astype(np.float64), axis=0)
    rising = [at for at in range(x.shape[1]) if len(steps) >= _FEW - 1 and (steps[:, at] > 0).all()]
    if rising:
        names = content.series.channels or tuple(f"column {at + 1}" for at in range(x.shape[1]))
        remedy = "if it is the time, name it with data.time, so that gaps are seen and nothing is learnt from a clock"
        yield Doubt("a channel only rises, as time does", shorten(names[at] for at in rising), remedy)


def _of_values(content: Content) -> Iterator[Doubt]:
    x = content.x
    if x.dtype.kind not in "buif" or not x.size:
        return
    if x.dtype.kind == "f":
        # Block by block: a mask of a whole data set would be a quarter of its size.
        bad = sum(
            int(np.count_nonzero(~np.isfinite(x[at : at + 1024]).all(axis=tuple(range(1, x.ndim)))))
            for at in range(0, len(x), 1024)
        )
        if bad:
            remedy = "fill in what is missing; these samples are left out"
            yield Doubt("values are missing, NaN or infinite", f"in {bad:,} of {len(x):,} samples", remedy)
    if len(x) > 1 and all(bool((x[at : at + 1024] == x[0]).all()) for at in range(0, len(x), 1024)):
        yield Doubt(
            "all samples are alike", f"{len(x):,} times the same values", "look whether the file is the right one"
        )
    elif content.guessed and len(x) >= _FEW and x.ndim == 2 and _counts_up(x[:, 0]):
        remedy = "save the file without it (pandas: to_csv(..., index=False))"
        yield Doubt("the first column counts the rows, and is trained on", f"{x[0, 0]:g}, {x[1, 0]:g}, ...", remedy)


def _counts_up(column: NDArray[np.generic]) -> bool:
    return column[0] in (0, 1) and np.array_equal(column, np.arange(len(column)) + column[0])


def _of_classes(content: Content) -> Iterator[Doubt]:
    names = [str(label) for label in content.labels]
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.casefold().strip(), []).append(name)
    if twins := next((each for each in alike.values() if len(each) > 1), None):
        yield Doubt("classes have nearly the same name", shorten(twins), "write them alike: they count as different")
    counts = counts_of(content)
    lonely = [name for name, count in zip(names, counts, strict=True) if count == 1]
    if lonely and len(content.which) >= _FEW and 2 * len(names) <= len(content.which):
        remedy = "add samples of them, or look whether they are mistakes in writing"
        yield Doubt("some classes have one sample only", shorten(lonely), remedy)
