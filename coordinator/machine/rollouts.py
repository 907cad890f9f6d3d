"""Rollouts: a release reaches the fleet stage by stage, and comes back by itself when it turns out worse.

A part of the coordinator's machine, without I/O. The coordinator holds no private key: when a rollout begins the
operator signs both the order that brings the release and the one that undoes it. Which state follows which event
stands in `rollout_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.machine.rollout_progress import (
    FIRST,
    RolloutProgress,
    illness,
    progress_of,
    same_for_the_record,
)
from coordinator.machine.rollout_table import ROLLOUT, STATUS
from coordinator.machine.rollout_view import view_of
from coordinator.rollout_records import DeviceReported, DevicesJoined, RolloutTurned
from sojourn.errors import Fault
from sojourn.node.machine import Append, Say, Send, soonest
from sojourn.protocol.release import BAD, ENDS
from sojourn.protocol.release_messages import Ship
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.machine.sites import Sites
    from coordinator.rollout_records import LineState, RolloutRecord
    from coordinator.state import CoordinatorState
    from sojourn.node.machine import Effect
    from sojourn.protocol.release import LineView
    from sojourn.protocol.release_messages import DeviceReport, ReleaseReport

TOGETHER = 400
"""Devices in one message: with the longest names, and a small release riding along, it fits in any broker's packet."""
NAMED = 3
"""At most this many ill devices are named, the others are counted."""


class Rollouts:
    """Leads every line's rollout."""

    def __init__(self, sites: Sites, durable: CoordinatorState) -> None:
        self._sites = sites
        self.durable = durable
        self._progress: dict[str, RolloutProgress] = {}
        self._heard: dict[tuple[str, str], ReleaseReport] = {}
        """The newest word of each device, with figures that are not worth a record."""
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

    def fleet_changed(self, now: float) -> list[Effect]:
        """Devices came or went, and those that owe an answer may be among them."""
        there = self._reach()
        came = there - self._there
        for name, progress in self._progress.items():
            self._asked.setdefault(name, set()).update(came)
            progress.fleet_changed(now)
        self._there = there
        return self.woke(now)

    def reported(self, message: DeviceReport, now: float) -> list[Effect]:
        """A device reports how far it is with an order, and how it serves."""
        device, report = message.device, message.report
        line = self.durable.lines.get(report.line)
        if line is None:
            return []
        known = self._newest(line, device)
        if report.state in ENDS:
            self._asked.get(report.line, set()).discard(device)
        if known and progress_of(report) < progress_of(known):  # it was on its way longer than what came before it
            return []
        self._heard[report.line, device] = report
        effects = self._record(line, device, report)
        self._note(line, device)
        return [*effects, *self.consider(line, now)]

    def _record(self, line: LineState, device: str, report: ReleaseReport) -> list[Effect]:
        """Write down what a device reports, if that is worth it."""
        kept = line.reports.get(device)
        if kept is not None and same_for_the_record(kept, report, line):
            return []
        effects = self._write(DeviceReported(report.line, device, report))
        if report.state in BAD:
            effects.append(Say(f"release {report.line}: {device} {report.state}: {report.detail}", "warning"))
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
        effects = self._write(RolloutTurned(line.line, status, detail), sync=True)
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

    def view(self, line: LineState, *, devices: bool) -> LineView:
        """The line as a person sees it."""
        newest = {device: self._newest(line, device) for device in {*line.members, *line.reports}}
        return view_of(line, {k: v for k, v in newest.items() if v}, self._reach(), devices=devices)

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
        if progress.too_ill(line):
            event = "unwell, undo" if line.undo else "unwell, halt"
            return self.turn(line, event, f"stage {line.stage}: {_complaints(progress.ill)}", now)
        if not progress.answered(line, now):
            if progress.step == "soaking":
                self._advance(line, "answers lacking")
            progress.well_since = None
            return []
        if len(progress.owing) == len(line.members):
            reason = f"no device of stage {line.stage} answered within {line.rules.patience:g} s"
            return self.turn(line, "nobody answered", reason, now)
        if progress.step != "soaking":
            self._advance(line, "stage answered")
            progress.well_since = now
        return self._soaking(line, progress, now)

    def _soaking(self, line: LineState, progress: RolloutProgress, now: float) -> list[Effect]:
        """The stage is well: when it was for long enough the next one begins, or all is done."""
        if progress.well_since is not None and now < progress.well_since + line.rules.soak:
            return []
        if line.stage < len(line.stages):
            return self._next_stage(line, now)
        return self.turn(line, "all served", "", now)

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
        self._progress[line.line] = RolloutProgress(line, now)
        for device in line.members:
            self._note(line, device)

    def _note(self, line: LineState, device: str) -> None:
        """Keep in mind how one member is: fleets are large, and devices speak often."""
        if device in line.members:
            progress = self._progress[line.line]
            progress.note_answer(device, ended=line.ended(device))
            progress.note_illness(device, illness(line, self._newest(line, device)))

    def _ship(self, line: LineState, now: float) -> list[Effect]:
        """Send the order to the devices that owe an answer, now and again."""
        progress = self._progress[line.line]
        if progress.ship_at is None or now < progress.ship_at:
            return []
        owing = progress.owing | (self._asked.get(line.line, set()) & line.members.keys())
        if line.status in ("paused", "halted") or not owing:
            progress.ship_at = None
            return []
        progress.shipped(now)
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
        self.durable.apply(record)
        return [Append(record, sync=sync)]


def _complaints(ill: dict[str, str]) -> str:
    """Which devices are ill and why: a few by name, the others counted."""
    named = sorted(ill.items())[:NAMED]
    text = "; ".join(f"{device}: {why[:500]}" for device, why in named)
    return f"{text} and {len(ill) - NAMED} more" if len(ill) > NAMED else text
