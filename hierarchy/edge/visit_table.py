"""A visit at an edge server, as a table: its states, what may happen in each, and what follows.

    due           it is the turn of its device, which has not been asked yet, or not since the edge server started
    waiting       its device is busy with another visit
    handed        the device was asked, and its lease and its deadline run
    fetching      a result was announced, and its vectors are being fetched from the device
    checking      the gate looks at the result
    kept          the result is in the journal
    missed        it came to nothing, or was called off with its tour, or is none of ours

A visit is one attempt: a device that is tried again, or a spare in its place, has a visit with a number of its own. A
device may send progress, a result or a refusal at any time, once or often, also of a visit that is long over, so
every state that a number can name knows them; a visit that waits has no number yet. A visit of a tour that is gathering
counts as due: what is sent of it is ignored, since the edge server does not have what it judges an answer by and will
ask again.
"""

from __future__ import annotations

from typing import Literal

from sojourn.node.table import Table

VisitEvent = Literal[
    "handed over", "device busy", "device free", "device born again", "progress", "result", "result without vectors",
    "unfit result", "declined", "fetched", "fetch failed", "passed", "refused", "not checked", "lease over",
    "deadline over", "tour dropped",
]  # fmt: skip

DUE = "due"
WAITING = "waiting"
HANDED = "handed"
FETCHING = "fetching"
CHECKING = "checking"
KEPT = "kept"
MISSED = "missed"

_WAY: dict[tuple[str, str], str] = {
    (DUE, "handed over"): HANDED,
    (DUE, "device busy"): WAITING,
    (WAITING, "device free"): DUE,
    (HANDED, "result"): FETCHING,
    (HANDED, "result without vectors"): CHECKING,
    (HANDED, "unfit result"): MISSED,
    (HANDED, "lease over"): MISSED,
    (HANDED, "deadline over"): MISSED,
    (FETCHING, "fetched"): CHECKING,
    (FETCHING, "fetch failed"): MISSED,
    (FETCHING, "lease over"): MISSED,
    (FETCHING, "deadline over"): MISSED,
    (CHECKING, "passed"): KEPT,
    (CHECKING, "refused"): MISSED,
    (CHECKING, "not checked"): MISSED,
}
_DEVICE: dict[tuple[str, str], str] = {
    # Ignored: it is asked again soon.
    **{(DUE, event): DUE for event in ("progress", "result", "declined", "device born again")},
    # A device that is born again is asked again, unless its result is here.
    **{(state, "device born again"): state for state in (HANDED, FETCHING, CHECKING)},
    **{(state, "progress"): state for state in (HANDED, FETCHING, CHECKING)},
    **{(state, "declined"): MISSED for state in (HANDED, FETCHING, CHECKING)},
    # A result that comes twice is ignored.
    **{(state, "result"): state for state in (FETCHING, CHECKING)},
    # Over: the device is told again that its result was accepted, or that its visit counts for nothing.
    **{(state, event): state for state in (KEPT, MISSED) for event in ("progress", "result", "declined")},
}
_DROPPED: dict[tuple[str, str], str] = {
    (state, "tour dropped"): MISSED for state in (DUE, WAITING, HANDED, FETCHING, CHECKING)
}

VISIT = Table("visit at an edge server", {**_WAY, **_DEVICE, **_DROPPED}, start=DUE, ends=frozenset({KEPT, MISSED}))
