"""Rollouts: a release reaches the fleet stage by stage, and comes back by itself when it turns out worse.

A part of the coordinator's machine, without I/O. The coordinator holds no private key: when a rollout begins the
operator signs both the order that brings the release and the one that undoes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.machine.rollout_view import view_of
from coordinator.rollout_records import DevicesJoined, DeviceTold, RolloutTurned
from sojourn.node.machine import Append, Say, Send, soonest
from sojourn.protocol.release import BAD, ENDS, complaint
from sojourn.protocol.release_messages import Ship
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.machine.sites import Sites
    from coordinator.records import CoordinatorState
    from coordinator.rollout_records import LineState, RolloutRecord
    from sojourn.node.machine import Effect
    from sojourn.protocol.release import LineView, RolloutStatus
    from sojourn.protocol.release_messages import DeviceReport, ReleaseReport

FIRST = 1.0
LONGEST = 15.0
"""Seconds until devices that did not answer are told again: more each time, up to this."""
TOGETHER = 400
"""Devices in one message: with the longest names, and a small release riding along, it fits in any broker's packet."""
NAMED = 3


class _Clock:
    """The times of one rollout, and who has yet to answer or is ill. Volatile: after a restart a stage soaks anew."""

    def __init__(self, now: float) -> None:
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


class Rollouts:
    """Leads every line's rollout."""

    def __init__(self, sites: Sites, state: CoordinatorState) -> None:
        self._sites = sites
        self.state = state
        self._clocks: dict[str, _Clock] = {}
        self._heard: dict[tuple[str, str], ReleaseReport] = {}
        """The newest word of each device, with figures that are not worth a record."""
        self._there: set[str] = set()
        """The devices that were there when the fleet last changed."""
        self._asked: dict[str, set[str]] = {}
        """By line, the devices that came (back) since they last spoke: a card may have been replaced, a word lost."""

    def start(self, now: float) -> None:
        """Take up the rollouts that were under way."""
        for line in self.state.lines.values():
            self._set_clock(line, now)

    def begun(self, line: LineState, now: float) -> list[Effect]:
        """A rollout was written down: its first stage."""
        self._heard = {key: report for key, report in self._heard.items() if key[0] != line.line}
        self._asked.pop(line.line, None)
        self._set_clock(line, now)
        return self.consider(line, now)

    def wake_at(self) -> float | None:
        """The next message, end of a soak or end of patience."""
        times: list[float | None] = []
        for name, line in self.state.lines.items():
            clock = self._clocks[name]
            times.append(clock.ship_at)
            if line.status == "running" and line.stage and not clock.alone:
                soaked = None if clock.well_since is None else clock.well_since + line.rules.soak
                times.append(soaked if soaked is not None else clock.begun + line.rules.patience)
            elif line.status == "rolling-back":
                times.append(clock.begun + line.rules.patience)
        return soonest(*times)

    def woke(self, now: float) -> list[Effect]:
        """Time has passed."""
        return [effect for line in self.state.lines.values() for effect in self.consider(line, now)]

    def fleet_changed(self, now: float) -> list[Effect]:
        """Devices came or went, and those that owe an answer may be among them."""
        there = self._reach()
        came = there - self._there
        for name, clock in self._clocks.items():
            self._asked.setdefault(name, set()).update(came)
            clock.pause, clock.ship_at, clock.changed, clock.alone = FIRST, now, True, False
        self._there = there
        return self.woke(now)

    def reported(self, message: DeviceReport, now: float) -> list[Effect]:
        """A device says where it is."""
        report = message.report
        line = self.state.lines.get(report.line)
        if line is None:
            return []
        known = self._newest(line, message.device)
        if report.state in ENDS:
            self._asked.get(report.line, set()).discard(message.device)
        if known and _progress(report) < _progress(known):  # it was on its way for longer than what came before it
            return []
        self._heard[report.line, message.device] = report
        kept = line.reports.get(message.device)
        effects: list[Effect] = []
        if kept is None or _gist(kept, line) != _gist(report, line):
            effects = self._write(DeviceTold(report.line, message.device, report))
            if report.state in BAD:
                told = f"release {report.line}: {message.device} {report.state}: {report.detail}"
                effects.append(Say(told, "warning"))
        self._look_at(line, message.device)
        return [*effects, *self.consider(line, now)]

    def turn(self, line: LineState, status: RolloutStatus, detail: str, now: float) -> list[Effect]:
        """Pause, resume, undo: the rollout goes another way."""
        effects = self._write(RolloutTurned(line.line, status, detail), sync=True)
        self._set_clock(line, now)
        told = f"release {line.line} {line.forward.read.version}: {status}{': ' if detail else ''}{detail}"
        bad = status in ("halted", "rolling-back")
        return [*effects, Say(told, "warning" if bad else "info"), *self.consider(line, now)]

    def view(self, line: LineState, *, devices: bool) -> LineView:
        """The line as a person sees it."""
        newest = {device: self._newest(line, device) for device in {*line.members, *line.reports}}
        return view_of(line, {k: v for k, v in newest.items() if v}, self._reach(), devices=devices)

    def consider(self, line: LineState, now: float) -> list[Effect]:
        """What follows from all that is known of a rollout now."""
        clock, effects = self._clocks[line.line], []
        match line.status:
            case "running":
                effects = self._running(line, clock, now)
            case "rolling-back" if self._settled(line, clock, now):
                effects = self.turn(line, "rolled-back", line.detail, now)
            case "done" | "rolled-back" if clock.changed:
                effects = self._welcome(line, clock, now)
        return [*effects, *self._ship(line, now)]

    def _running(self, line: LineState, clock: _Clock, now: float) -> list[Effect]:
        if line.stage == 0:
            return self._next_stage(line, now)
        if len(clock.ill) > line.rules.failures * len(line.members) + 1e-9:
            ill = sorted(clock.ill.items())
            said = "; ".join(f"{device}: {why[:500]}" for device, why in ill[:NAMED])
            more = f" and {len(ill) - NAMED} more" if len(ill) > NAMED else ""
            return self.turn(line, "rolling-back" if line.undo else "halted", f"stage {line.stage}: {said}{more}", now)
        if not self._settled(line, clock, now):
            clock.well_since = None
            return []
        if len(clock.owing) == len(line.members):
            said = f"no device of stage {line.stage} answered within {line.rules.patience:g} s"
            return self.turn(line, "paused", said, now)
        clock.well_since = now if clock.well_since is None else clock.well_since
        if now < clock.well_since + line.rules.soak:
            return []
        if line.stage < len(line.stages):
            return self._next_stage(line, now)
        return self.turn(line, "done", "", now)

    def _next_stage(self, line: LineState, now: float) -> list[Effect]:
        reach = self._reach()
        if not reach:
            self._clocks[line.line].alone = True
            return []
        stage = line.stage + 1
        chosen = line.chosen(stage, reach)
        self._set_clock(line, now)
        what = f"release {line.line} {line.forward.read.version}"
        told = Say(f"{what}: stage {stage} of {len(line.stages)}, {len(chosen)} devices")
        return [told, *self._join(line, stage, chosen), *self.consider(line, now)]

    def _join(self, line: LineState, stage: int, devices: Iterable[str]) -> list[Effect]:
        record = DevicesJoined(line.line, stage, tuple(devices))
        effects = self._write(record, sync=True)
        for device in record.devices:
            self._look_at(line, device)
        return effects

    def _welcome(self, line: LineState, clock: _Clock, now: float) -> list[Effect]:
        """Devices that came after the rollout are to serve what the fleet does, if that is anything."""
        clock.changed = False
        newcomers = sorted(self._reach() - line.members.keys()) if line.cargo.refs else []
        if not newcomers:
            return []
        clock.ship_at, clock.pause = now, FIRST
        return self._join(line, line.stage, newcomers)

    def _reach(self) -> set[str]:
        return {device for there in self._sites.reach().values() for device in there}

    def _set_clock(self, line: LineState, now: float) -> None:
        """The rollout goes a new way from here."""
        self._clocks[line.line] = _Clock(now)
        for device in line.members:
            self._look_at(line, device)

    def _look_at(self, line: LineState, device: str) -> None:
        """Note whether a member owes an answer and whether it is ill: fleets are large, and devices speak often."""
        clock = self._clocks[line.line]
        if device not in line.members:
            return
        (clock.owing.discard if line.ended(device) else clock.owing.add)(device)
        if why := self._illness(line, device):
            clock.ill[device] = why
        else:
            clock.ill.pop(device, None)

    def _illness(self, line: LineState, device: str) -> str | None:
        report, serial = self._newest(line, device), line.forward.read.serial
        if report is None or report.serial < serial:
            return None
        if report.serial > serial:
            return f"it obeys order {report.serial} already, which is newer than {serial}"
        if report.state in BAD:
            return f"{report.state}: {report.detail}"
        return complaint(report.health, line.rules) if report.health and report.state == "serving" else None

    def _settled(self, line: LineState, clock: _Clock, now: float) -> bool:
        """Whether every device that was told has ended with it, or was waited for long enough."""
        return not clock.owing or now >= clock.begun + line.rules.patience

    def _ship(self, line: LineState, now: float) -> list[Effect]:
        """Tell the devices that owe an answer, now and again."""
        clock = self._clocks[line.line]
        if clock.ship_at is None or now < clock.ship_at:
            return []
        owing = clock.owing | (self._asked.get(line.line, set()) & line.members.keys())
        if line.status in ("paused", "halted") or not owing:
            clock.ship_at = None
            return []
        clock.ship_at, clock.pause = now + clock.pause, min(2 * clock.pause, LONGEST)
        effects: list[Effect] = []
        cargo = line.cargo
        for site, there in self._sites.reach().items():
            here = [device for device in there if device in owing]
            owing.difference_update(here)
            for at in range(0, len(here), TOGETHER):
                some = tuple(here[at : at + TOGETHER])
                effects.append(Send(Address("edge", site), Ship(cargo.order, cargo.graph, cargo.card, some)))
        return effects

    def _newest(self, line: LineState, device: str) -> ReleaseReport | None:
        return self._heard.get((line.line, device)) or line.reports.get(device)

    def _write(self, record: RolloutRecord, *, sync: bool = False) -> list[Effect]:
        self.state.apply(record)
        return [Append(record, sync=sync)]


def _progress(report: ReleaseReport) -> tuple[int, int]:
    """How far a device is, by the newest order and where it got with it: it never goes back."""
    return report.serial, 2 if report.state == "fell-back" else int(report.state in ENDS)


def _gist(report: ReleaseReport, line: LineState) -> tuple[object, ...]:
    """What of a report is worth a record."""
    well = report.health is None or complaint(report.health, line.rules) is None
    return report.serial, report.version, report.state, report.detail, well
