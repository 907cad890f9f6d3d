"""What tests of machines look at: the messages that leave, and a twin made of what was written down."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sojourn.node.machine import Machine, Send

M = TypeVar("M", bound=Machine)


def sends(effects: Any, form: type | None = None) -> list[Any]:
    return [e.message for e in effects if isinstance(e, Send) and (form is None or isinstance(e.message, form))]


def replayed(twin: M, records: list[bytes], cut: int = 0) -> M:
    """A newborn twin after a restart: a snapshot after `cut` records, then the others."""
    for number, record in enumerate(records):
        if number == cut:
            twin.restore(twin.snapshot())
        twin.apply(msgspec.msgpack.decode(record, type=twin.record_form))
    return twin
