"""Reads protobuf's wire format from bytes that nobody trusts: bounded, without recursion, and without copying.

protobuf itself is lenient: of a field that comes twice it takes the last, it merges messages that come twice, and it
keeps what it does not know. A reader that takes the first would see another message than onnxruntime does. So here all
of these are refused, and what is read has one meaning only.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.errors import GraphRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types. There is no group (3, 4) in ONNX."""
MOST_FIELDS = 1 << 18
"""Fields that are read of one file, at most: it bounds the time, whatever the file says."""
_MOST_VARINT = 10
_WORD = 1 << 64
_MORE_BYTES = bytes(range(128, 256))
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Field:
    """A field that a message may have.

    most: how often it may come; 1 for one that is not repeated. packed: its numbers may be written as one block; they
    are then not read, only counted and found again.
    """

    name: str
    wire: int
    most: int = 1
    packed: bool = False


@dataclass(frozen=True)
class MessageForm:
    """The fields that a message may have, by their numbers; one with any other is refused."""

    name: str
    fields: Mapping[int, Field]


class Message:
    """The fields of one message: numbers, and of everything with a length where it begins and ends."""

    __slots__ = ("_found", "_reader", "form")

    def __init__(self, reader: WireReader, form: MessageForm, found: dict[str, array[int]]) -> None:
        self._reader, self.form, self._found = reader, form, found

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def number(self, name: str, default: int = 0) -> int:
        """A whole number, with its sign; how it was written does not matter."""
        found = self._found.get(name)
        return default if found is None else found[0]

    def span(self, name: str) -> tuple[int, int]:
        """Where a field with a length begins and ends; nowhere if there is none."""
        found = self._found.get(name)
        return (0, 0) if found is None else (found[0], found[1])

    def size(self, name: str) -> int:
        """How many bytes a field has."""
        start, end = self.span(name)
        return end - start

    def count(self, name: str) -> int:
        """How often a field with a length comes."""
        return len(self._found.get(name, ())) // 2

    def text(self, name: str, most: int) -> bytes:
        """The bytes of a name or a word, if they are no more than this."""
        return self._reader.text(*self.span(name), most, f"the {name} of a {self.form.name}")

    def texts(self, name: str, most: int) -> list[bytes]:
        """The bytes of all names in a list."""
        what = f"the {name} of a {self.form.name}"
        return [self._reader.text(start, end, most, what) for start, end in self.spans(name)]

    def spans(self, name: str) -> Iterator[tuple[int, int]]:
        """Where each of a repeated field's messages or texts begins and ends."""
        found = self._found.get(name, ())
        for at in range(0, len(found), 2):
            yield found[at], found[at + 1]

    def message(self, name: str, form: MessageForm) -> Message:
        """The message in a field; an empty one if there is none."""
        return self._reader.message(*self.span(name), form)

    def messages(self, name: str, form: MessageForm) -> Iterator[Message]:
        """The messages of a repeated field, each read when it is its turn."""
        for start, end in self.spans(name):
            yield self._reader.message(start, end, form)

    def numbers(self, name: str, most: int) -> list[int]:
        """The whole numbers of a repeated field, written one by one or as one block."""
        singles = self._found.get(f"{name} one by one")
        if singles is not None and name in self._found:
            raise GraphRefused(f"the {name} of a {self.form.name} are written in two ways at once")
        numbers = list(singles or ())
        for start, end in self.spans(name):
            numbers += self._reader.varints(start, end, most)
        if len(numbers) > most:
            raise GraphRefused(f"the {name} of a {self.form.name} are {len(numbers)}, more than {most}")
        return numbers


class WireReader:
    """Reads messages out of one file, and stops at the end of what it may spend on it."""

    def __init__(self, data: bytes, most_fields: int = MOST_FIELDS) -> None:
        self.data = data
        self._left = most_fields

    def message(self, start: int, end: int, form: MessageForm) -> Message:
        """The message between two places; what is inside of it is found, not read."""
        data, fields, at = self.data, form.fields, start
        found: dict[str, array[int]] = {}
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = self._varint(at - 1, end)
            field = fields.get(tag >> 3)
            if field is None:
                raise GraphRefused(f"a {form.name} has a field {tag >> 3} that is not known here")
            self._left -= 1
            if self._left < 0:
                raise GraphRefused("it has more fields than are read here")
            if tag & 7 == LENGTH and (field.wire == LENGTH or field.packed):
                at = self._take_span(at, end, field, form, found)
            elif tag & 7 == field.wire:
                at = self._take_number(at, end, field, form, found)
            else:
                raise GraphRefused(f"the {field.name} of a {form.name} is written as something else")
        return Message(self, form, found)

    def _take_span(self, at: int, end: int, field: Field, form: MessageForm, found: dict[str, array[int]]) -> int:
        if at < end and self.data[at] < 128:  # most are so short: not worth a call
            length = self.data[at]
            at += 1
        else:
            length, at = self._varint(at, end)
        if length > end - at:
            raise GraphRefused(f"the {field.name} of a {form.name} ends after the file")
        known = found.get(field.name)
        if known is None:
            found[field.name] = array("q", (at, at + length))
        elif field.packed or len(known) >= 2 * field.most:
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
                raise GraphRefused(f"the {field.name} of a {form.name} ends after the file")
            value, at = int.from_bytes(self.data[at : at + size], "little", signed=True), at + size
        name = field.name if field.most == 1 else f"{field.name} one by one"
        known = found.setdefault(name, array("q"))
        if len(known) >= field.most:
            raise _too_many(field, form)
        known.append(value)
        return at

    def text(self, start: int, end: int, most: int, what: str) -> bytes:
        """The bytes between two places, if they are no more than this."""
        if end - start > most:
            raise GraphRefused(f"{what} has {end - start} bytes, more than {most}")
        return self.data[start:end]

    def varints(self, start: int, end: int, most: int) -> list[int]:
        """The whole numbers of a block, if they are no more than this."""
        numbers: list[int] = []
        at = start
        while at < end:
            if len(numbers) == most:
                raise GraphRefused(f"a list has more than {most} numbers")
            value, at = self._varint(at, end)
            numbers.append(_signed(value))
        return numbers

    def count_varints(self, start: int, end: int) -> int:
        """How many whole numbers a block has."""
        blocks = (self.data[at : min(at + _BLOCK, end)] for at in range(start, end, _BLOCK))
        return sum(len(block.translate(None, _MORE_BYTES)) for block in blocks)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        data, value, shift = self.data, 0, 0
        last = min(end, at + _MOST_VARINT)
        while at < last:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value >= _WORD:
                    break
                return value, at
            shift += 7
        raise GraphRefused("a number in it has no end")


def _too_many(field: Field, form: MessageForm) -> GraphRefused:
    most = "once" if field.most == 1 else f"{field.most} times"
    return GraphRefused(f"a {form.name} may have its {field.name} {most}, and has it more often")


def _signed(value: int) -> int:
    return value - _WORD if value >= _WORD >> 1 else value
