"""The progress of one rollout: its states, pending devices, the sites that reach them, and the view for operators."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum

from coordinator.machine.answers import MAX_SINGLE_LIST_SIZE, first_page
from coordinator.rollout_records import AHEAD, LineState
from sojourn.node.machine import Effect, Send
from sojourn.node.table import Table
from sojourn.protocol.limits import TEXT
from sojourn.protocol.release import BAD, ENDS, DeviceView, LineView, RolloutPlan, RolloutStatus, complaint
from sojourn.protocol.release_messages import ReleaseReport, Ship
from sojourn.protocol.topics import Address


class RolloutStep(StrEnum):
    """The steps of a rollout. A line's next rollout starts from the beginning; one rolled back stays rolled back."""

    STAGING = "staging"
    """The devices of a stage get the order and install the release. If one device complains alone, or all are silent,
    other devices are asked too."""
    SOAKING = "soaking"
    """All devices that answered serve the release, or too few complain. It must stay healthy for as long as the rules
    require; then a device that still complains is set aside."""
    PAUSED = "paused"
    HALTED = "halted"
    DONE = "done"
    ROLLING_BACK = "rolling-back"
    ROLLED_BACK = "rolled-back"


class RolloutEvent(StrEnum):
    """The events of a rollout."""

    NEXT_STAGE = "next stage"
    STAGE_ANSWERED = "stage answered"
    ANSWERS_MISSING = "answers missing"
    OTHERS_ASKED = "others asked"
    NO_ANSWER = "no answer"
    SET_ASIDE = "set aside"
    UNHEALTHY_UNDO = "unhealthy, undo"
    UNHEALTHY_HALT = "unhealthy, halt"
    ALL_SERVED = "all served"
    ALL_BACK = "all back"
    PAUSE = "pause"
    RESUME = "resume"
    ROLLBACK = "rollback"


At, On = RolloutStep, RolloutEvent
ROLLOUT = Table(
    "rollout",
    {
        (At.STAGING, On.NEXT_STAGE): At.STAGING,
        (At.STAGING, On.STAGE_ANSWERED): At.SOAKING,
        (At.STAGING, On.OTHERS_ASKED): At.STAGING,
        (At.STAGING, On.NO_ANSWER): At.PAUSED,
        (At.STAGING, On.UNHEALTHY_UNDO): At.ROLLING_BACK,
        (At.STAGING, On.UNHEALTHY_HALT): At.HALTED,
        (At.STAGING, On.PAUSE): At.PAUSED,
        (At.STAGING, On.RESUME): At.STAGING,
        (At.STAGING, On.ROLLBACK): At.ROLLING_BACK,
        (At.SOAKING, On.NEXT_STAGE): At.STAGING,
        (At.SOAKING, On.ANSWERS_MISSING): At.STAGING,
        (At.SOAKING, On.OTHERS_ASKED): At.STAGING,
        (At.SOAKING, On.SET_ASIDE): At.SOAKING,
        (At.SOAKING, On.NO_ANSWER): At.PAUSED,
        (At.SOAKING, On.UNHEALTHY_UNDO): At.ROLLING_BACK,
        (At.SOAKING, On.UNHEALTHY_HALT): At.HALTED,
        (At.SOAKING, On.ALL_SERVED): At.DONE,
        (At.SOAKING, On.PAUSE): At.PAUSED,
        (At.SOAKING, On.RESUME): At.SOAKING,
        (At.SOAKING, On.ROLLBACK): At.ROLLING_BACK,
        (At.PAUSED, On.PAUSE): At.PAUSED,
        (At.PAUSED, On.RESUME): At.STAGING,
        (At.PAUSED, On.ROLLBACK): At.ROLLING_BACK,
        (At.HALTED, On.ROLLBACK): At.ROLLING_BACK,
        (At.DONE, On.ROLLBACK): At.ROLLING_BACK,
        (At.ROLLING_BACK, On.ALL_BACK): At.ROLLED_BACK,
        (At.ROLLING_BACK, On.ROLLBACK): At.ROLLING_BACK,
        (At.ROLLED_BACK, On.ROLLBACK): At.ROLLED_BACK,
    },
    start=At.STAGING,
    ends=frozenset({At.ROLLED_BACK}),
)

STATUS: dict[RolloutStep, RolloutStatus] = {
    At.STAGING: "running",
    At.SOAKING: "running",
    At.PAUSED: "paused",
    At.HALTED: "halted",
    At.DONE: "done",
    At.ROLLING_BACK: "rolling-back",
    At.ROLLED_BACK: "rolled-back",
}
"""The status of each step, as recorded and shown to operators."""


FIRST_RETRY = 1.0
MAX_RETRY = 15.0
"""Seconds until devices that did not answer get the order again; the interval grows up to the maximum."""
MIN_TIMEOUT = 1.0
"""Minimum seconds that additionally asked devices get to answer, however short the timeout is."""
MAX_CHANGES = 16
"""Maximum reports of one device recorded in a stage, so that a device that keeps changing its report cannot fill the
disk."""


class RolloutProgress:
    """A rollout's volatile progress since its last change of direction; after a restart, a stage soaks again."""

    def __init__(self, now: float) -> None:
        self.begun = now
        self.healthy_since: float | None = None
        """When the stage began to soak; None while answers are missing."""
        self.ship_at: float | None = now
        self.pause = FIRST_RETRY
        self.owing: set[str] = set()
        """Members that have not completed their current order."""
        self.returning: set[str] = set()
        """Members that were set aside and have not completed the order back; the rollout does not wait for them."""
        self.unhealthy_devices: dict[str, str] = {}
        """Unhealthy members, and why."""
        self.changed = True
        """Whether there may be devices that no stage has reached."""
        self.alone = False
        """Whether the next stage waits for any device to connect; no timer is set for it."""
        self.substituted = False
        """Whether other devices were asked because none answered."""
        self.min_timeout = 0.0
        """Minimum seconds that devices get to answer."""
        self.via: dict[str, str] = {}
        """The site through which each device last got the order."""
        self.repeats: Counter[str] = Counter()
        """How often each device got the order without an answer."""
        self.written: Counter[str] = Counter()
        """How many reports of each device were recorded."""
        self.needs_others = False
        """Whether the stage has soaked, but the devices that could outvote a complaint are offline."""

    def step(self, line: LineState) -> RolloutStep:
        """Return the step in the table, from the durable status and, during a stage, whether it soaks."""
        if line.status != "running":
            return RolloutStep(line.status)
        return RolloutStep.STAGING if self.healthy_since is None else RolloutStep.SOAKING

    def take(self, event: RolloutEvent, line: LineState, now: float) -> None:
        """Take a step that changes nothing durable: a stage begins, soaks, or lacks answers again."""
        before, after = self.step(line), ROLLOUT.step(self.step(line), event)
        if after != before:
            self.healthy_since = now if after is RolloutStep.SOAKING else None

    def fleet_changed(self, now: float) -> None:
        """Send the order at once to devices that owe an answer, and look for new ones: the fleet has changed."""
        self.changed, self.alone = True, False
        self.ship_now(now)

    def ship_now(self, now: float) -> None:
        """Send the order at once to devices that owe an answer."""
        self.ship_at, self.pause = now, FIRST_RETRY

    def shipped(self, now: float) -> None:
        """An order was sent just now; devices that do not answer get it again, after longer and longer intervals."""
        self.ship_at, self.pause = now + self.pause, min(2 * self.pause, MAX_RETRY)

    def note_answer(self, device: str, *, ended: bool, aside: bool = False) -> None:
        """Record whether a member has completed its current order."""
        self.owing.discard(device)
        self.returning.discard(device)
        if not ended:
            (self.returning if aside else self.owing).add(device)

    def others_asked(self, now: float) -> None:
        """More devices got the order: they have as much time as the first ones."""
        self.begun, self.needs_others, self.min_timeout = now, False, MIN_TIMEOUT
        self.ship_now(now)

    def note_health_issue(self, device: str, why: str | None) -> None:
        """Record why a member is unhealthy; None if it is healthy."""
        if why:
            self.unhealthy_devices[device] = why
        else:
            self.unhealthy_devices.pop(device, None)

    def answered(self, line: LineState, now: float) -> bool:
        """Return whether every member has completed its order, or had enough time for it."""
        return not self.owing or now >= self.timeout_at(line)

    def timeout_at(self, line: LineState) -> float:
        """Return when the time of devices that have not answered ends."""
        return self.begun + max(line.rules.timeout, self.min_timeout)

    def unhealthy(self, line: LineState) -> bool:
        """Return whether a device is unhealthy and, with those set aside, there are more than the rules permit."""
        count = len(self.unhealthy_devices) + len(line.set_aside)
        return bool(self.unhealthy_devices) and count > line.rules.failures * len(line.members) + 1e-9

    def wake_at(self, line: LineState) -> float | None:
        """When a soak or timeout ends; None while only a device can change anything."""
        if line.status == "running" and line.stage and not self.alone:
            if self.healthy_since is not None and not self.needs_others:
                return self.healthy_since + line.rules.soak
            return self.timeout_at(line)
        return self.timeout_at(line) if line.status == "rolling-back" else None


def health_issue(line: LineState, device: str, report: ReleaseReport | None) -> str | None:
    """Return why a device with this report is unhealthy with the line's release, or None."""
    serial = line.forward.read.serial
    if report is None or report.serial < serial or device in line.set_aside:
        return None
    if report.serial > serial:
        return f"it already follows order {report.serial}, which is newer than {serial}"
    if report.state in BAD:
        return f"{report.state}: {report.detail}"
    return complaint(report.health, line.rules) if report.health and report.state == "serving" else None


def is_plausible(line: LineState, report: ReleaseReport) -> bool:
    """Return whether a report can be true: a device serves what its order names, and its order is not far ahead."""
    orders = {payload.read.serial: payload.read for payload in (line.forward, line.back)}
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
    """Return whether a report is older than the last one received.

    A report of an order that this coordinator does not know makes no later report outdated, since it may be forged.
    """
    if known is None or known.serial > line.back.read.serial:
        return False
    return _reached(report) < _reached(known)


def _reached(report: ReleaseReport) -> tuple[int, int]:
    """Return a device's progress, by its newest order and its state under it; progress never decreases."""
    return report.serial, 2 if report.state == "fell-back" else int(report.state in ENDS)


def equal_when_recorded(one: ReleaseReport, other: ReleaseReport, line: LineState) -> bool:
    """Return whether two reports differ only in metrics that are not recorded."""
    return _recorded(one, line) == _recorded(other, line)


def _recorded(report: ReleaseReport, line: LineState) -> tuple[object, ...]:
    well = report.health is None or complaint(report.health, line.rules) is None
    return report.serial, report.version, report.state, report.detail, well


# Which sites send orders to devices.
#
# A site writes its own roster, and several may name a device: on a shared broker all do, and a dishonest one may. So
# the order for a silent device is next sent through another of them.

Reach = dict[str, tuple[str, ...]]
"""The devices that each connected site names."""
TRIES_PER_SITE = 4
"""How often an order is sent through one site before another is tried: 15 seconds."""
MAX_DEVICES_PER_MESSAGE = 400
"""Maximum devices in one message: with the longest names and a small inline release, it fits in any broker's packet."""


def sites_of(devices: Iterable[str], reach: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Return the sites that name each device, in an order that depends on the device so that they share the work."""
    wanted = set(devices)
    found: dict[str, list[str]] = {}
    for site, there in reach.items():
        for device in there:
            if device in wanted:
                found.setdefault(device, []).append(site)
    return {device: sorted(sites, key=lambda site: _rank(device, site)) for device, sites in found.items()}


def shipments(line: LineState, devices: Iterable[str], reach: Reach, progress: RolloutProgress) -> list[Effect]:
    """Send each of these devices that is connected its current order."""
    loads: dict[tuple[str, bool], list[str]] = {}
    for device, sites in sorted(sites_of(devices, reach).items()):
        site = sites[progress.repeats[device] // TRIES_PER_SITE % len(sites)]
        progress.via[device] = site
        progress.repeats[device] += _is_unanswered(line, device)
        loads.setdefault((site, device in line.set_aside), []).append(device)
    effects: list[Effect] = []
    for (site, _), together in sorted(loads.items()):
        payload = line.payload_for(together[0])
        for at in range(0, len(together), MAX_DEVICES_PER_MESSAGE):
            some = tuple(together[at : at + MAX_DEVICES_PER_MESSAGE])
            effects.append(Send(Address("edge", site), Ship(payload.order, payload.graph, payload.card, some)))
    return effects


def _is_unanswered(line: LineState, device: str) -> bool:
    """Return whether the device has not reported on its current order."""
    report = line.reports.get(device)
    return report is None or report.serial < line.payload_for(device).read.serial


def _rank(device: str, site: str) -> bytes:
    return hashlib.sha256(f"{device}/{site}".encode()).digest()


MAX_TURNS = 2
"""Number of status changes of each line shown in a list of lines."""
MAX_NAMED = 3
"""Maximum unhealthy devices listed by name; the others are counted."""


def view_of(
    line: LineState,
    newest: Mapping[str, ReleaseReport],
    present: AbstractSet[str],
    progress: RolloutProgress,
    since: int | None = None,
) -> LineView:
    """Return the rollout and, if requested, its devices from one on: unhealthy ones first, as many as fit."""
    each = [_device(line, device, newest.get(device), device in present) for device in sorted(line.members)]
    forward, back, serves = line.forward.read, line.back.read, line.serves.read
    each.sort(key=lambda view: (not (_is_unhealthy(view, line) or view.device in line.set_aside), view.stage))
    alone = since is not None
    detail = _detail(line, progress)[: 2000 if alone else 200]
    return LineView(
        line=line.line, status=line.status, detail=detail, serial=back.serial, version=forward.version,
        before=back.version, serves=serves.version, goods=serves.goods, stages=line.stages, stage=line.stage,
        counts=dict(Counter(view.state for view in each)),
        devices=first_page(each[since:], MAX_SINGLE_LIST_SIZE) if alone else (),
        plan=RolloutPlan(line.rules, line.undo, tuple(line.turned[0 if alone else -MAX_TURNS :])),
    )  # fmt: skip


def complaints(unhealthy_devices: Mapping[str, str]) -> str:
    """List unhealthy devices and why: a few by name, the others counted."""
    named = sorted(unhealthy_devices.items())[:MAX_NAMED]
    text = "; ".join(f"{device}: {why[:500]}" for device, why in named)
    return f"{text} and {len(unhealthy_devices) - MAX_NAMED} more" if len(unhealthy_devices) > MAX_NAMED else text


def _detail(line: LineState, progress: RolloutProgress) -> str:
    """Describe pending complaints and the devices that were set aside."""
    waits = (
        f"{complaints(progress.unhealthy_devices)} (waiting for other devices)"
        if line.status == "running" and progress.unhealthy_devices
        else ""
    )
    # The reason of a rollback names the devices already.
    aside = f"set aside: {complaints(line.set_aside)}" if line.set_aside and line.payload is line.forward else ""
    return "; ".join(text for text in (line.detail, waits, aside) if text)


def _device(line: LineState, device: str, report: ReleaseReport | None, present: bool) -> DeviceView:
    stage = line.members[device]
    if report is None or report.serial < line.payload_for(device).read.serial:
        state = "sent" if present else "away"
        return DeviceView(device, stage, report.serial if report else 0, report.version if report else 0, state)
    detail = report.detail or (report.health and complaint(report.health, line.rules)) or ""
    if device in line.set_aside and line.payload is line.forward:
        detail = f"set aside: {line.set_aside[device]}"
    return DeviceView(device, stage, report.serial, report.version, report.state, detail[:TEXT], report.health)


def _is_unhealthy(view: DeviceView, line: LineState) -> bool:
    return view.state in BAD or bool(view.health and complaint(view.health, line.rules))
