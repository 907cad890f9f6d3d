"""The state tables of a tour and of a visit at an edge server: states, events and transitions."""

from __future__ import annotations

from enum import StrEnum

from sojourn.node.table import Table


class TourStep(StrEnum):
    """The state of a tour at an edge server."""

    NOT_HERE = "not here"
    """No such tour: never taken, or dropped before."""
    GATHERING = "gathering"
    """The edge server fetches the inputs of its devices from the coordinator."""
    LEADING = "leading"
    """The model is at devices, or waits for a busy device."""
    MERGING = "merging"
    """A wave of visits is over; its models are being merged."""
    STALLED = "stalled"
    """The disk is too full to merge; everything is fetched and tried again later."""
    WRAPPING_UP = "wrapping up"
    """The last visit is over; the result is being encoded for the coordinator."""
    ENDED = "ended"
    """The result is in the journal and is offered until the coordinator accepts it."""
    DROPPED = "dropped"
    """Accepted, cancelled, discarded, or replaced by a later attempt."""


class TourEvent(StrEnum):
    """An event of a tour at an edge server. Messages from devices are events of a visit."""

    ORDER = "order"
    NEWER_ORDER = "newer order"
    REPEATED_ORDER = "repeated order"
    OLD_ORDER = "old order"
    UNFIT_ORDER = "unfit order"
    DISMISSED = "dismissed"
    OLD_DISMISSAL = "old dismissal"
    """The coordinator has dismissed an earlier attempt, or a tour that this site does not have."""
    RESUMED = "resumed"
    RESUMED_AT_ITS_END = "resumed at its end"
    """The journal held its result after a restart."""
    FETCHED = "fetched"
    FETCH_FAILED = "fetch failed"
    TIME_TO_FETCH_AGAIN = "time to fetch again"
    WAVE_LOST = "wave lost"
    """No visit of a wave was kept."""
    WAVE_OVER = "wave over"
    MERGED = "merged"
    MERGE_FAILED = "merge failed"
    NO_ROOM_TO_MERGE = "no room to merge"
    LAST_VISIT_OVER = "last visit over"
    WRAPPED = "wrapped"
    NOT_WRAPPED = "not wrapped"
    NOTHING_TO_WRAP = "nothing to wrap"


_HELD = (
    TourStep.GATHERING, TourStep.LEADING, TourStep.MERGING, TourStep.STALLED, TourStep.WRAPPING_UP, TourStep.ENDED,
)  # fmt: skip

_STAYS = (TourEvent.REPEATED_ORDER, TourEvent.OLD_ORDER, TourEvent.UNFIT_ORDER, TourEvent.OLD_DISMISSAL)

# The coordinator may repeat an order or a dismissal at any time, so every state accepts them.
TOUR = Table(
    "tour at an edge server",
    {
        (TourStep.NOT_HERE, TourEvent.ORDER): TourStep.GATHERING,
        (TourStep.NOT_HERE, TourEvent.RESUMED): TourStep.GATHERING,
        (TourStep.NOT_HERE, TourEvent.RESUMED_AT_ITS_END): TourStep.ENDED,
        (TourStep.GATHERING, TourEvent.FETCH_FAILED): TourStep.GATHERING,
        (TourStep.GATHERING, TourEvent.TIME_TO_FETCH_AGAIN): TourStep.GATHERING,
        (TourStep.GATHERING, TourEvent.FETCHED): TourStep.LEADING,
        (TourStep.LEADING, TourEvent.WAVE_LOST): TourStep.LEADING,
        (TourStep.LEADING, TourEvent.WAVE_OVER): TourStep.MERGING,
        (TourStep.MERGING, TourEvent.MERGED): TourStep.LEADING,
        (TourStep.MERGING, TourEvent.MERGE_FAILED): TourStep.LEADING,
        (TourStep.MERGING, TourEvent.NO_ROOM_TO_MERGE): TourStep.STALLED,
        (TourStep.STALLED, TourEvent.TIME_TO_FETCH_AGAIN): TourStep.GATHERING,
        (TourStep.LEADING, TourEvent.LAST_VISIT_OVER): TourStep.WRAPPING_UP,
        (TourStep.WRAPPING_UP, TourEvent.WRAPPED): TourStep.ENDED,
        (TourStep.WRAPPING_UP, TourEvent.NOT_WRAPPED): TourStep.ENDED,
        (TourStep.WRAPPING_UP, TourEvent.NOTHING_TO_WRAP): TourStep.ENDED,
        # No tour is held: ignore an order of a dropped attempt, and a repeated dismissal.
        (TourStep.NOT_HERE, TourEvent.OLD_ORDER): TourStep.NOT_HERE,
        (TourStep.NOT_HERE, TourEvent.UNFIT_ORDER): TourStep.NOT_HERE,
        (TourStep.NOT_HERE, TourEvent.OLD_DISMISSAL): TourStep.NOT_HERE,
        # A tour is held: answer the same order with its progress, and ignore an older or unfit order or dismissal.
        **{(step, event): step for step in _HELD for event in _STAYS},
        **{(step, event): TourStep.DROPPED for step in _HELD for event in (TourEvent.NEWER_ORDER, TourEvent.DISMISSED)},
    },
    start=TourStep.NOT_HERE,
    ends=frozenset({TourStep.DROPPED}),
)


class VisitStep(StrEnum):
    """The state of a visit at an edge server.

    A visit is one attempt: a retry, or a spare in place of a device, is a visit with another number.
    """

    DUE = "due"
    """It is its device's turn, and the device has not been asked since the edge server started.

    A visit of a tour that is gathering counts as due: its messages are ignored, since the edge server cannot judge
    them yet and will ask again.
    """
    WAITING = "waiting"
    """Its device is busy with another visit; the visit has no number yet."""
    HANDED = "handed"
    """The device was asked; lease and deadline run."""
    FETCHING = "fetching"
    """A result was announced; its vectors are being fetched from the device."""
    CHECKING = "checking"
    """The gate checks the result."""
    KEPT = "kept"
    """The result is in the journal."""
    MISSED = "missed"
    """The visit failed, was cancelled with its tour, or is unknown to this site."""


class VisitEvent(StrEnum):
    """An event of a visit at an edge server."""

    HANDED_OVER = "handed over"
    DEVICE_BUSY = "device busy"
    DEVICE_FREE = "device free"
    DEVICE_RESTARTED = "device restarted"
    PROGRESS = "progress"
    RESULT = "result"
    RESULT_WITHOUT_VECTORS = "result without vectors"
    UNFIT_RESULT = "unfit result"
    DECLINED = "declined"
    FETCHED = "fetched"
    FETCH_FAILED = "fetch failed"
    PASSED = "passed"
    REFUSED = "refused"
    NOT_CHECKED = "not checked"
    LEASE_OVER = "lease over"
    DEADLINE_OVER = "deadline over"
    TOUR_DROPPED = "tour dropped"


_ASKED = (VisitStep.HANDED, VisitStep.FETCHING, VisitStep.CHECKING)
_FROM_DEVICE = (VisitEvent.PROGRESS, VisitEvent.RESULT, VisitEvent.DECLINED)

# A device may send progress, a result or a refusal at any time, once or repeatedly, also for a visit that ended long
# ago, so every state that a visit number can refer to accepts them.
VISIT = Table(
    "visit at an edge server",
    {
        (VisitStep.DUE, VisitEvent.HANDED_OVER): VisitStep.HANDED,
        (VisitStep.DUE, VisitEvent.DEVICE_BUSY): VisitStep.WAITING,
        (VisitStep.WAITING, VisitEvent.DEVICE_FREE): VisitStep.DUE,
        (VisitStep.HANDED, VisitEvent.RESULT): VisitStep.FETCHING,
        (VisitStep.HANDED, VisitEvent.RESULT_WITHOUT_VECTORS): VisitStep.CHECKING,
        (VisitStep.HANDED, VisitEvent.UNFIT_RESULT): VisitStep.MISSED,
        (VisitStep.HANDED, VisitEvent.LEASE_OVER): VisitStep.MISSED,
        (VisitStep.HANDED, VisitEvent.DEADLINE_OVER): VisitStep.MISSED,
        (VisitStep.FETCHING, VisitEvent.FETCHED): VisitStep.CHECKING,
        (VisitStep.FETCHING, VisitEvent.FETCH_FAILED): VisitStep.MISSED,
        (VisitStep.FETCHING, VisitEvent.LEASE_OVER): VisitStep.MISSED,
        (VisitStep.FETCHING, VisitEvent.DEADLINE_OVER): VisitStep.MISSED,
        (VisitStep.CHECKING, VisitEvent.PASSED): VisitStep.KEPT,
        (VisitStep.CHECKING, VisitEvent.REFUSED): VisitStep.MISSED,
        (VisitStep.CHECKING, VisitEvent.NOT_CHECKED): VisitStep.MISSED,
        # Ignored: the device is asked again soon.
        **{(VisitStep.DUE, event): VisitStep.DUE for event in (*_FROM_DEVICE, VisitEvent.DEVICE_RESTARTED)},
        # A device that has restarted is asked again, unless its result has arrived.
        **{(step, VisitEvent.DEVICE_RESTARTED): step for step in _ASKED},
        **{(step, VisitEvent.PROGRESS): step for step in _ASKED},
        **{(step, VisitEvent.DECLINED): VisitStep.MISSED for step in _ASKED},
        # A repeated result is ignored.
        **{(step, VisitEvent.RESULT): step for step in (VisitStep.FETCHING, VisitStep.CHECKING)},
        # Ended: the edge server answers again that the result was accepted, or that the visit does not count.
        **{(step, event): step for step in (VisitStep.KEPT, VisitStep.MISSED) for event in _FROM_DEVICE},
        **{(step, VisitEvent.TOUR_DROPPED): VisitStep.MISSED for step in (VisitStep.DUE, VisitStep.WAITING, *_ASKED)},
    },
    start=VisitStep.DUE,
    ends=frozenset({VisitStep.KEPT, VisitStep.MISSED}),
)
