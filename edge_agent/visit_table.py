"""A visit on a device, from the order to the edge server's last word: its states, what may happen, and what follows.

Edge servers repeat themselves and messages come late, so whatever one may send has a row in every state. A restart
begins a visit again that was taken and not trained; the result of one that was trained waits on. A device that lost the
record of a result begins that visit again too, until it hears that the result was accepted long ago.
"""

from __future__ import annotations

from enum import StrEnum

from sojourn.node.table import Table


class DeviceVisitState(StrEnum):
    """Where a visit is, seen from the device."""

    NEW = "new"
    """Nothing is known of it here."""
    FETCHING = "fetching"
    """Its kit and vectors are on their way."""
    WAITING = "waiting"
    """All is here; earlier results of its job, or the trial of a release, must come to an end first."""
    TRAINING = "training"
    TRAINED = "trained"
    """The result is kept and offered until the edge server answers it."""
    DECLINED = "declined"
    """It was begun and given up, and the refusal is kept to be said again."""
    OVER = "over"
    """Only its number is remembered, so that it is not taken again."""


class DeviceVisitEvent(StrEnum):
    """What may happen to a visit on a device."""

    TAKEN = "taken"
    REFUSED = "refused"
    """Not taken: busy, or the owner's limits, or what it asks for cannot be done here."""
    ASKED_AGAIN = "asked again"
    ACCEPTED = "accepted"
    DISCARDED = "discarded"
    """Discarded or cancelled by the edge server."""
    SUPERSEDED = "superseded"
    """The job has moved on: a later attempt, or a later round, is asked for."""
    UNSUPPORTED = "unsupported"
    """After a restart the owner no longer allows what it asks for."""
    MANDATE_OVER = "mandate over"
    """What an operator signed for its job has ended or was withdrawn."""
    ALL_FETCHED = "all fetched"
    PULL_FAILED = "pull failed"
    UNBLOCKED = "unblocked"
    """What it waited for has come to an end."""
    DONE = "done"
    WORKER_DIED = "worker died"
    """The training process failed, and the visit is begun once more."""
    NOT_DONE = "not done"
    """Training ended with a reason, or failed too often."""
    CROWDED_OUT = "crowded out"
    """Too many results, or a newer refusal, wait for an edge server."""
    UNANSWERED = "unanswered"
    """The next visit of the job has waited long enough for the answer to this one."""


At, On = DeviceVisitState, DeviceVisitEvent
DEVICE_VISIT = Table(
    "visit on a device",
    {
        (At.NEW, On.TAKEN): At.FETCHING,
        (At.NEW, On.REFUSED): At.NEW,
        (At.NEW, On.ACCEPTED): At.NEW,
        (At.NEW, On.DISCARDED): At.NEW,
        (At.FETCHING, On.ALL_FETCHED): At.WAITING,
        (At.FETCHING, On.PULL_FAILED): At.DECLINED,
        (At.FETCHING, On.UNSUPPORTED): At.DECLINED,
        (At.FETCHING, On.ASKED_AGAIN): At.FETCHING,
        (At.FETCHING, On.ACCEPTED): At.OVER,
        (At.FETCHING, On.DISCARDED): At.OVER,
        (At.FETCHING, On.SUPERSEDED): At.OVER,
        (At.FETCHING, On.MANDATE_OVER): At.DECLINED,
        (At.WAITING, On.MANDATE_OVER): At.DECLINED,
        (At.TRAINING, On.MANDATE_OVER): At.DECLINED,
        (At.TRAINED, On.MANDATE_OVER): At.OVER,
        (At.WAITING, On.UNBLOCKED): At.TRAINING,
        (At.WAITING, On.ASKED_AGAIN): At.WAITING,
        (At.WAITING, On.ACCEPTED): At.OVER,
        (At.WAITING, On.DISCARDED): At.OVER,
        (At.WAITING, On.SUPERSEDED): At.OVER,
        (At.TRAINING, On.DONE): At.TRAINED,
        (At.TRAINING, On.WORKER_DIED): At.TRAINING,
        (At.TRAINING, On.NOT_DONE): At.DECLINED,
        (At.TRAINING, On.ASKED_AGAIN): At.TRAINING,
        (At.TRAINING, On.ACCEPTED): At.OVER,
        (At.TRAINING, On.DISCARDED): At.OVER,
        (At.TRAINING, On.SUPERSEDED): At.OVER,
        (At.TRAINED, On.ACCEPTED): At.OVER,
        (At.TRAINED, On.DISCARDED): At.OVER,
        (At.TRAINED, On.ASKED_AGAIN): At.TRAINED,
        (At.TRAINED, On.SUPERSEDED): At.OVER,
        (At.TRAINED, On.CROWDED_OUT): At.OVER,
        (At.TRAINED, On.UNANSWERED): At.OVER,
        (At.DECLINED, On.ASKED_AGAIN): At.DECLINED,
        (At.DECLINED, On.ACCEPTED): At.DECLINED,
        (At.DECLINED, On.DISCARDED): At.DECLINED,
        (At.DECLINED, On.CROWDED_OUT): At.OVER,
        (At.OVER, On.ASKED_AGAIN): At.OVER,
        (At.OVER, On.ACCEPTED): At.OVER,
        (At.OVER, On.DISCARDED): At.OVER,
    },
    start=At.NEW,
    ends=frozenset({At.OVER}),
)
