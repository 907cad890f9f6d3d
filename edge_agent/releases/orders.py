"""The newest order of a model line on a device: its states, and its work for the installer."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from edge_agent.records import ServedRelease
from sojourn.node.table import Table
from sojourn.protocol.limits import Name
from sojourn.protocol.release import Goods, Health, ReleaseState

# The states of the newest order of a model line on a device, and the transitions between them.
#
# A newer order may arrive at any time and replaces the one before it; edge servers repeat an order until the device
# reports its outcome. After a restart, an order without an outcome returns to `ordered`.


class DeviceReleaseState(StrEnum):
    """The state of the newest order of a line."""

    NONE = "none"
    """The device has no order for this line."""
    ORDERED = "ordered"
    """The order is taken, and no work on it is active: it is new, or its blobs could not be fetched."""
    FETCHING = "fetching"
    """Its graph and card are being fetched."""
    WAITING = "waiting"
    """All blobs are available; a visit, or the trial of another release, uses the processor."""
    WORKING = "working"
    """The release is being tried and installed, or withdrawn."""
    SERVING = "serving"
    WITHDRAWN = "withdrawn"
    REFUSED = "refused"
    FAILED = "failed"
    FELL_BACK = "fell-back"
    """A program could not load the served release, so the previous one is served again."""


class DeviceReleaseEvent(StrEnum):
    """An event of the newest order of a line."""

    ORDERED = "ordered"
    """A newer order arrived, trusted and for this fleet."""
    REPEATED = "repeated"
    """The same order arrived again."""
    OLDER = "older version"
    """It orders an older version than the served one, and is not a rollback."""
    SERVED_ALREADY = "served already"
    NOT_HERE = "not here"
    """Its blobs must be fetched."""
    HERE = "here"
    """Its blobs are on the device from an earlier order, or it is a withdrawal."""
    ALL_FETCHED = "all fetched"
    GONE = "gone"
    """The edge server no longer has a blob."""
    DISK_FULL = "disk full"
    BEGUN = "begun"
    INSTALLED = "installed"
    TAKEN_DOWN = "taken down"
    DAMAGED = "damaged"
    """The files of the earlier release are missing or damaged."""
    NOT_DONE = "not done"
    """The trial failed, or could not be started."""
    NOT_LOADED = "not loaded"
    """A program could not load the served release."""


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
"""The state that is reported to the coordinator, for each state on the device."""


class Install(msgspec.Struct, frozen=True, tag="install"):
    """Serve this version of a line: its graph and card are in the blob folder, or in the line's folder.

    known: the version was served before; it is not tried again, so that a rollback is fast.
    """

    line: Name
    version: int
    goods: Goods
    known: bool = False


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw"):
    """Stop serving a line."""

    line: Name


class Installed(msgspec.Struct, frozen=True, tag="installed"):
    """The version is installed as the current one; `health` is the result of its trial."""

    health: Health


class Withdrawn(msgspec.Struct, frozen=True, tag="withdrawn"):
    """The line has no current version."""


class Usage(msgspec.Struct, frozen=True):
    """How programs on this machine used a release since it was installed."""

    line: str
    version: int
    health: Health
    failure: str = ""
    """Why a program could not load it and kept using the previous one."""


class ReleaseTask(msgspec.Struct, frozen=True):
    """Work for the installer, and the order that it is for."""

    work: Install | Withdraw
    serial: int
    restores: bool = False
    """Whether it only restores the served release, so that no outcome is reported."""

    @property
    def key(self) -> str:
        """The unique name of the work, which distinguishes it from late reports of older work."""
        version = self.work.version if isinstance(self.work, Install) else 0
        return f"release {self.work.line} {self.serial}.{version}"

    @property
    def tries(self) -> bool:
        """Whether it includes a trial, which never runs at the same time as training."""
        return isinstance(self.work, Install) and not self.work.known


def work_for(line: str, wanted: ServedRelease | None) -> Install | Withdraw:
    """Return the work that serves an earlier release again, or withdraws the line if `wanted` is None."""
    return Install(line, wanted.version, wanted.goods, known=True) if wanted else Withdraw(line)
