"""Bringing what was written under wider limits within those of today.

Nodes that speak the first version of the wire, and journals that earlier versions wrote, may hold numbers and texts
beyond the limits of `sojourn.protocol.limits`: an honest node whose loss diverged has sent NaN. What breaks only limits
that the first version did not have is mended, not refused: a number becomes the largest allowed, a text is cut, a
figure that is none is left out. Whatever else is wrong with it stays wrong.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import inspect

from sojourn.protocol.decoders import decoded
from sojourn.protocol.limits import NEW, known_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.protocol.limits import Known

    Mend = Callable[[Any], Any]

_T = TypeVar("_T")


class _NoneLeftError(Exception):
    """Nothing valid can be made of a value: its holder does without it, if it can."""


def read_record(data: bytes, form: type[_T] | Any) -> _T:
    """A record or a snapshot of one's own journal, mended where it breaks the limits of today."""
    try:
        return decoded(data, form)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        try:
            return mended(msgspec.msgpack.decode(data), form)  # type: ignore[no-any-return]
        except msgspec.ValidationError:
            raise error from None


def mended(value: Any, form: Any) -> Any:
    """The structure in plain maps and lists, within the limits; a ValidationError where more than they is broken."""
    mend = _mender(form)
    with suppress(_NoneLeftError):  # then the conversion says what is wrong with it
        value = mend(value) if mend else value
    return msgspec.convert(value, form, builtin_types=(bytes,))


@cache
def _mender(form: Any) -> Mend | None:
    return _of(inspect.type_info(form))


def _of(info: Any) -> Mend | None:
    """How values of a type are mended; None where nothing about them can be."""
    if known := known_range(info):
        return lambda value: _unknown(value, known)
    if isinstance(info, inspect.Metadata):
        of_kind = _LIMITED.get(type(info.type)) if info.extra == NEW else None
        return of_kind(info.type) if of_kind else _of(info.type)
    of_kind = _CONTAINERS.get(type(info))
    return of_kind(info) if of_kind else None


def _of_int(info: inspect.IntType) -> Mend | None:
    most = info.le
    return None if most is None else lambda value: most if type(value) is int and value > most else value


def _of_float(info: inspect.FloatType) -> Mend | None:
    most = info.le
    return None if most is None else lambda value: _finite(value, float(most))


def _of_text(info: inspect.StrType) -> Mend | None:
    most = info.max_length
    return None if most is None else lambda value: value[:most] if isinstance(value, str) else value


def _of_bytes(info: inspect.BytesType) -> Mend | None:
    most = info.max_length
    return None if most is None else lambda value: _short(value, most)


def _of_array(info: inspect.ListType | inspect.VarTupleType) -> Mend | None:
    item = _of(info.item_type)
    return item and (lambda value: [item(each) for each in value] if isinstance(value, list) else value)


def _unknown(value: Any, known: Known) -> Any:
    return value if not isinstance(value, int | float) or known.holds(value) else math.nan


def _finite(value: Any, most: float) -> Any:
    if not isinstance(value, float | int) or isinstance(value, bool):
        return value
    if math.isnan(value):
        raise _NoneLeftError
    return max(-most, min(value, most))  # one that may not be negative is still refused for it


def _short(value: Any, most: int) -> Any:
    if isinstance(value, bytes) and len(value) > most:
        raise _NoneLeftError
    return value


def _of_struct(info: inspect.StructType) -> Mend | None:
    fields = [(at, field, mend) for at, field in enumerate(info.fields) if (mend := _of(field.type))]
    if not fields:
        return None
    if not info.array_like:
        return lambda value: _mend_map(value, fields) if isinstance(value, dict) else value

    def mend_array(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        menders = {at: mend for at, _, mend in fields}
        return [menders[at](each) if at in menders else each for at, each in enumerate(value)]

    return mend_array


def _mend_map(value: dict[str, Any], fields: list[tuple[int, inspect.Field, Mend]]) -> dict[str, Any]:
    """A structure's fields, mended; one of which nothing is left has its default, if there is one."""
    made = dict(value)
    for _, field, mend in fields:
        name = field.encode_name
        if name not in made:
            continue
        try:
            made[name] = mend(made[name])
        except _NoneLeftError:
            if field.required:
                raise
            del made[name]
    return made


def _of_map(info: inspect.DictType) -> Mend | None:
    """Entries of which nothing is left go, and so do those whose name is not a valid one."""
    value_of, valid = _of(info.value_type), _names(info.key_type)
    if value_of is None and valid is None:
        return None

    def mend(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        made = {}
        for key, each in value.items():
            if valid is None or (isinstance(key, str) and valid.search(key)):
                with suppress(_NoneLeftError):
                    made[key] = value_of(each) if value_of else each
        return made

    return mend


def _names(info: Any) -> re.Pattern[str] | None:
    """What the names of entries must look like, where the first version of the wire took any."""
    if not (isinstance(info, inspect.Metadata) and info.extra == NEW and isinstance(info.type, inspect.StrType)):
        return None
    return re.compile(info.type.pattern) if info.type.pattern else None


def _of_tuple(info: inspect.TupleType) -> Mend | None:
    items = [_of(each) for each in info.item_types]
    if not any(items):
        return None

    def mend(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            return value
        return [each_mend(each) if each_mend else each for each_mend, each in zip(items, value, strict=True)]

    return mend


def _of_union(info: inspect.UnionType) -> Mend | None:
    """Structures by their tag, else the one type beside nil; of which nothing is left, that is nil where it may be."""
    structs = [each for each in info.types if isinstance(each, inspect.StructType)]
    others = [each for each in info.types if not isinstance(each, inspect.StructType | inspect.NoneType)]
    tagged = {each.tag: (each.tag_field, made) for each in structs if (made := _of_struct(each))}
    plain = [made for each in others if (made := _of(each))]
    if not tagged and not plain:
        return None
    may_be_nil = any(isinstance(each, inspect.NoneType) for each in info.types)

    def mend(value: Any) -> Any:
        try:
            if isinstance(value, dict) and tagged:
                for tag, (tag_field, of_struct) in tagged.items():
                    if tag is None or value.get(tag_field) == tag:
                        return of_struct(value)
                return value
            if isinstance(value, list) and None in tagged:
                return tagged[None][1](value)
            return plain[0](value) if plain and value is not None else value
        except _NoneLeftError:
            if not may_be_nil:
                raise
            return None

    return mend


_LIMITED: dict[type, Callable[[Any], Mend | None]] = {
    inspect.IntType: _of_int,
    inspect.FloatType: _of_float,
    inspect.StrType: _of_text,
    inspect.BytesType: _of_bytes,
}
_CONTAINERS: dict[type, Callable[[Any], Mend | None]] = {
    inspect.StructType: _of_struct,
    inspect.DictType: _of_map,
    inspect.UnionType: _of_union,
    inspect.TupleType: _of_tuple,
    inspect.ListType: _of_array,
    inspect.VarTupleType: _of_array,
}
