"""What a device understood of its data: as its owner reads it, and as much of it as the owner lets others know."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sojourn.protocol.limits import Figure, Number, Samples
from sojourn.protocol.spec import Shape
from sojourn.text import clean

CLASSES = 64
"""At most this many classes are named; all are counted."""
WARNINGS = 8
TARGETS = 16
"""At most this many quantities are told of; all are counted."""
SERIES, TEXT = "series", "text"
"""What data is, where it is not samples."""
RANGE, NAMES, COUNTS = "range", "classes", "class-counts"
"""The words with which an owner shares more than samples, shape and warnings."""
CONSENTS = (COUNTS, "projections")
"""The words without which some strategies leave a device out: an estimator's name, or what an objective asks for."""
_SHOWN = 16
"""Names in a line."""
_TOLD_NAMES, _TOLD_WARNINGS = 400, 4
"""Characters of all names together, and warnings, that an honest agent tells: an edge server sends the offers of all
its devices in one piece."""

ClassName = Annotated[str, msgspec.Meta(max_length=80)]
Sentence = Annotated[str, msgspec.Meta(max_length=300)]


class Quantity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number that may be predicted: its name, and the least and the largest one here."""

    name: ClassName = ""
    low: Figure | None = None
    high: Figure | None = None

    def text(self) -> str:
        """What is known of it, in a few words."""
        known = f"{self.low:g} to {self.high:g}" if self.low is not None and self.high is not None else ""
        return f"{clean(self.name)} {known}".strip()


class SeriesSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data that is no samples: `series` or `text`; how many, steps of the longest stretch without a gap, and gaps."""

    kind: ClassName = SERIES
    count: Number = 0
    longest: Number = 0
    gaps: Number = 0


class DataSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a device understood of its data; what is not known, or not shared, has its default.

    shape, dtype: of one sample; no shape where samples differ in it, as images may.
    low, high: the least and the largest value in the samples.
    classes, counts: some of the classes and how many samples each has; class_count says how many classes there are.
    labels: where the labels come from, and why they were taken from there.
    fault: why the data cannot be read; warnings: what looks odd about it, each with what to do.
    targets: some of the quantities that samples are compared with; target_count says how many there are.
    series: where the data is no samples but rows of series or bytes of texts, which are then counted as samples.

    It stays below 16 fields: with more msgspec begins the map in another way, and old bytes would be others.
    """

    samples: Samples = 0
    shape: Shape = ()
    dtype: ClassName = ""
    low: Figure | None = None
    high: Figure | None = None
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
        """All of it for people, a line for each thing; text of a peer is made safe for a terminal."""
        if self.fault:
            return [f"no data: {clean(self.fault)}"]
        found = [self._series_line(self.series) if self.series else self._samples_line()]
        found += [line for line in (self._names_line(), self._targets_line()) if line]
        if self.labels and not self.series:
            whose = "targets" if self.target_count else "labels"
            found.append(f"{whose}: {clean(self.labels)}")
        return [*found, *(f"warning: {clean(text)}" for text in self.warnings)]

    def shared(self, shares: tuple[str, ...]) -> DataSummary:
        """What others may know: samples, shape, labels' place and warnings; values and classes only as shared."""
        told: DataSummary = msgspec.structs.replace(self, warnings=self.warnings[:_TOLD_WARNINGS])
        if RANGE not in shares:
            bare = tuple(Quantity(each.name) for each in told.targets)
            told = msgspec.structs.replace(told, low=None, high=None, targets=bare)
        if COUNTS not in shares:
            told = msgspec.structs.replace(told, counts=())
        if not {NAMES, COUNTS}.intersection(shares):
            nameless = tuple(Quantity("", each.low, each.high) for each in told.targets) if RANGE in shares else ()
            return msgspec.structs.replace(told, classes=(), class_count=0, targets=nameless)
        fit, some = _fitting(told.classes), _fitting(tuple(each.name for each in told.targets))
        return msgspec.structs.replace(
            told, classes=told.classes[:fit], counts=told.counts[:fit], targets=told.targets[:some]
        )

    def _samples_line(self) -> str:
        words = f"{self.samples:,} samples"
        if self.dtype:
            sizes = " x ".join(str(size) for size in self.shape)
            words += f" of shape {sizes}" if sizes else " of different shapes"
            words += f", {clean(self.dtype)}"
        if self.low is not None and self.high is not None:
            words += f", values {self.low:g} to {self.high:g}"
        return words

    def _series_line(self, series: SeriesSummary) -> str:
        if series.kind == TEXT:
            return f"{self.samples:,} bytes of text" + (f" in {series.count:,} files" if series.count > 1 else "")
        channels = self.shape[0] if self.shape else 1
        words = f"{self.samples:,} steps of {channels:,} channel{'s' * (channels != 1)}"
        words += f" in {series.count:,} series" if series.count > 1 else ""
        words += f", {clean(self.dtype)}" if self.dtype else ""
        if self.low is not None and self.high is not None:
            words += f", values {self.low:g} to {self.high:g}"
        return f"{words}; {series.gaps:,} gaps, the longest stretch without one has {series.longest:,} steps"

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
    """How many of the names are told."""
    room = _TOLD_NAMES
    for at, name in enumerate(names):
        room -= len(name)
        if room < 0:
            return at
    return len(names)
