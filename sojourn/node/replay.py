"""What a node does at its start with its journal: replays it, and goes on without what cannot be used of it.

A record that is damaged, that cannot be read, or that does not follow what is there because another one is missing, is
set aside: it stays in the store, apart, and a loud word in the log says what it was and what to do. Only a record of a
kind that a newer version wrote ends the start: to forget it silently would undo the upgrade.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, get_args

from sojourn import __version__
from sojourn.errors import DamagedJournal, MachineError, StoreError
from sojourn.protocol.mending import read_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.node.machine import Machine
    from sojourn.store.entries import Entry
    from sojourn.store.journal import Store

NAMED = 5
"""At most this many records that were set aside are named in the log one by one."""
DAMAGED = "its checksum is wrong"
log = logging.getLogger("sojourn")


def replay(machine: Machine, store: Store, boots: int) -> int:
    """Bring a machine to where its journal ends; returns how many records stand behind the snapshot then.

    boots: how often this store was started; no number that the machine gave before was made of one as high.
    """
    empty = machine.snapshot()
    try:
        count = _plainly(machine, store)
        mended = False
    except MachineError as error:
        if not isinstance(error, DamagedJournal):
            raise
        log.error("%s", error)  # noqa: TRY400  # the file is damaged, not the code wrong
        mended = True
    except Exception as error:  # noqa: BLE001  # whatever a record does that does not follow the one before it
        log.error("%s cannot be replayed as it is: %s: %s", store.place, type(error).__name__, error)  # noqa: TRY400
        mended = True
    if mended:
        _Recovery(machine, store, empty).run(boots)
        count = 0
    return _without_missing(machine, store, count)


def _plainly(machine: Machine, store: Store) -> int:
    state, records = store.load()
    if state is not None:
        machine.restore(state)
    for record in records:
        machine.apply(read_record(record, machine.record_form))
    return len(records)


def _without_missing(machine: Machine, store: Store, count: int) -> int:
    """Let the machine go on without blobs that are gone; a snapshot takes down what that changed."""
    missing = frozenset(digest for digest in machine.live() if not store.blobs.has(digest))
    sentences = machine.do_without(missing) if missing else []
    for sentence in sentences:
        log.error("%s: %s", store.place, sentence)
    if sentences:
        store.snapshot(machine.snapshot())
    return 0 if sentences else count


class _Recovery:
    """The careful way through a journal: record by record, with a way back from each."""

    def __init__(self, machine: Machine, store: Store, empty: bytes) -> None:
        self._machine, self._store, self._empty = machine, store, empty
        self._meanings = {
            _tag(form): _meaning(form) for form in get_args(machine.record_form) or (machine.record_form,)
        }
        self._snapshots, self._records = store.entries()
        self._incomplete = store.incomplete
        self._aside: list[tuple[Entry, str]] = []

    def run(self, boots: int) -> None:
        """Set aside what cannot be used, and keep what is left as the new beginning."""
        self._refuse_newer()
        begin = self._restore()
        following = [entry for entry in self._records if entry.seq > begin]
        complete = self._complete(begin, following)
        for entry in following:
            if reason := self._objection(entry):
                self._set_aside(entry, reason)
                complete = False
        for digest in self._store.blobs.drop_damaged(sorted(self._machine.live())):
            log.error("%s: the blob %s beside it was damaged, and is deleted", self._store.place, digest.hex()[:12])
        if not complete:
            self._machine.mend(boots)
        self._store.snapshot(self._machine.snapshot())
        self._tell(complete=complete)

    def _refuse_newer(self) -> None:
        """A whole record of an unknown kind was written by a newer version; without a checksum it is a damaged one."""
        unknown = (it for it in self._records if it.checksum is not None and it.whole and it.kind)
        newer = next((entry for entry in unknown if entry.kind not in self._meanings), None)
        if newer is not None:
            raise StoreError(
                f"{self._store.place}: {newer.name} was written by a newer version than this one, {__version__}: "
                "install that version again, or restore a backup that this one made, or move the folder away to "
                "start afresh"
            )

    def _restore(self) -> int:
        """Take the newest snapshot that can be used; returns the number of the last record that it stands for."""
        for entry in self._snapshots:
            reason = None if entry.whole else DAMAGED
            reason = reason or _failure(lambda entry=entry: self._machine.restore(entry.data))  # type: ignore[misc]
            if reason is None:
                return entry.seq
            self._set_aside(entry, reason)
        self._machine.restore(self._empty)
        return 0

    def _complete(self, begin: int, following: list[Entry]) -> bool:
        """Whether no record is missing since the snapshot, as far as their numbers tell."""
        last = max([begin, *(entry.seq for entry in (*self._snapshots, *following))])
        in_a_row = [entry.seq for entry in following] == [*range(begin + 1, last + 1)]
        return in_a_row and not self._incomplete

    def _objection(self, entry: Entry) -> str | None:
        """Why a record cannot be used; if it can, it is applied."""
        if not entry.whole:
            return DAMAGED
        machine, found = self._machine, []
        form = machine.record_form
        if reason := _failure(lambda: found.append(read_record(entry.data, form))):
            return f"it cannot be read: {reason}"
        if reason := machine.objection(found[0]):
            return f"it does not follow what is here: {reason}"
        before = machine.snapshot()
        if reason := _failure(lambda: self._apply(found[0])):
            machine.restore(before)
            return f"it does not follow what is here: {reason}"
        return None

    def _apply(self, record: Any) -> None:
        """Apply a record, and see that what it leads to can be read back."""
        self._machine.apply(record)
        self._machine.restore(self._machine.snapshot())

    def _set_aside(self, entry: Entry, reason: str) -> None:
        self._store.set_aside(entry, reason[:2000])
        self._aside.append((entry, reason))

    def _tell(self, *, complete: bool) -> None:
        place = self._store.place
        for entry, reason in self._aside[:NAMED]:
            meaning = self._meanings.get(entry.kind, "")
            said = f"; it said: {meaning}" if meaning else ""
            log.error("%s: %s is set aside: %s%s", place, entry.name, reason, said)
        if len(self._aside) > NAMED:
            log.error("%s: so are %d more", place, len(self._aside) - NAMED)
        if complete:
            log.error("%s: all that it held was read from an earlier snapshot and the records since", place)
            return
        log.error(
            "%s: what is set aside stays in its table set_aside, with the reason. %s", place, self._machine.remedy
        )


def _failure(action: Callable[[], object]) -> str | None:
    """What went wrong, if something did."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  # whatever damaged bytes and missing predecessors may lead to
        return f"{type(error).__name__}: {error}"
    return None


def _tag(form: Any) -> str:
    return str(form.__struct_config__.tag)


def _meaning(form: Any) -> str:
    """The first sentence of a record's description."""
    return " ".join((form.__doc__ or "").split("\n\n")[0].split())
