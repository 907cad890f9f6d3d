"""What tests of machines look at: the messages that leave, and a twin made of what was written down."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sojourn.node.machine import Effect, Machine, Say, Send

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


def without_steps(effects: list[Effect]) -> list[Effect]:
    """What a machine wants done, but for what it logs of single visits (`tests/live/test_live_logs.py`)."""
    return [effect for effect in effects if not (isinstance(effect, Say) and effect.level == "step")]
