"""Rollouts: a release reaches the fleet stage by stage, and is rolled back automatically if it performs worse.

This is a part of the coordinator's machine, without I/O. The coordinator holds no private key: when a rollout begins,
the operator signs both the order that brings the release and the one that rolls it back. Each change of a rollout is a
row of `rollout_progress.ROLLOUT`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from coordinator.machine.quorum import Complaints, Verdict
from coordinator.machine.rollout_progress import (
    MAX_CHANGES,
    MAX_NAMED,
    ROLLOUT,
    STATUS,
    RolloutEvent,
    RolloutProgress,
    RolloutStep,
    complaints,
    equal_when_recorded,
    health_issue,
    is_plausible,
    outdated,
    shipments,
    sites_of,
    view_of,
)
from coordinator.machine.sites import Sites
from coordinator.rollout_records import (
    DeviceReported,
    DevicesJoined,
    DevicesSetAside,
    LineState,
    RolloutRecord,
    RolloutTurned,
)
from sojourn.logs import About
from sojourn.node.machine import Append, Effect, Log, earliest
from sojourn.protocol.release import BAD, ENDS, LineView
from sojourn.protocol.release_messages import DeviceReport, ReleaseReport

if TYPE_CHECKING:
    from coordinator.state import CoordinatorState


class Rollouts:
    """Runs the rollouts of all lines."""

    def __init__(self, sites: Sites, durable: CoordinatorState, wall: float) -> None:
        """`wall` is the time in seconds since 1970 at which `now` is 0."""
        self._sites = sites
        self._wall = wall
        self.durable = durable
        self._progress: dict[str, RolloutProgress] = {}
        self._received: dict[tuple[str, str], ReleaseReport] = {}
        """Each device's newest report, with metrics that are not recorded."""
        self.revisions: Counter[str] = Counter()
        """By line, the number of changes of its rollout or its devices since the start."""
        self._connected: set[str] = set()
        """The devices that were online when the fleet last changed."""
        self._reconnected: dict[str, set[str]] = {}
        """By line, the devices that reconnected since their last report: hardware may have changed, or a report been
        lost."""

    def start(self, now: float) -> None:
        """Resume the rollouts that were in progress."""
        for line in self.durable.lines.values():
            self._reset(line, now)

    def begun(self, line: LineState, now: float) -> list[Effect]:
        """Start the first stage of a rollout that was just recorded."""
        self._received = {key: report for key, report in self._received.items() if key[0] != line.line}
        self._reconnected.pop(line.line, None)
        self._reset(line, now)
        return self.consider(line, now)

    def wake_at(self) -> float | None:
        """The time of the next message, end of a soak or timeout."""
        times: list[float | None] = []
        for name, line in self.durable.lines.items():
            times += [self._progress[name].ship_at, self._progress[name].wake_at(line)]
        return earliest(*times)

    def woke(self, now: float) -> list[Effect]:
        """Handle a timer."""
        return [effect for line in self.durable.lines.values() for effect in self.consider(line, now)]

    def fleet_changed(self, now: float, born: str | None = None) -> list[Effect]:
        """Devices or a site connected or disconnected.

        Reports that a site's devices sent while it was offline are lost: during a rollout these devices are asked
        again.
        """
        if not self._progress:  # no rollout is in progress
            return self.woke(now)
        there = self._reach()
        came = there - self._connected
        again = self._sites.reach().get(born, ()) if born else ()
        for name, progress in self._progress.items():
            asked = self._reconnected.setdefault(name, set())
            asked.update(came, () if self.durable.lines[name].over else again)
            progress.fleet_changed(now)
        self._connected = there
        return self.woke(now)

    def reported(self, site: str, message: DeviceReport, now: float) -> list[Effect]:
        """Handle a device's report about its order and its service.

        The report counts if the rollout reached the device, the site that forwards it has the device, and it can be
        true.
        """
        device, report = message.device, message.report
        line = self.durable.lines.get(report.line)
        if line is None or device not in line.members or not self._has_device(site, device, line):
            return []
        if not is_plausible(line, report):
            return []
        if report.state in ENDS:
            self._reconnected.get(report.line, set()).discard(device)
        if outdated(line, report, self.newest(line, device)):
            return []
        self._received[report.line, device] = report
        self.revisions[report.line] += 1
        effects = self._record(line, device, report, site)
        self._note(line, device)
        return [*effects, *self.consider(line, now)]

    def _has_device(self, site: str, device: str, line: LineState) -> bool:
        """Return whether a device is on a site's roster, or was when the site forwarded its order."""
        return self._sites.has(site, device) or self._progress[line.line].via.get(device) == site

    def _record(self, line: LineState, device: str, report: ReleaseReport, site: str) -> list[Effect]:
        """Record a device's report, if it contains something worth recording."""
        kept, written = line.reports.get(device), self._progress[line.line].written
        if (kept is not None and equal_when_recorded(kept, report, line)) or written[device] >= MAX_CHANGES:
            return []
        written[device] += 1
        effects = self._write(DeviceReported(report.line, device, report, site))
        if report.state in BAD:
            text = f"release {report.line}: {device} {report.state}: {report.detail}"
            effects.append(Log(text, "warning", About(device=device)))
        if written[device] == MAX_CHANGES:
            text = f"release {report.line}: {device} changed its report {MAX_CHANGES} times; no more are recorded"
            effects.append(Log(text, "warning", About(device=device)))
        return effects

    def knows(self, line: LineState, event: RolloutEvent) -> bool:
        """Return whether the event is possible for the rollout now."""
        return ROLLOUT.knows(self._step(line), event)

    def changes(self, line: LineState, event: RolloutEvent) -> bool:
        """Return whether the event moves the rollout to another status."""
        return ROLLOUT.step(self._step(line), event) != self._step(line)

    def turn(self, line: LineState, event: RolloutEvent, detail: str, now: float) -> list[Effect]:
        """Pause, resume, roll back or end: change the rollout's direction."""
        status = STATUS[ROLLOUT.step(self._step(line), event)]
        effects = self._write(RolloutTurned(line.line, status, detail, max(0.0, self._wall + now)), sync=True)
        self._reset(line, now)
        text = f"release {line.line} {line.forward.read.version}: {status}{': ' if detail else ''}{detail}"
        bad = status in ("halted", "rolling-back")
        return [*effects, Log(text, "warning" if bad else "info"), *self.consider(line, now)]

    def _step(self, line: LineState) -> RolloutStep:
        return self._progress[line.line].step(line)

    def view(self, line: LineState, since: int | None = None) -> LineView:
        """Return the line's view for operators, with its devices from one on if `since` is given."""
        newest = {device: self.newest(line, device) for device in {*line.members, *line.reports}}
        known = {device: report for device, report in newest.items() if report}
        return view_of(line, known, self._reach(), self._progress[line.line], since)

    def consider(self, line: LineState, now: float) -> list[Effect]:
        """Return the effects that follow from the current state of a rollout."""
        progress, effects = self._progress[line.line], []
        match line.status:
            case "running":
                effects = self._running(line, progress, now)
            case "rolling-back" if progress.answered(line, now):
                effects = self.turn(line, RolloutEvent.ALL_BACK, line.detail, now)
            case "done" | "rolled-back" if progress.changed:
                effects = self._send_to_new_devices(line, progress, now)
        return [*effects, *self._ship(line, now)]

    def _running(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        if line.stage == 0:
            return self._next_stage(line, now)
        if progress.unhealthy(line) and (effects := self._act_on_complaints(line, progress, now)):
            return effects
        if not progress.answered(line, now):
            if progress.healthy_since is not None:
                progress.take(RolloutEvent.ANSWERS_MISSING, line, now)
            return []
        if len(progress.owing) == len(line.members):
            return self._ask_substitutes(line, progress, now)
        if progress.healthy_since is None:
            progress.take(RolloutEvent.STAGE_ANSWERED, line, now)
        return self._soaking(line, progress, now)

    def _act_on_complaints(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """Act on complaints: roll back, or ask other devices; do nothing while those are still answering."""
        patient = now < progress.timeout_at(line)
        verdict = self._verdict(line, progress, set() if patient else self._without_vote(line, progress))
        if verdict.back:
            event = RolloutEvent.UNHEALTHY_UNDO if line.undo else RolloutEvent.UNHEALTHY_HALT
            why = complaints(line.set_aside | progress.unhealthy_devices)
            return self.turn(line, event, f"stage {line.stage}: {why}", now)
        if not verdict.ask:
            return []
        return self._ask(line, verdict.ask, f"unhealthy: {complaints(progress.unhealthy_devices)}", now)

    def _verdict(self, line: LineState, progress: RolloutProgress, silent: set[str]) -> Verdict:
        """Return the verdict if these members have no vote."""
        against = {device: line.sites.get(device, "") for device in (*progress.unhealthy_devices, *line.set_aside)}
        site_of = self._site_of(line, progress)
        found = Complaints(against, line.members, silent - against.keys(), lambda: self._others(line), site_of)
        return found.verdict(line.rules.quorum)

    def _without_vote(self, line: LineState, progress: RolloutProgress) -> set[str]:
        """Return members that have not answered or are offline: a device whose site is down cannot report a problem."""
        asked = self._reconnected.get(line.line, set()) & line.members.keys()
        return progress.owing | asked | (line.members.keys() - self._reach())

    def _ask_substitutes(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """No device of the stage answered: ask as many others, through other sites if possible, but only once."""
        why = f"no device of stage {line.stage} answered within {line.rules.timeout:g} s"
        silent_sites, site_of = set(progress.via.values()), self._site_of(line, progress)
        others = sorted(self._others(line), key=lambda device: site_of(device) in silent_sites)[: len(progress.owing)]
        if progress.substituted or not others:
            return self.turn(line, RolloutEvent.NO_ANSWER, why, now)
        progress.substituted = True
        return self._ask(line, others, why, now)

    def _ask(self, line: LineState, others: Iterable[str], why: str, now: float) -> list[Effect]:
        """Bring the release to some devices before their stage, since more reports are needed."""
        progress, some = self._progress[line.line], tuple(others)
        progress.take(RolloutEvent.OTHERS_ASKED, line, now)
        progress.others_asked(now)
        what = f"release {line.line} {line.forward.read.version}"
        asked = Log(f"{what}: {why}; {len(some)} other devices are asked: {', '.join(some[:MAX_NAMED])}", "warning")
        return [asked, *self._join(line, line.stage, some)]

    def _others(self, line: LineState) -> list[str]:
        """Return the online devices that have not got the order, in the order of their stages."""
        return line.ranked(self._reach() - line.members.keys())

    def _site_of(self, line: LineState, progress: RolloutProgress) -> Callable[[str], str | None]:
        """Return the function that finds the site through which a device reported, got the order, or would get it."""

        def site_of(device: str) -> str | None:
            known = line.sites.get(device) or progress.via.get(device)
            return known or next(iter(sites_of([device], self._sites.reach()).get(device, ())), None)

        return site_of

    def _soaking(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """The stage is healthy: after the soak time, begin the next one or end the rollout."""
        if progress.healthy_since is not None and now < progress.healthy_since + line.rules.soak:
            return []
        effects: list[Effect] = []
        if progress.unhealthy(line):
            verdict = self._verdict(line, progress, self._without_vote(line, progress))
            progress.needs_others = verdict.back or bool(verdict.ask)
            if progress.needs_others:
                return []
            effects = self._set_aside(line, progress, now)
        if line.stage < len(line.stages):
            return [*effects, *self._next_stage(line, now)]
        return [*effects, *self.turn(line, RolloutEvent.ALL_SERVED, "", now)]

    def _set_aside(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """Roll back only the devices that remained alone with their complaints."""
        alone = dict(progress.unhealthy_devices)
        progress.take(RolloutEvent.SET_ASIDE, line, now)
        effects = self._write(DevicesSetAside(line.line, alone), sync=True)
        for device in alone:
            self._note(line, device)
        progress.ship_now(now)
        what = f"release {line.line} {line.forward.read.version}"
        return [*effects, Log(f"{what}: set aside, since all others are healthy: {complaints(alone)}", "warning")]

    def _next_stage(self, line: LineState, now: float) -> list[Effect]:
        reach = self._reach()
        if not reach:
            self._progress[line.line].alone = True
            return []
        stage = line.stage + 1
        chosen = line.chosen(stage, reach)
        self._progress[line.line].take(RolloutEvent.NEXT_STAGE, line, now)
        self._reset(line, now)
        what = f"release {line.line} {line.forward.read.version}"
        begins = Log(f"{what}: stage {stage} of {len(line.stages)}, {len(chosen)} devices")
        return [begins, *self._join(line, stage, chosen), *self.consider(line, now)]

    def _join(self, line: LineState, stage: int, devices: Iterable[str]) -> list[Effect]:
        record = DevicesJoined(line.line, stage, tuple(devices))
        effects = self._write(record, sync=True)
        for device in record.devices:
            self._note(line, device)
        return effects

    def _send_to_new_devices(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """Send devices that connected after the rollout the release that the fleet serves, if any."""
        progress.changed = False
        newcomers = sorted(self._reach() - line.members.keys()) if line.payload.refs else []
        if not newcomers:
            return []
        progress.ship_now(now)
        return self._join(line, line.stage, newcomers)

    def _reach(self) -> set[str]:
        return {device for there in self._sites.reach().values() for device in there}

    def _reset(self, line: LineState, now: float) -> None:
        """The rollout changed direction: restart its timers and check every member."""
        if not self._progress:
            self._connected = self._reach()
        self._progress[line.line] = RolloutProgress(now)
        for device in line.members:
            self._note(line, device)

    def _note(self, line: LineState, device: str) -> None:
        """Note the state of one member only, since fleets are large and devices report often."""
        if device in line.members:
            progress = self._progress[line.line]
            progress.note_answer(device, ended=line.ended(device), aside=line.payload_for(device) is not line.payload)
            progress.note_health_issue(device, health_issue(line, device, self.newest(line, device)))

    def _ship(self, line: LineState, now: float) -> list[Effect]:
        """Send the order to the devices that owe an answer, now and repeatedly."""
        progress = self._progress[line.line]
        if progress.ship_at is None or now < progress.ship_at:
            return []
        owing = progress.owing | progress.returning | (self._reconnected.get(line.line, set()) & line.members.keys())
        if line.status in ("paused", "halted") or not owing:
            progress.ship_at = None
            return []
        progress.shipped(now)
        return shipments(line, owing, self._sites.reach(), progress)

    def newest(self, line: LineState, device: str) -> ReleaseReport | None:
        """Return a device's last report."""
        return self._received.get((line.line, device)) or line.reports.get(device)

    def _write(self, record: RolloutRecord, *, sync: bool = False) -> list[Effect]:
        self.durable.apply(record)
        self.revisions[record.line] += 1
        return [Append(record, sync=sync)]
