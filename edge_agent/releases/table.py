"""The newest order of a model line on a device: its states, what may happen, and what follows.

A newer order may come at any time and takes the place of the one before it; the same one is repeated until the device
says how it ended. After a restart an order that did not end is where it was when it was taken.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from sojourn.node.table import Table

if TYPE_CHECKING:
    from sojourn.protocol.release import ReleaseState


class DeviceReleaseState(StrEnum):
    """Where a device is with the newest order of a line."""

    NONE = "none"
    """No order of this line ever came."""
    ORDERED = "ordered"
    """The order is taken, and nothing is under way for it: it has just come, or its blobs could not be had."""
    FETCHING = "fetching"
    """Its graph and card are on their way."""
    WAITING = "waiting"
    """All is here; a visit, or the trial of another release, has the processor."""
    WORKING = "working"
    """It is tried and swapped in, or withdrawn."""
    SERVING = "serving"
    WITHDRAWN = "withdrawn"
    REFUSED = "refused"
    FAILED = "failed"
    FELL_BACK = "fell-back"
    """A program could not load what was served, so the release before it is served again."""


class DeviceReleaseEvent(StrEnum):
    """What may happen to the newest order of a line."""

    ORDERED = "ordered"
    """A newer order came, trusted and for this fleet."""
    REPEATED = "repeated"
    """The same order came again."""
    OLDER = "older version"
    """It asks for less than what is served, and is no rollback."""
    SERVED_ALREADY = "served already"
    NOT_HERE = "not here"
    """Its blobs must be fetched."""
    HERE = "here"
    """Nothing has to be fetched: it was served before, or nothing is to be served."""
    ALL_FETCHED = "all fetched"
    GONE = "gone"
    """The edge server does not have a blob any more."""
    DISK_FULL = "disk full"
    BEGUN = "begun"
    INSTALLED = "installed"
    TAKEN_DOWN = "taken down"
    DAMAGED = "damaged"
    """What was served before is not here any more, or not whole."""
    NOT_DONE = "not done"
    """The trial went badly, or could not be made."""
    NOT_LOADED = "not loaded"
    """A program could not load what is served."""


At, On = DeviceReleaseState, DeviceReleaseEvent
DEVICE_RELEASE = Table(
    "release on a device",
    {
        (At.NONE, On.ORDERED): At.ORDERED,
        (At.ORDERED, On.NOT_HERE): At.FETCHING,
        (At.ORDERED, On.HERE): At.WAITING,
        (At.ORDERED, On.OLDER): At.REFUSED,
        (At.ORDERED, On.SERVED_ALREADY): At.SERVING,
        (At.ORDERED, On.REPEATED): At.ORDERED,
        (At.ORDERED, On.ORDERED): At.ORDERED,
        (At.FETCHING, On.ALL_FETCHED): At.WAITING,
        (At.FETCHING, On.GONE): At.ORDERED,
        (At.FETCHING, On.DISK_FULL): At.FAILED,
        (At.FETCHING, On.REPEATED): At.FETCHING,
        (At.FETCHING, On.ORDERED): At.ORDERED,
        (At.WAITING, On.BEGUN): At.WORKING,
        (At.WAITING, On.REPEATED): At.WAITING,
        (At.WAITING, On.ORDERED): At.ORDERED,
        (At.WORKING, On.INSTALLED): At.SERVING,
        (At.WORKING, On.TAKEN_DOWN): At.WITHDRAWN,
        (At.WORKING, On.DAMAGED): At.FETCHING,
        (At.WORKING, On.NOT_DONE): At.FAILED,
        (At.WORKING, On.REPEATED): At.WORKING,
        (At.WORKING, On.ORDERED): At.ORDERED,
        (At.SERVING, On.NOT_LOADED): At.FELL_BACK,
        (At.SERVING, On.REPEATED): At.SERVING,
        (At.SERVING, On.ORDERED): At.ORDERED,
        (At.REFUSED, On.NOT_LOADED): At.FELL_BACK,
        (At.REFUSED, On.REPEATED): At.REFUSED,
        (At.REFUSED, On.ORDERED): At.ORDERED,
        (At.FAILED, On.NOT_LOADED): At.FELL_BACK,
        (At.FAILED, On.REPEATED): At.FAILED,
        (At.FAILED, On.ORDERED): At.ORDERED,
        (At.FELL_BACK, On.REPEATED): At.FELL_BACK,
        (At.FELL_BACK, On.ORDERED): At.ORDERED,
        (At.WITHDRAWN, On.REPEATED): At.WITHDRAWN,
        (At.WITHDRAWN, On.ORDERED): At.ORDERED,
    },
    start=At.NONE,
)
REPORTED: dict[DeviceReleaseState, ReleaseState] = {
    At.ORDERED: "fetching",
    At.FETCHING: "fetching",
    At.WAITING: "checking",
    At.WORKING: "checking",
    At.SERVING: "serving",
    At.WITHDRAWN: "withdrawn",
    At.REFUSED: "refused",
    At.FAILED: "failed",
    At.FELL_BACK: "fell-back",
}
"""The word for each state that a coordinator is told."""
