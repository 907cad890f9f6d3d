"""How far a rollout has come: its times, which devices still owe an answer, and which are not well."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from coordinator.machine.rollout_table import step_of
from coordinator.rollout_records import AHEAD
from sojourn.protocol.release import BAD, ENDS, complaint

if TYPE_CHECKING:
    from coordinator.rollout_records import LineState
    from sojourn.protocol.release_messages import ReleaseReport

FIRST = 1.0
LONGEST = 15.0
"""Seconds until devices that did not answer get the order again: more each time, up to this."""
LEAST = 1.0
"""Seconds that others who are asked besides are given at least, however little patience there is."""
CHANGES = 16
"""At most this many reports of one device are written down in a stage: one that changes its mind for ever fills no
disk."""


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
        self.returning: set[str] = set()
        """The members that were set aside and have not ended with the order back: nobody waits for them."""
        self.ill: dict[str, str] = {}
        """The members that are not well with the release, and why."""
        self.changed = True
        """Whether there may be devices that no stage has reached."""
        self.alone = False
        """Whether the next stage waits for any device to be there: the fleet changes then, no time is set for it."""
        self.substituted = False
        """Whether others were asked because nobody answered."""
        self.least = 0.0
        """Seconds that devices are given at least."""
        self.via: dict[str, str] = {}
        """Through which site each device was told last."""
        self.repeats: Counter[str] = Counter()
        """How often each device was told without a word from it."""
        self.written: Counter[str] = Counter()
        """How many reports of each device were written down."""
        self.wanting = False
        """Whether the stage has soaked, and those who could speak against a complaint are not here."""

    def fleet_changed(self, now: float) -> None:
        """Devices came or went: those that owe an answer get the order at once, and there may be newcomers."""
        self.pause, self.ship_at, self.changed, self.alone = FIRST, now, True, False

    def shipped(self, now: float) -> None:
        """An order was sent just now: whoever does not answer gets it again, later each time."""
        self.ship_at, self.pause = now + self.pause, min(2 * self.pause, LONGEST)

    def note_answer(self, device: str, *, ended: bool, aside: bool = False) -> None:
        """Whether a member has ended with the order that it should be under."""
        self.owing.discard(device)
        self.returning.discard(device)
        if not ended:
            (self.returning if aside else self.owing).add(device)

    def others_asked(self, now: float) -> None:
        """More devices were told: they are given as much time as the first."""
        self.begun, self.well_since, self.wanting, self.least = now, None, False, LEAST
        self.ship_at, self.pause = now, FIRST

    def note_illness(self, device: str, why: str | None) -> None:
        """Why a member is not well; None if it is."""
        if why:
            self.ill[device] = why
        else:
            self.ill.pop(device, None)

    def answered(self, line: LineState, now: float) -> bool:
        """Whether every member has ended with its order, or was waited for long enough."""
        return not self.owing or now >= self.patient_until(line)

    def patient_until(self, line: LineState) -> float:
        """When devices that have not answered by then have been waited for long enough."""
        return self.begun + max(line.rules.patience, self.least)

    def too_ill(self, line: LineState) -> bool:
        """Whether a device is ill, and with those set aside there are more than the rules bear."""
        ill = len(self.ill) + len(line.aside)
        return bool(self.ill) and ill > line.rules.failures * len(line.members) + 1e-9

    def wake_at(self, line: LineState) -> float | None:
        """When a soak or patience ends; None while only a device can change anything."""
        if line.status == "running" and line.stage and not self.alone:
            if self.well_since is not None and not self.wanting:
                return self.well_since + line.rules.soak
            return self.patient_until(line)
        return self.patient_until(line) if line.status == "rolling-back" else None


def illness(line: LineState, device: str, report: ReleaseReport | None) -> str | None:
    """Why a device that reports this is not well with the line's release; None if nothing speaks against it."""
    serial = line.forward.read.serial
    if report is None or report.serial < serial or device in line.aside:
        return None
    if report.serial > serial:
        return f"it obeys order {report.serial} already, which is newer than {serial}"
    if report.state in BAD:
        return f"{report.state}: {report.detail}"
    return complaint(report.health, line.rules) if report.health and report.state == "serving" else None


def believable(line: LineState, report: ReleaseReport) -> bool:
    """Whether a report may be true: a device serves what its order names, and knows no order from far ahead."""
    orders = {cargo.read.serial: cargo.read for cargo in (line.forward, line.back)}
    order = orders.get(report.serial)
    if order is None:
        return report.serial <= line.back.read.serial + AHEAD
    match report.state:
        case "serving":
            return order.goods is not None and report.version == order.version
        case "withdrawn":
            return order.goods is None and report.version == 0
        case _:
            return True


def outdated(line: LineState, report: ReleaseReport, known: ReleaseReport | None) -> bool:
    """Whether a report was on its way longer than what came before it.

    One of an order that this coordinator does not know makes no later report outdated: it may be a lie.
    """
    if known is None or known.serial > line.back.read.serial:
        return False
    return _reached(report) < _reached(known)


def _reached(report: ReleaseReport) -> tuple[int, int]:
    """How far a device is, by the newest order and where it got with it: it never goes back."""
    return report.serial, 2 if report.state == "fell-back" else int(report.state in ENDS)


def same_for_the_record(one: ReleaseReport, other: ReleaseReport, line: LineState) -> bool:
    """Whether two reports differ only in figures that are not worth a record."""
    return _recorded(one, line) == _recorded(other, line)


def _recorded(report: ReleaseReport, line: LineState) -> tuple[object, ...]:
    well = report.health is None or complaint(report.health, line.rules) is None
    return report.serial, report.version, report.state, report.detail, well
