"""Rollouts: a release reaches the fleet stage by stage, and comes back by itself when it turns out worse.

A part of the coordinator's machine, without I/O. The coordinator holds no private key: when a rollout begins the
operator signs both the order that brings the release and the one that undoes it. Which state follows which event
stands in `rollout_table`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from coordinator.machine.company import Verdict, Voices
from coordinator.machine.rollout_progress import (
    CHANGES,
    FIRST,
    RolloutProgress,
    believable,
    illness,
    outdated,
    same_for_the_record,
)
from coordinator.machine.rollout_table import ROLLOUT, STATUS
from coordinator.machine.rollout_view import NAMED, complaints, view_of
from coordinator.machine.routes import shipments, sites_of
from coordinator.rollout_records import DeviceReported, DevicesJoined, DevicesSetAside, RolloutTurned
from sojourn.about import About
from sojourn.errors import Fault
from sojourn.node.machine import Append, Say, soonest
from sojourn.protocol.release import BAD, ENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.machine.sites import Sites
    from coordinator.rollout_records import LineState, RolloutRecord
    from coordinator.state import CoordinatorState
    from sojourn.node.machine import Effect
    from sojourn.protocol.release import LineView
    from sojourn.protocol.release_messages import DeviceReport, ReleaseReport


class Rollouts:
    """Leads every line's rollout."""

    def __init__(self, sites: Sites, durable: CoordinatorState, wall: float = 0.0) -> None:
        """`wall` is what a clock on the wall shows, in seconds since 1970, when `now` is 0."""
        self._sites = sites
        self._wall = wall
        self.durable = durable
        self._progress: dict[str, RolloutProgress] = {}
        self._heard: dict[tuple[str, str], ReleaseReport] = {}
        """The newest word of each device, with figures that are not worth a record."""
        self.revisions: Counter[str] = Counter()
        """By line, how often something of its rollout or its devices has changed since the start."""
        self._there: set[str] = set()
        """The devices that were there when the fleet last changed."""
        self._asked: dict[str, set[str]] = {}
        """By line, the devices that came (back) since they last spoke: a card may have been replaced, a word lost."""

    def start(self, now: float) -> None:
        """Take up the rollouts that were under way."""
        for line in self.durable.lines.values():
            self._take_stock(line, now)

    def begun(self, line: LineState, now: float) -> list[Effect]:
        """A rollout was written down: its first stage."""
        self._heard = {key: report for key, report in self._heard.items() if key[0] != line.line}
        self._asked.pop(line.line, None)
        self._take_stock(line, now)
        return self.consider(line, now)

    def wake_at(self) -> float | None:
        """The next message, end of a soak or end of patience."""
        times: list[float | None] = []
        for name, line in self.durable.lines.items():
            times += [self._progress[name].ship_at, self._progress[name].wake_at(line)]
        return soonest(*times)

    def woke(self, now: float) -> list[Effect]:
        """Time has passed."""
        return [effect for line in self.durable.lines.values() for effect in self.consider(line, now)]

    def fleet_changed(self, now: float, born: str | None = None) -> list[Effect]:
        """Devices came or went, and those that owe an answer may be among them; a site may have been born (again).

        What its devices said while it was away is lost: while a rollout is under way they are asked again.
        """
        if not self._progress:  # nobody is asked for anything
            return self.woke(now)
        there = self._reach()
        came = there - self._there
        again = self._sites.reach().get(born, ()) if born else ()
        for name, progress in self._progress.items():
            asked = self._asked.setdefault(name, set())
            asked.update(came, () if self.durable.lines[name].over else again)
            progress.fleet_changed(now)
        self._there = there
        return self.woke(now)

    def reported(self, site: str, message: DeviceReport, now: float) -> list[Effect]:
        """A device reports how far it is with an order, and how it serves.

        That counts if the rollout reached the device, if the site that passes it on has the device, and if it can be.
        """
        device, report = message.device, message.report
        line = self.durable.lines.get(report.line)
        if line is None or device not in line.members or not self._speaks_for(site, device, line):
            return []
        if not believable(line, report):
            return []
        if report.state in ENDS:
            self._asked.get(report.line, set()).discard(device)
        if outdated(line, report, self.newest(line, device)):
            return []
        self._heard[report.line, device] = report
        self.revisions[report.line] += 1
        effects = self._record(line, device, report, site)
        self._note(line, device)
        return [*effects, *self.consider(line, now)]

    def _speaks_for(self, site: str, device: str, line: LineState) -> bool:
        """Whether a site has a device: it is on its roster, or was when it was told through it."""
        return self._sites.has(site, device) or self._progress[line.line].via.get(device) == site

    def _record(self, line: LineState, device: str, report: ReleaseReport, site: str) -> list[Effect]:
        """Write down what a device reports, if that is worth it."""
        kept, written = line.reports.get(device), self._progress[line.line].written
        if (kept is not None and same_for_the_record(kept, report, line)) or written[device] >= CHANGES:
            return []
        written[device] += 1
        effects = self._write(DeviceReported(report.line, device, report, site))
        if report.state in BAD:
            text = f"release {report.line}: {device} {report.state}: {report.detail}"
            effects.append(Say(text, "warning", About(device=device)))
        if written[device] == CHANGES:
            text = f"release {report.line}: {device} changed its report {CHANGES} times; no further one is kept"
            effects.append(Say(text, "warning", About(device=device)))
        return effects

    def knows(self, line: LineState, event: str) -> bool:
        """Whether the event may happen to the rollout now."""
        return ROLLOUT.knows(self._progress[line.line].step, event)

    def changes(self, line: LineState, event: str) -> bool:
        """Whether the event leads the rollout to another state."""
        step = self._progress[line.line].step
        return ROLLOUT.step(step, event) != step

    def turn(self, line: LineState, event: str, detail: str, now: float) -> list[Effect]:
        """Pause, resume, undo, end: the rollout goes another way."""
        status = STATUS[ROLLOUT.step(self._progress[line.line].step, event)]
        effects = self._write(RolloutTurned(line.line, status, detail, max(0.0, self._wall + now)), sync=True)
        self._take_stock(line, now)
        text = f"release {line.line} {line.forward.read.version}: {status}{': ' if detail else ''}{detail}"
        bad = status in ("halted", "rolling-back")
        return [*effects, Say(text, "warning" if bad else "info"), *self.consider(line, now)]

    def _advance(self, line: LineState, event: str) -> None:
        """Take a step that changes nothing durable: a stage begins, soaks, or lacks answers again."""
        progress = self._progress[line.line]
        progress.step = ROLLOUT.step(progress.step, event)
        if STATUS[progress.step] != line.status:
            raise Fault(f"release {line.line} is {line.status} after {event!r}, at {progress.step}")

    def view(self, line: LineState, since: int | None = None) -> LineView:
        """The line as a person sees it; with its devices from one on, if that is said."""
        newest = {device: self.newest(line, device) for device in {*line.members, *line.reports}}
        known = {device: report for device, report in newest.items() if report}
        return view_of(line, known, self._reach(), self._progress[line.line], since)

    def consider(self, line: LineState, now: float) -> list[Effect]:
        """What follows from all that is known of a rollout now."""
        progress, effects = self._progress[line.line], []
        match line.status:
            case "running":
                effects = self._running(line, progress, now)
            case "rolling-back" if progress.answered(line, now):
                effects = self.turn(line, "all back", line.detail, now)
            case "done" | "rolled-back" if progress.changed:
                effects = self._welcome(line, progress, now)
        return [*effects, *self._ship(line, now)]

    def _running(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        if line.stage == 0:
            return self._next_stage(line, now)
        if progress.too_ill(line) and (effects := self._judged(line, progress, now)):
            return effects
        if not progress.answered(line, now):
            if progress.step == "soaking":
                self._advance(line, "answers lacking")
            progress.well_since = None
            return []
        if len(progress.owing) == len(line.members):
            return self._unanswered(line, progress, now)
        if progress.step != "soaking":
            self._advance(line, "stage answered")
            progress.well_since = now
        return self._soaking(line, progress, now)

    def _judged(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """What follows from complaints: the fleet turns back, or others are asked; nothing where those are at it."""
        patient = now < progress.patient_until(line)
        verdict = self._verdict(line, progress, set() if patient else self._voiceless(line, progress))
        if verdict.back:
            event = "unwell, undo" if line.undo else "unwell, halt"
            return self.turn(line, event, f"stage {line.stage}: {complaints(line.aside | progress.ill)}", now)
        return self._ask(line, verdict.ask, f"not well: {complaints(progress.ill)}", now) if verdict.ask else []

    def _verdict(self, line: LineState, progress: RolloutProgress, silent: set[str]) -> Verdict:
        """What follows if these members have no voice."""
        against = {device: line.through.get(device, "") for device in (*progress.ill, *line.aside)}
        site_of = self._site_of(line, progress)
        voices = Voices(against, line.members, silent - against.keys(), lambda: self._others(line), site_of)
        return voices.verdict(line.rules.company)

    def _voiceless(self, line: LineState, progress: RolloutProgress) -> set[str]:
        """The members that have not answered, or are not here: one whose site is down cannot say that it is ill."""
        asked = self._asked.get(line.line, set()) & line.members.keys()
        return progress.owing | asked | (line.members.keys() - self._reach())

    def _unanswered(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """Nobody of the stage answered: ask as many others, through other sites if it may be; but only once."""
        why = f"no device of stage {line.stage} answered within {line.rules.patience:g} s"
        deaf, site_of = set(progress.via.values()), self._site_of(line, progress)
        others = sorted(self._others(line), key=lambda device: site_of(device) in deaf)[: len(progress.owing)]
        if progress.substituted or not others:
            return self.turn(line, "nobody answered", why, now)
        progress.substituted = True
        return self._ask(line, others, why, now)

    def _ask(self, line: LineState, others: Iterable[str], why: str, now: float) -> list[Effect]:
        """Bring the release to some devices before their turn, since more must be known of it."""
        progress, some = self._progress[line.line], tuple(others)
        self._advance(line, "others asked")
        progress.others_asked(now)
        what = f"release {line.line} {line.forward.read.version}"
        asked = Say(f"{what}: {why}; {len(some)} other devices are asked: {', '.join(some[:NAMED])}", "warning")
        return [asked, *self._join(line, line.stage, some)]

    def _others(self, line: LineState) -> list[str]:
        """The devices that are here and were not told, in the order in which their turn would come."""
        return line.ranked(self._reach() - line.members.keys())

    def _site_of(self, line: LineState, progress: RolloutProgress) -> Callable[[str], str | None]:
        """Through which site a device was heard, was told, or would be."""

        def site_of(device: str) -> str | None:
            known = line.through.get(device) or progress.via.get(device)
            return known or next(iter(sites_of([device], self._sites.reach()).get(device, ())), None)

        return site_of

    def _soaking(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """The stage is well: when it was for long enough the next one begins, or all is done."""
        if progress.well_since is not None and now < progress.well_since + line.rules.soak:
            return []
        effects: list[Effect] = []
        if progress.too_ill(line):
            verdict = self._verdict(line, progress, self._voiceless(line, progress))
            progress.wanting = verdict.back or bool(verdict.ask)
            if progress.wanting:
                return []
            effects = self._set_aside(line, progress, now)
        if line.stage < len(line.stages):
            return [*effects, *self._next_stage(line, now)]
        return [*effects, *self.turn(line, "all served", "", now)]

    def _set_aside(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """The devices that stayed alone with their complaints go back alone."""
        alone = dict(progress.ill)
        self._advance(line, "set aside")
        effects = self._write(DevicesSetAside(line.line, alone), sync=True)
        for device in alone:
            self._note(line, device)
        progress.ship_at, progress.pause = now, FIRST
        what = f"release {line.line} {line.forward.read.version}"
        return [*effects, Say(f"{what}: set aside, since all others are well: {complaints(alone)}", "warning")]

    def _next_stage(self, line: LineState, now: float) -> list[Effect]:
        reach = self._reach()
        if not reach:
            self._progress[line.line].alone = True
            return []
        stage = line.stage + 1
        chosen = line.chosen(stage, reach)
        self._advance(line, "next stage")
        self._take_stock(line, now)
        what = f"release {line.line} {line.forward.read.version}"
        begins = Say(f"{what}: stage {stage} of {len(line.stages)}, {len(chosen)} devices")
        return [begins, *self._join(line, stage, chosen), *self.consider(line, now)]

    def _join(self, line: LineState, stage: int, devices: Iterable[str]) -> list[Effect]:
        record = DevicesJoined(line.line, stage, tuple(devices))
        effects = self._write(record, sync=True)
        for device in record.devices:
            self._note(line, device)
        return effects

    def _welcome(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """Devices that came after the rollout are to serve what the fleet does, if that is anything."""
        progress.changed = False
        newcomers = sorted(self._reach() - line.members.keys()) if line.cargo.refs else []
        if not newcomers:
            return []
        progress.ship_at, progress.pause = now, FIRST
        return self._join(line, line.stage, newcomers)

    def _reach(self) -> set[str]:
        return {device for there in self._sites.reach().values() for device in there}

    def _take_stock(self, line: LineState, now: float) -> None:
        """The rollout goes a new way from here: its times begin anew, and every member is looked at."""
        if not self._progress:
            self._there = self._reach()
        self._progress[line.line] = RolloutProgress(line, now)
        for device in line.members:
            self._note(line, device)

    def _note(self, line: LineState, device: str) -> None:
        """Keep in mind how one member is: fleets are large, and devices speak often."""
        if device in line.members:
            progress = self._progress[line.line]
            progress.note_answer(device, ended=line.ended(device), aside=line.cargo_for(device) is not line.cargo)
            progress.note_illness(device, illness(line, device, self.newest(line, device)))

    def _ship(self, line: LineState, now: float) -> list[Effect]:
        """Send the order to the devices that owe an answer, now and again."""
        progress = self._progress[line.line]
        if progress.ship_at is None or now < progress.ship_at:
            return []
        owing = progress.owing | progress.returning | (self._asked.get(line.line, set()) & line.members.keys())
        if line.status in ("paused", "halted") or not owing:
            progress.ship_at = None
            return []
        progress.shipped(now)
        return shipments(line, owing, self._sites.reach(), progress)

    def newest(self, line: LineState, device: str) -> ReleaseReport | None:
        """What a device reported last."""
        return self._heard.get((line.line, device)) or line.reports.get(device)

    def _write(self, record: RolloutRecord, *, sync: bool = False) -> list[Effect]:
        self.durable.apply(record)
        self.revisions[record.line] += 1
        return [Append(record, sync=sync)]
