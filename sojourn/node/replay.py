"""Restores a node from the usable records of its journal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, get_args

from sojourn import __version__
from sojourn.errors import DamagedJournal, MachineError, StoreError
from sojourn.node.machine import Machine
from sojourn.protocol.limits import decoded
from sojourn.store.journal import Store
from sojourn.store.journal_file import Entry

# At its start a node replays its journal, and continues without records that it cannot use.
#
# A record that is damaged, unreadable, or does not follow because an earlier one is missing, is set aside: it stays in
# the store in a separate table, and the log reports what it was and what to do. Only a record of an unknown kind, which
# a newer version wrote, aborts the start: ignoring it silently would undo the upgrade.

MAX_NAMED_RECORDS = 5
"""At most this many set-aside records are listed in the log."""
DAMAGED = "wrong checksum"
log = logging.getLogger("sojourn")


def replay(machine: Machine, store: Store, boots: int) -> int:
    """Bring a machine to the end of its journal; return how many records follow the snapshot then.

    boots: how often this store was started; no earlier number of the machine was derived from one this high.
    """
    empty = machine.snapshot()
    try:
        count = _replay_all(machine, store)
        damaged = False
    except MachineError as error:
        if not isinstance(error, DamagedJournal):
            raise
        log.error("%s", error)  # noqa: TRY400  # damaged data, not a bug
        damaged = True
    except Exception as error:  # noqa: BLE001  # a record that does not follow may raise anything
        log.error("cannot replay %s: %s: %s", store.place, type(error).__name__, error)  # noqa: TRY400
        damaged = True
    if damaged:
        _Recovery(machine, store, empty).run(boots)
        count = 0
    return _without_missing(machine, store, count)


def _replay_all(machine: Machine, store: Store) -> int:
    state, records = store.load()
    if state is not None:
        machine.restore(state)
    for record in records:
        machine.apply(decoded(record, machine.record_form))
    return len(records)


def _without_missing(machine: Machine, store: Store, count: int) -> int:
    """Let the machine continue without missing blobs; a snapshot records the resulting changes."""
    missing = frozenset(digest for digest in machine.live() if not store.blobs.has(digest))
    sentences = machine.drop_missing_blobs(missing) if missing else []
    for sentence in sentences:
        log.error("%s: %s", store.place, sentence)
    if sentences:
        store.snapshot(machine.snapshot())
    return 0 if sentences else count


class _Recovery:
    """The careful replay of a journal: record by record, with a rollback for each."""

    def __init__(self, machine: Machine, store: Store, empty: bytes) -> None:
        self._machine, self._store, self._empty = machine, store, empty
        self._meanings = {
            _tag(form): _meaning(form) for form in get_args(machine.record_form) or (machine.record_form,)
        }
        self._snapshots, self._records = store.entries()
        self._incomplete = store.incomplete
        self._quarantined: list[tuple[Entry, str]] = []

    def run(self, boots: int) -> None:
        """Set aside unusable records, and keep the rest as the new beginning."""
        self._refuse_newer()
        begin = self._restore()
        following = [entry for entry in self._records if entry.seq > begin]
        complete = self._complete(begin, following)
        for entry in following:
            if reason := self._validate(entry):
                self._set_aside(entry, reason)
                complete = False
        for digest in self._store.blobs.drop_damaged(sorted(self._machine.live())):
            log.error("%s: deleted a damaged blob, %s", self._store.place, digest.hex()[:12])
        if not complete:
            self._machine.reserve_newer_attempts(boots)
        self._store.snapshot(self._machine.snapshot())
        self._log_outcome(complete=complete)

    def _refuse_newer(self) -> None:
        """Raise StoreError for an intact record of an unknown kind: a newer version wrote it."""
        unknown = (it for it in self._records if it.whole and it.kind)
        newer = next((entry for entry in unknown if entry.kind not in self._meanings), None)
        if newer is not None:
            raise StoreError(
                f"{self._store.place}: {newer.name} was written by a version newer than {__version__}. Install that "
                "version again, restore a backup made by this version, or move the folder away to start empty"
            )

    def _restore(self) -> int:
        """Restore the newest usable snapshot; return the number of its last record."""
        for entry in self._snapshots:
            reason = None if entry.whole else DAMAGED
            reason = reason or _failure(lambda entry=entry: self._machine.restore(entry.data))  # type: ignore[misc]
            if reason is None:
                return entry.seq
            self._set_aside(entry, reason)
        self._machine.restore(self._empty)
        return 0

    def _complete(self, begin: int, following: list[Entry]) -> bool:
        """Return whether no record is missing since the snapshot, judging by the record numbers."""
        last = max([begin, *(entry.seq for entry in (*self._snapshots, *following))])
        in_a_row = [entry.seq for entry in following] == [*range(begin + 1, last + 1)]
        return in_a_row and not self._incomplete

    def _validate(self, entry: Entry) -> str | None:
        """Apply a record, or return why it cannot be used."""
        if not entry.whole:
            return DAMAGED
        machine, found = self._machine, []
        form = machine.record_form
        if reason := _failure(lambda: found.append(decoded(entry.data, form))):
            return f"unreadable: {reason}"
        if reason := machine.validation_error(found[0]):
            return f"does not follow the current state: {reason}"
        before = machine.snapshot()
        if reason := _failure(lambda: self._apply(found[0])):
            machine.restore(before)
            return f"does not follow the current state: {reason}"
        return None

    def _apply(self, record: Any) -> None:
        """Apply a record, and verify that the resulting state can be read back."""
        self._machine.apply(record)
        self._machine.restore(self._machine.snapshot())

    def _set_aside(self, entry: Entry, reason: str) -> None:
        self._store.quarantine(entry, reason[:2000])
        self._quarantined.append((entry, reason))

    def _log_outcome(self, *, complete: bool) -> None:
        place = self._store.place
        for entry, reason in self._quarantined[:MAX_NAMED_RECORDS]:
            meaning = self._meanings.get(entry.kind, "")
            content = f"; content: {meaning}" if meaning else ""
            log.error("%s: set aside %s: %s%s", place, entry.name, reason, content)
        if len(self._quarantined) > MAX_NAMED_RECORDS:
            log.error("%s: set aside %d more", place, len(self._quarantined) - MAX_NAMED_RECORDS)
        if complete:
            log.error("%s: its complete state was read from an earlier snapshot and the records since", place)
            return
        log.error("%s: the records stay in the table quarantine, with the reason. %s", place, self._machine.remedy)


def _failure(action: Callable[[], object]) -> str | None:
    """Return the error that the action raised, if any."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  # damaged bytes and missing predecessors may raise anything
        return f"{type(error).__name__}: {error}"
    return None


def _tag(form: Any) -> str:
    return str(form.__struct_config__.tag)


def _meaning(form: Any) -> str:
    """Return the first sentence of a record's docstring."""
    return " ".join((form.__doc__ or "").split("\n\n")[0].split())
