"""Helpers for tests of machines: the sent messages, and a machine restored from the journal."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sojourn.node.machine import Effect, Log, Machine, Send

M = TypeVar("M", bound=Machine)


def sends(effects: Any, form: type | None = None) -> list[Any]:
    return [e.message for e in effects if isinstance(e, Send) and (form is None or isinstance(e.message, form))]


def replayed(twin: M, records: list[bytes], cut: int = 0) -> M:
    """Return a restarted machine: a snapshot after `cut` records, then the others."""
    for number, record in enumerate(records):
        if number == cut:
            twin.restore(twin.snapshot())
        twin.apply(msgspec.msgpack.decode(record, type=twin.record_form))
    return twin


def without_steps(effects: list[Effect]) -> list[Effect]:
    """Return a machine's effects, without its log lines of single visits (`tests/live/test_live_logs.py`)."""
    return [effect for effect in effects if not (isinstance(effect, Log) and effect.level == "step")]
