"""A tour at an edge server, as a table: its states, what may happen in each, and what follows.

    not here      no such tour: never taken, or dropped before
    gathering     what its devices will need is being fetched from the coordinator
    leading       the model is on its way: at devices, or due at one that is busy
    merging       a wave of visits is over, and its models are being merged
    stalled       there was no room on the disk to merge; everything is fetched and tried again in a while
    wrapping up   the last visit is over, and the result is made ready for its way to the coordinator
    ended         the result is in the journal and is offered until the coordinator has it
    dropped       accepted, cancelled, discarded, or replaced by a later attempt

After a restart a tour is `gathering`, or `ended` if its result was in the journal. The coordinator may repeat an order
or a dismissal at any time, so every state knows them. What devices send is in `visit_table`.
"""

from __future__ import annotations

from typing import Literal

from sojourn.node.table import Table

TourEvent = Literal[
    "order", "newer order", "repeated order", "old order", "unfit order", "dismissed", "old dismissal",
    "resumed", "resumed at its end", "fetched", "fetch failed", "time to fetch again", "wave lost", "wave over",
    "merged", "merge failed", "no room to merge", "last visit over", "wrapped", "not wrapped", "nothing to wrap",
]  # fmt: skip

NOT_HERE = "not here"
GATHERING = "gathering"
LEADING = "leading"
MERGING = "merging"
STALLED = "stalled"
WRAPPING_UP = "wrapping up"
ENDED = "ended"
DROPPED = "dropped"

_HELD = (GATHERING, LEADING, MERGING, STALLED, WRAPPING_UP, ENDED)
_WAY: dict[tuple[str, str], str] = {
    (NOT_HERE, "order"): GATHERING,
    (NOT_HERE, "resumed"): GATHERING,
    (NOT_HERE, "resumed at its end"): ENDED,
    (GATHERING, "fetch failed"): GATHERING,
    (GATHERING, "time to fetch again"): GATHERING,
    (GATHERING, "fetched"): LEADING,
    (LEADING, "wave lost"): LEADING,
    (LEADING, "wave over"): MERGING,
    (MERGING, "merged"): LEADING,
    (MERGING, "merge failed"): LEADING,
    (MERGING, "no room to merge"): STALLED,
    (STALLED, "time to fetch again"): GATHERING,
    (LEADING, "last visit over"): WRAPPING_UP,
    (WRAPPING_UP, "wrapped"): ENDED,
    (WRAPPING_UP, "not wrapped"): ENDED,
    (WRAPPING_UP, "nothing to wrap"): ENDED,
}
_COORDINATOR: dict[tuple[str, str], str] = {
    # Nothing is here: an order of an attempt that was dropped, or a dismissal that comes again, is ignored.
    (NOT_HERE, "old order"): NOT_HERE,
    (NOT_HERE, "unfit order"): NOT_HERE,
    (NOT_HERE, "old dismissal"): NOT_HERE,
    # A tour is here: the same order is answered with its progress; an older or unfit one, or a dismissal of an older
    # attempt, is ignored.
    **{(state, "repeated order"): state for state in _HELD},
    **{(state, "old order"): state for state in _HELD},
    **{(state, "unfit order"): state for state in _HELD},
    **{(state, "old dismissal"): state for state in _HELD},
    **{(state, "newer order"): DROPPED for state in _HELD},
    **{(state, "dismissed"): DROPPED for state in _HELD},
}

TOUR = Table("tour at an edge server", {**_WAY, **_COORDINATOR}, start=NOT_HERE, ends=frozenset({DROPPED}))
