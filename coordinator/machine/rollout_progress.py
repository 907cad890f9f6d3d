"""How far a rollout has come: its times, which devices still owe an answer, and which are not well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.machine.rollout_table import step_of
from sojourn.protocol.release import BAD, ENDS, complaint

if TYPE_CHECKING:
    from coordinator.rollout_records import LineState
    from sojourn.protocol.release_messages import ReleaseReport

FIRST = 1.0
LONGEST = 15.0
"""Seconds until devices that did not answer get the order again: more each time, up to this."""


class RolloutProgress:
    """One rollout since it last went another way. Volatile: after a restart a stage soaks anew."""

    def __init__(self, line: LineState, now: float) -> None:
        self.step = step_of(line.status)
        """The state of `rollout_table` that it is in."""
        self.begun = now
        self.well_since: float | None = None
        self.ship_at: float | None = now
        self.pause = FIRST
        self.owing: set[str] = set()
        """The members that have not ended with the order that they should be under."""
        self.ill: dict[str, str] = {}
        """The members that are not well with the release, and why."""
        self.changed = True
        """Whether there may be devices that no stage has reached."""
        self.alone = False
        """Whether the next stage waits for any device to be there: the fleet changes then, no time is set for it."""

    def fleet_changed(self, now: float) -> None:
        """Devices came or went: those that owe an answer get the order at once, and there may be newcomers."""
        self.pause, self.ship_at, self.changed, self.alone = FIRST, now, True, False

    def shipped(self, now: float) -> None:
        """An order was sent just now: whoever does not answer gets it again, later each time."""
        self.ship_at, self.pause = now + self.pause, min(2 * self.pause, LONGEST)

    def note_answer(self, device: str, *, ended: bool) -> None:
        """Whether a member has ended with the order that it should be under."""
        if ended:
            self.owing.discard(device)
        else:
            self.owing.add(device)

    def note_illness(self, device: str, why: str | None) -> None:
        """Why a member is not well; None if it is."""
        if why:
            self.ill[device] = why
        else:
            self.ill.pop(device, None)

    def answered(self, line: LineState, now: float) -> bool:
        """Whether every member has ended with its order, or was waited for long enough."""
        return not self.owing or now >= self.begun + line.rules.patience

    def too_ill(self, line: LineState) -> bool:
        """Whether more devices are ill than the rules bear."""
        return len(self.ill) > line.rules.failures * len(line.members) + 1e-9

    def wake_at(self, line: LineState) -> float | None:
        """When a soak or patience ends; None while only a device can change anything."""
        if line.status == "running" and line.stage and not self.alone:
            if self.well_since is not None:
                return self.well_since + line.rules.soak
            return self.begun + line.rules.patience
        return self.begun + line.rules.patience if line.status == "rolling-back" else None


def illness(line: LineState, report: ReleaseReport | None) -> str | None:
    """Why a device that reports this is not well with the line's release; None if nothing speaks against it."""
    serial = line.forward.read.serial
    if report is None or report.serial < serial:
        return None
    if report.serial > serial:
        return f"it obeys order {report.serial} already, which is newer than {serial}"
    if report.state in BAD:
        return f"{report.state}: {report.detail}"
    return complaint(report.health, line.rules) if report.health and report.state == "serving" else None


def progress_of(report: ReleaseReport) -> tuple[int, int]:
    """How far a device is, by the newest order and where it got with it: it never goes back."""
    return report.serial, 2 if report.state == "fell-back" else int(report.state in ENDS)


def same_for_the_record(one: ReleaseReport, other: ReleaseReport, line: LineState) -> bool:
    """Whether two reports differ only in figures that are not worth a record."""
    return _recorded(one, line) == _recorded(other, line)


def _recorded(report: ReleaseReport, line: LineState) -> tuple[object, ...]:
    well = report.health is None or complaint(report.health, line.rules) is None
    return report.serial, report.version, report.state, report.detail, well
