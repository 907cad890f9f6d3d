"""How large each number, text and list of a peer may be, by what it means: nothing on the wire is without a limit.

Sums of such numbers are cut off at the limit of their kind (`sum_within`), so that whatever peers say, what a node
makes of it fits into its own records and messages. Nothing here is NaN or infinite, but for figures that may be
unknown (`Known`): those are NaN.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 1 << 40
"""Of whatever is counted: samples, steps, rounds, attempts, predictions."""
MOST_BYTES = 1 << 50
"""Of all the traffic of a tour or of a round, and of a machine's memory."""
MOST_HOPS = 2_500_000
"""Visits of one tour: 2,500 devices, 1,000 times."""
MOST_FIGURE = 1e38
"""Of a loss, a weight or any other measured number: about what float32 holds. Squares of it are finite."""
MOST_NORM = 1e45
"""Of the norm of a vector of float32."""
MOST_SECONDS = 1e9
SHORTEST = 0.05
"""Seconds. However short a lease a peer names, nothing is done more often because of it."""
INLINE = 64 << 10
"""Blobs up to this size ride inside the first message to a node that refers to them."""
MAX_PACKET = 1 << 20
"""Bytes of a packet: read into lists and maps it takes up to 75 times as many."""
TEXT = 2000
"""Characters of a sentence for people."""
LABEL = 200

NEW = {"new": True}
"""Marks the limits that the first version of the wire did not have: what breaks them alone is mended where an older
node or an older journal says it (`sojourn.protocol.mending`)."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,63}\Z")]
Text = Annotated[str, msgspec.Meta(max_length=TEXT)]
LongText = Annotated[str, msgspec.Meta(max_length=20_000, extra=NEW)]
"""What an operator reads of a job: a reason may list all that is wrong with a job file."""
Label = Annotated[str, msgspec.Meta(max_length=LABEL, extra=NEW)]
"""A few words: a version, a board, a part of a strategy."""
MetricName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,64}\Z", extra=NEW)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Data = Annotated[bytes, msgspec.Meta(max_length=MAX_PACKET)]
Inline = Annotated[bytes, msgspec.Meta(max_length=INLINE, extra=NEW)]

Identity = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
"""A number that is only compared: of a packet, a boot, a seed, an order. Nothing is added to it."""
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST, extra=NEW)]
"""How many, or the how-manieth."""
Samples = Number
Steps = Number
Size = Number
"""Of a blob, in bytes. Blobs over 2^32 are not fetched (`sojourn.node.exchange`)."""
Hop = Annotated[int, msgspec.Meta(ge=0, le=MOST_HOPS, extra=NEW)]
Leaf = Annotated[int, msgspec.Meta(ge=0, le=1 << 28, extra=NEW)]
"""Which leaf of a blob."""
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES, extra=NEW)]

Seconds = Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS, extra=NEW)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since 1970 on the clock of the node that says it."""
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e6 * MOST_SECONDS, extra=NEW)]
Figure = Annotated[float, msgspec.Meta(ge=-MOST_FIGURE, le=MOST_FIGURE, extra=NEW)]
Norm = Annotated[float, msgspec.Meta(ge=0, le=MOST_NORM, extra=NEW)]
Portion = Annotated[float, msgspec.Meta(ge=0, le=1, extra=NEW)]
Metrics = Annotated[dict[MetricName, Figure], msgspec.Meta(max_length=32)]
Signature = Annotated[tuple[Figure, ...], msgspec.Meta(max_length=4096)]


class Known(NamedTuple):
    """The range of a figure that is NaN where it is not known: no type of msgspec's says that."""

    least: float
    most: float

    def holds(self, value: float) -> bool:
        """Whether a figure is in the range, or unknown."""
        return math.isnan(value) or self.least <= value <= self.most


def _known(least: float, most: float) -> msgspec.Meta:
    return msgspec.Meta(extra={"known": Known(least, most)})


Accuracy = Annotated[float, _known(0.0, 1.0)]
"""A share of samples, or NaN where it was not measured."""
Change = Annotated[float, _known(-1.0, 1.0)]
"""A difference of two of them, or NaN."""
Measure = Annotated[float, _known(-MOST_FIGURE, MOST_FIGURE)]
"""A figure, or NaN where it was not measured."""


def known_range(info: object) -> Known | None:
    """The range of a figure that may be unknown, if this is the type of one."""
    if isinstance(info, msgspec.inspect.Metadata) and info.extra:
        found = info.extra.get("known")
        return found if isinstance(found, Known) else None
    return None


def check_figures(it: msgspec.Struct) -> None:
    """Refuse a structure whose figures that may be unknown are out of their range: its `__post_init__` calls this."""
    for name, known, by_name in _figures(type(it)):
        value: Any = getattr(it, name)
        if value is msgspec.UNSET:
            continue
        for each in value.values() if by_name else (value,):
            if not known.holds(each):
                raise ValueError(f"Expected {name} from {known.least:g} to {known.most:g}, or NaN")


@cache
def _figures(form: type) -> tuple[tuple[str, Known, bool], ...]:
    """The fields of a structure that are figures, or figures by name."""
    info = msgspec.inspect.type_info(form)
    found = []
    for field in info.fields if isinstance(info, msgspec.inspect.StructType) else ():
        by_name = isinstance(field.type, msgspec.inspect.DictType)
        known = known_range(field.type.value_type if isinstance(field.type, msgspec.inspect.DictType) else field.type)
        if known:
            found.append((field.name, known, by_name))
    return tuple(found)


def sum_within(numbers: Iterable[int], most: int = MOST) -> int:
    """The sum, cut off at the limit that its kind has."""
    return min(sum(numbers), most)


def within(value: float, known: Known) -> float:
    """The figure, or NaN where it is beyond its range: a loss that has diverged."""
    return value if known.holds(value) else math.nan


LOSS = Known(-MOST_FIGURE, MOST_FIGURE)
