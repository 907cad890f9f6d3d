"""A strict reader of protobuf's wire format for untrusted bytes: bounded, without recursion and without copies.

protobuf is lenient: it uses the last of repeated fields, merges repeated messages, and keeps unknown fields. A reader
that used the first would see another message than onnxruntime. This reader rejects all of these, so that a message has
only one meaning.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sojourn.errors import GraphRefused

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types. ONNX does not use groups (3, 4)."""
MAX_FIELDS = 1 << 18
"""Maximum fields in a file, which bounds the time to read it."""
_MAX_VARINT = 10
_WORD = 1 << 64
_MORE_BYTES = bytes(range(128, 256))
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Field:
    """A field of a message.

    limit: the maximum count, 1 unless repeated. packed: numbers may be packed into one block, of which only the
    position is recorded.
    """

    name: str
    wire: int
    limit: int = 1
    packed: bool = False


@dataclass(frozen=True)
class MessageForm:
    """The allowed fields of a message, by number; any other field is rejected."""

    name: str
    fields: Mapping[int, Field]


class Message:
    """The fields of one message: numbers, and the spans of fields with a length."""

    __slots__ = ("_found", "_reader", "form")

    def __init__(self, reader: WireReader, form: MessageForm, found: dict[str, array[int]]) -> None:
        self._reader, self.form, self._found = reader, form, found

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def number(self, name: str) -> int:
        """Return a signed integer, or 0 if the field is missing."""
        found = self._found.get(name)
        return 0 if found is None else found[0]

    def span(self, name: str) -> tuple[int, int]:
        """Return the start and end of a field with a length, or (0, 0) if it is missing."""
        found = self._found.get(name)
        return (0, 0) if found is None else (found[0], found[1])

    def size(self, name: str) -> int:
        """Return the bytes of a field."""
        start, end = self.span(name)
        return end - start

    def text(self, name: str, limit: int) -> bytes:
        """Return the bytes of a text of at most `limit` bytes."""
        return self._reader.text(*self.span(name), limit, f"the {name} of a {self.form.name}")

    def texts(self, name: str, limit: int) -> list[bytes]:
        """Return the bytes of each text of a repeated field."""
        what = f"the {name} of a {self.form.name}"
        return [self._reader.text(start, end, limit, what) for start, end in self.spans(name)]

    def spans(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each element of a repeated field."""
        found = self._found.get(name, ())
        for at in range(0, len(found), 2):
            yield found[at], found[at + 1]

    def message(self, name: str, form: MessageForm) -> Message:
        """Return the message in a field, empty if the field is missing."""
        return self._reader.message(*self.span(name), form)

    def messages(self, name: str, form: MessageForm) -> Iterator[Message]:
        """Yield the messages of a repeated field, each parsed on demand."""
        for start, end in self.spans(name):
            yield self._reader.message(start, end, form)

    def numbers(self, name: str, limit: int) -> list[int]:
        """Return the integers of a repeated field, whether packed or not."""
        singles = self._found.get(f"{name} one by one")
        if singles is not None and name in self._found:
            raise GraphRefused(f"the {name} of a {self.form.name} are both packed and unpacked")
        numbers = list(singles or ())
        for start, end in self.spans(name):
            numbers += self._reader.varints(start, end, limit)
        if len(numbers) > limit:
            raise GraphRefused(f"the {name} of a {self.form.name} are {len(numbers)}, more than {limit}")
        return numbers


class WireReader:
    """Reads messages from one file, up to a maximum number of fields."""

    def __init__(self, data: bytes, max_fields: int = MAX_FIELDS) -> None:
        self.data = data
        self._left = max_fields

    def message(self, start: int, end: int, form: MessageForm) -> Message:
        """Parse the message in a span; record the spans of its fields without parsing them."""
        data, fields, at = self.data, form.fields, start
        found: dict[str, array[int]] = {}
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = self._varint(at - 1, end)
            field = fields.get(tag >> 3)
            if field is None:
                raise GraphRefused(f"a {form.name} has the unknown field {tag >> 3}")
            self._left -= 1
            if self._left < 0:
                raise GraphRefused("it has too many fields")
            if tag & 7 == LENGTH and (field.wire == LENGTH or field.packed):
                at = self._take_span(at, end, field, form, found)
            elif tag & 7 == field.wire:
                at = self._take_number(at, end, field, form, found)
            else:
                raise GraphRefused(f"the {field.name} of a {form.name} has the wrong wire type")
        return Message(self, form, found)

    def _take_span(self, at: int, end: int, field: Field, form: MessageForm, found: dict[str, array[int]]) -> int:
        if at < end and self.data[at] < 128:  # the common short case, inlined for speed
            length = self.data[at]
            at += 1
        else:
            length, at = self._varint(at, end)
        if length > end - at:
            raise GraphRefused(f"the {field.name} of a {form.name} ends after the end of the file")
        known = found.get(field.name)
        if known is None:
            found[field.name] = array("q", (at, at + length))
        elif field.packed or len(known) >= 2 * field.limit:
            raise _too_many(field, form)
        else:
            known.extend((at, at + length))
        return at + length

    def _take_number(self, at: int, end: int, field: Field, form: MessageForm, found: dict[str, array[int]]) -> int:
        if field.wire == VARINT:
            value, at = self._varint(at, end)
            value = _signed(value)
        else:
            size = 8 if field.wire == FIXED64 else 4
            if size > end - at:
                raise GraphRefused(f"the {field.name} of a {form.name} ends after the end of the file")
            value, at = int.from_bytes(self.data[at : at + size], "little", signed=True), at + size
        name = field.name if field.limit == 1 else f"{field.name} one by one"
        known = found.setdefault(name, array("q"))
        if len(known) >= field.limit:
            raise _too_many(field, form)
        known.append(value)
        return at

    def text(self, start: int, end: int, limit: int, what: str) -> bytes:
        """Return the bytes of a span of at most `limit` bytes."""
        if end - start > limit:
            raise GraphRefused(f"{what} has {end - start} bytes, more than {limit}")
        return self.data[start:end]

    def varints(self, start: int, end: int, limit: int) -> list[int]:
        """Return the integers of a packed block of at most `limit` integers."""
        numbers: list[int] = []
        at = start
        while at < end:
            if len(numbers) == limit:
                raise GraphRefused(f"a list has more than {limit} numbers")
            value, at = self._varint(at, end)
            numbers.append(_signed(value))
        return numbers

    def count_varints(self, start: int, end: int) -> int:
        """Return the count of integers in a packed block."""
        blocks = (self.data[at : min(at + _BLOCK, end)] for at in range(start, end, _BLOCK))
        return sum(len(block.translate(None, _MORE_BYTES)) for block in blocks)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        data, value, shift = self.data, 0, 0
        last = min(end, at + _MAX_VARINT)
        while at < last:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value >= _WORD:
                    break
                return value, at
            shift += 7
        raise GraphRefused("it contains an unterminated number")


def _too_many(field: Field, form: MessageForm) -> GraphRefused:
    limit = "once" if field.limit == 1 else f"{field.limit} times"
    return GraphRefused(f"a {form.name} has its {field.name} more than {limit}")


def _signed(value: int) -> int:
    return value - _WORD if value >= _WORD >> 1 else value
