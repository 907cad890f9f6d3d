"""Decoders by type, each made once and by one thread at a time.

msgspec works a structure's fields out when a decoder first asks for them, and a second thread that asks meanwhile is
given what is not finished: the process ends with a segmentation fault (msgspec 0.22). An edge server that three devices
answered at once did.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_MADE: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_MAKING = Lock()


def decoded(data: bytes, form: type[_T]) -> _T:
    """What MessagePack says, as this type; msgspec's errors where it does not fit."""
    decoder = _MADE.get(form)
    if decoder is None:
        with _MAKING:
            decoder = _MADE.setdefault(form, msgspec.msgpack.Decoder(form))
    value: _T = decoder.decode(data)
    return value
