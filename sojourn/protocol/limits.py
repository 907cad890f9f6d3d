"""Limits of every number, text and list that a peer sends, and the decoders that enforce them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from threading import Lock
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

# The maximum size of each number, text and list from a peer, by its meaning: everything on the wire is limited.
#
# Sums of such numbers are cut off at the limit of their kind (`sum_within`), so that a node's results fit into its own
# records and messages whatever peers send. No value is NaN or infinite, except metrics that may be unknown (`Known`):
# those are NaN.

MAX_COUNT = 1 << 40
"""Maximum of all counts: samples, steps, rounds, attempts, predictions."""
MAX_BYTES = 1 << 50
"""Maximum traffic of a tour or a round, and maximum memory of a machine."""
MAX_HOPS = 2_500_000
"""Maximum visits of one tour: 2,500 devices, 1,000 times."""
MAX_NUMBER = 1e38
"""Maximum of a loss, a weight or any other measured number, about that of float32. Its square is finite."""
MAX_NORM = 1e45
"""Maximum norm of a float32 vector."""
MAX_SECONDS = 1e9
SHORTEST = 0.05
"""Minimum lease in seconds: shorter leases from a peer do not cause more frequent work."""
INLINE = 64 << 10
"""Blobs up to this size are inlined in the first message to a node that refers to them."""
MAX_PACKET = 1 << 20
"""Maximum bytes of a packet: decoded into lists and maps it takes up to 75 times as much memory."""
TEXT = 2000
"""Maximum characters of a sentence."""
LABEL = 200

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,63}\Z")]
Text = Annotated[str, msgspec.Meta(max_length=TEXT)]
LongText = Annotated[str, msgspec.Meta(max_length=20_000)]
"""Text about a job for operators: a reason may list all errors of a job file."""
Label = Annotated[str, msgspec.Meta(max_length=LABEL)]
"""A few words: a version, a board, a part of a strategy."""
MetricName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,64}\Z")]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Ed25519Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
PublicKey = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Data = Annotated[bytes, msgspec.Meta(max_length=MAX_PACKET)]
Inline = Annotated[bytes, msgspec.Meta(max_length=INLINE)]

Identity = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
"""A number that is only compared: of a packet, a boot, a seed, an order. It is not used in sums."""
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A count, or a position."""
Samples = Number
Steps = Number
Size = Number
"""The size of a blob in bytes. Blobs over 2^32 are not fetched (`sojourn.node.exchange`)."""
Hop = Annotated[int, msgspec.Meta(ge=0, le=MAX_HOPS)]
Leaf = Annotated[int, msgspec.Meta(ge=0, le=1 << 28)]
"""The position of a leaf in a blob."""
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]

Seconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since 1970 on the sender's clock."""
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e6 * MAX_SECONDS)]
FiniteFloat = Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Norm = Annotated[float, msgspec.Meta(ge=0, le=MAX_NORM)]
Portion = Annotated[float, msgspec.Meta(ge=0, le=1)]
Metrics = Annotated[dict[MetricName, FiniteFloat], msgspec.Meta(max_length=32)]
Signature = Annotated[tuple[FiniteFloat, ...], msgspec.Meta(max_length=4096)]


class Known(NamedTuple):
    """The range of a metric that is NaN if it is unknown, which msgspec's types cannot express."""

    least: float
    most: float

    def holds(self, value: float) -> bool:
        """Return whether a metric is in the range, or unknown."""
        return math.isnan(value) or self.least <= value <= self.most


def _known(least: float, most: float) -> msgspec.Meta:
    return msgspec.Meta(extra={"known": Known(least, most)})


Accuracy = Annotated[float, _known(0.0, 1.0)]
"""A share of samples, or NaN if it was not measured."""
Change = Annotated[float, _known(-1.0, 1.0)]
"""The difference of two accuracies, or NaN."""
Measure = Annotated[float, _known(-MAX_NUMBER, MAX_NUMBER)]
"""A metric, or NaN if it was not measured."""


def known_range(info: object) -> Known | None:
    """Return the range of a metric that may be unknown, if this type is one."""
    if isinstance(info, msgspec.inspect.Metadata) and info.extra:
        found = info.extra.get("known")
        return found if isinstance(found, Known) else None
    return None


def check_metrics(it: msgspec.Struct) -> None:
    """Refuse a structure whose metrics that may be unknown are out of range: its `__post_init__` calls this."""
    for name, known, by_name in _metrics(type(it)):
        value: Any = getattr(it, name)
        for each in value.values() if by_name else (value,):
            if not known.holds(each):
                raise ValueError(f"Expected {name} from {known.least:g} to {known.most:g}, or NaN")


@cache
def _metrics(form: type) -> tuple[tuple[str, Known, bool], ...]:
    """Return the fields of a structure that are metrics, or metrics by name."""
    info = msgspec.inspect.type_info(form)
    found = []
    for field in info.fields if isinstance(info, msgspec.inspect.StructType) else ():
        by_name = isinstance(field.type, msgspec.inspect.DictType)
        known = known_range(field.type.value_type if isinstance(field.type, msgspec.inspect.DictType) else field.type)
        if known:
            found.append((field.name, known, by_name))
    return tuple(found)


def sum_within(numbers: Iterable[int], most: int = MAX_COUNT) -> int:
    """Return the sum, cut off at the limit of its kind."""
    return min(sum(numbers), most)


def drop_oldest(entries: dict[Any, Any], most: int) -> None:
    """Drop the oldest entries until at most this many are left."""
    while len(entries) > most:
        del entries[next(iter(entries))]


def within(value: float, known: Known) -> float:
    """Return the metric, or NaN if it is out of range, such as a loss that has diverged."""
    return value if known.holds(value) else math.nan


LOSS = Known(-MAX_NUMBER, MAX_NUMBER)


# Decoders by type, each created once and by one thread at a time.
#
# msgspec analyses a structure's fields when a decoder first uses them. A second thread that uses them at the same time
# gets unfinished data, and the process ends with a segmentation fault (msgspec 0.22). This happened to an edge server
# when three devices answered at once.

_T = TypeVar("_T")
_MADE: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_MAKING = Lock()


def decoded(data: bytes, form: type[_T] | Any) -> _T:
    """Decode MessagePack as this type; raises msgspec's errors if it does not fit."""
    decoder = _MADE.get(form)
    if decoder is None:
        with _MAKING:
            decoder = _MADE.setdefault(form, msgspec.msgpack.Decoder(form))
    value: _T = decoder.decode(data)
    return value


def decoded_or_none(data: bytes, form: type[_T]) -> _T | None:
    """Decode MessagePack as this type; None if it does not fit."""
    try:
        return decoded(data, form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
