"""A summary of a device's data: complete for its owner, and reduced to what the owner shares with others."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sojourn.protocol.limits import FiniteFloat, Number, Samples
from sojourn.protocol.task import Shape
from sojourn.text import clean

CLASSES = 64
"""Maximum number of classes listed by name; all are counted."""
WARNINGS = 8
TARGETS = 16
"""Maximum number of quantities described; all are counted."""
SERIES, TEXT = "series", "text"
"""Kinds of data that does not consist of samples."""
RANGE, NAMES, COUNTS = "range", "classes", "class-counts"
"""The words with which an owner shares more than samples, shape and warnings."""
CONSENTS = (COUNTS, "projections")
"""The words without which some strategies skip a device: an estimator's name, or what an objective requires."""
_SHOWN = 16
"""Maximum names in a line."""
_SHARED_NAMES_LENGTH, _SHARED_WARNINGS = 400, 4
"""Maximum characters of all names together, and maximum number of warnings, in a shared summary, since an edge server
sends the offers of all its devices in one blob."""

ClassName = Annotated[str, msgspec.Meta(max_length=80)]
Sentence = Annotated[str, msgspec.Meta(max_length=300)]


class Quantity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A quantity that may be predicted: its name, and its smallest and largest value here."""

    name: ClassName = ""
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None

    def text(self) -> str:
        """Return the quantity as text."""
        known = f"{self.low:g} to {self.high:g}" if self.low is not None and self.high is not None else ""
        return f"{clean(self.name)} {known}".strip()


class SeriesSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data other than samples (`series` or `text`): how many, steps of the longest stretch without a gap, and gaps."""

    kind: ClassName = SERIES
    count: Number = 0
    longest: Number = 0
    gaps: Number = 0


class DataSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A device's summary of its data; a value that is unknown or not shared has its default.

    shape, dtype: of one sample; no shape if samples differ in it, as images may.
    low, high: the smallest and the largest value in the samples.
    classes, counts: some of the classes and the number of samples of each; class_count is the number of classes.
    labels: where the labels come from, and why this source was chosen.
    fault: why the data cannot be read; warnings: unusual properties of the data, each with a remedy.
    targets: some of the target quantities of samples; target_count is their number.
    series: set if the data consists of rows of series or bytes of texts, which then count as samples.
    """

    samples: Samples = 0
    shape: Shape = ()
    dtype: ClassName = ""
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    classes: Annotated[tuple[ClassName, ...], msgspec.Meta(max_length=CLASSES)] = ()
    counts: Annotated[tuple[Number, ...], msgspec.Meta(max_length=CLASSES)] = ()
    class_count: Number = 0
    labels: Sentence = ""
    fault: Sentence = ""
    warnings: Annotated[tuple[Sentence, ...], msgspec.Meta(max_length=WARNINGS)] = ()
    targets: Annotated[tuple[Quantity, ...], msgspec.Meta(max_length=TARGETS)] = ()
    target_count: Number = 0
    series: SeriesSummary | None = None

    def lines(self) -> list[str]:
        """Return the summary as lines of text; a peer's text is made safe for a terminal."""
        if self.fault:
            return [f"no data: {clean(self.fault)}"]
        found = [self._series_line(self.series) if self.series else self._samples_line()]
        found += [line for line in (self._names_line(), self._targets_line()) if line]
        if self.labels and not self.series:
            whose = "targets" if self.target_count else "labels"
            found.append(f"{whose}: {clean(self.labels)}")
        return [*found, *(f"warning: {clean(text)}" for text in self.warnings)]

    def shared(self, shares: tuple[str, ...]) -> DataSummary:
        """Return what others may know: samples, shape, source of labels, warnings, and values and classes if shared."""
        shared: DataSummary = msgspec.structs.replace(self, warnings=self.warnings[:_SHARED_WARNINGS])
        if RANGE not in shares:
            bare = tuple(Quantity(each.name) for each in shared.targets)
            shared = msgspec.structs.replace(shared, low=None, high=None, targets=bare)
        if COUNTS not in shares:
            shared = msgspec.structs.replace(shared, counts=())
        if not {NAMES, COUNTS}.intersection(shares):
            nameless = tuple(Quantity("", each.low, each.high) for each in shared.targets) if RANGE in shares else ()
            return msgspec.structs.replace(shared, classes=(), class_count=0, targets=nameless)
        fit, some = _fitting(shared.classes), _fitting(tuple(each.name for each in shared.targets))
        return msgspec.structs.replace(
            shared, classes=shared.classes[:fit], counts=shared.counts[:fit], targets=shared.targets[:some]
        )

    def _samples_line(self) -> str:
        words = f"{self.samples:,} samples"
        if self.dtype:
            sizes = " x ".join(str(size) for size in self.shape)
            words += f" of shape {sizes}" if sizes else " of different shapes"
        return words + self._values()

    def _series_line(self, series: SeriesSummary) -> str:
        if series.kind == TEXT:
            return f"{self.samples:,} bytes of text" + (f" in {series.count:,} files" if series.count > 1 else "")
        channels = self.shape[0] if self.shape else 1
        words = f"{self.samples:,} steps of {channels:,} channel{'s' * (channels != 1)}"
        words += f" in {series.count:,} series" if series.count > 1 else ""
        words += self._values()
        return f"{words}; {series.gaps:,} gaps, the longest stretch without one has {series.longest:,} steps"

    def _values(self) -> str:
        kind = f", {clean(self.dtype)}" if self.dtype else ""
        known = self.low is not None and self.high is not None
        return f"{kind}, values {self.low:g} to {self.high:g}" if known else kind

    def _targets_line(self) -> str:
        if not self.target_count:
            return ""
        shown = [each for each in self.targets if each.name or each.low is not None][:_SHOWN]
        more = self.target_count - len(shown)
        named = ", ".join(each.text() for each in shown) + (f" and {more:,} more" if more > 0 and shown else "")
        return f"{self.target_count:,} {'quantity' if self.target_count == 1 else 'quantities'}: {named}".rstrip(": ")

    def _names_line(self) -> str:
        if not self.class_count:
            return ""
        counts = [f" ({count:,})" for count in self.counts] or [""] * len(self.classes)
        shown = list(zip(self.classes, counts, strict=False))[:_SHOWN]
        named = ", ".join(f"{clean(name)}{count}" for name, count in shown)
        more = self.class_count - len(shown)
        rest = f" and {more:,} more" if more > 0 and named else ""
        return f"{self.class_count:,} {'class' if self.class_count == 1 else 'classes'}: {named}{rest}".rstrip(": ")


def _fitting(names: tuple[str, ...]) -> int:
    """Return how many of the names are shared."""
    room = _SHARED_NAMES_LENGTH
    for at, name in enumerate(names):
        room -= len(name)
        if room < 0:
            return at
    return len(names)


class DataSurvey(msgspec.Struct, frozen=True, tag="surveyed"):
    """A summary with all class names and detailed warnings; the latter two stay on the device."""

    summary: DataSummary
    warnings: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def facts(self) -> list[str]:
        """Return the detected properties of the data, a line each."""
        return msgspec.structs.replace(self.summary, warnings=()).lines()
