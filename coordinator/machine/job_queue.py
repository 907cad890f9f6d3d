"""The queue of jobs. The first is taken from step to step: compiled, planned, sent out as tours, gathered, ended.

Which step follows which event stands in `job_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.machine.job_summaries import plan_line, round_line
from coordinator.machine.job_table import JOB, STATUS, WORK, step_of
from coordinator.machine.sites import ROSTER_PATIENCE
from coordinator.records import (
    DevicesEstimated,
    JobCompiled,
    JobEnded,
    JobStarted,
    JobWaits,
    LegPassed,
    RoundClosed,
    RoundPlanned,
    TourArrived,
    TourGivenUp,
    TourMoved,
    blobs_of,
)
from coordinator.rounds.closing import PassLeg
from coordinator.rounds.orders import tour_deadline
from coordinator.rounds.planning import NotYet, PlanRound
from coordinator.rounds.preparing import PrepareJob, recipes
from coordinator.rounds.results import CloseRound
from coordinator.state import CoordinatorState
from sojourn.errors import Fault
from sojourn.node.machine import Append, Do, Say, Send, Undo, soonest
from sojourn.parts import name_of
from sojourn.protocol.abilities import asked
from sojourn.protocol.messages import TourAccepted, TourCancel
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from coordinator.machine.sites import Sites
    from coordinator.machine.tours import RoundTours
    from coordinator.records import JobRecord
    from coordinator.state import JobState
    from sojourn.node.machine import Did, DidNot, Doing, Effect
    from sojourn.protocol.messages import Toured


PLAN_AGAIN = 60.0
"""Seconds after which a job that waits is planned again, if nothing happens before."""
WORK_AGAIN = 15.0
"""Seconds after which work for which the disk had no room is tried again."""
_EVENTS: dict[type, str] = {
    JobCompiled: "compiled",
    RoundPlanned: "planned",
    LegPassed: "leg passed",
    RoundClosed: "round closed",
    DevicesEstimated: "devices estimated",
}
"""The event that the outcome of a piece of work is."""


class JobQueue:
    """All jobs, and of the one whose turn it is: the step it is at, and how long it has waited."""

    def __init__(self, sites: Sites, tours: RoundTours) -> None:
        self.durable = CoordinatorState()
        self.traffic = 0
        """The bytes between the cloud and the sites since the round was planned."""
        self.superseded: set[bytes] = set()
        """The blobs of the round before: should the record of its end be damaged, it is done again from them."""
        self._sites = sites
        self._tours = tours
        self._steps: dict[str, str] = {}
        """The steps of the jobs that have taken one since the start."""
        self._reach: dict[str, tuple[str, ...]] = {}
        """What the sites reached when planning was last tried."""
        self._began = 0.0
        self._waiting_since: float | None = None
        self._plan_again_at: float | None = None
        self._latest: Do | None = None
        """The work that was last asked for."""
        self._work_again_at: float | None = None
        self._no_room = ""
        """Why the work of the job whose turn it is waits for room on the disk; empty while it does not."""
        self._step_told = ""
        """What the work of the job whose turn it is has said that it is at."""

    def step(self, state: JobState) -> str:
        """The step of the table that a job is at."""
        return self._steps.get(state.name) or step_of(state)

    def detail(self, state: JobState) -> str:
        """What there is to say of a job besides its status."""
        now = self._no_room or (self._step_told if self.step(state) == "compiling" else "")
        return now if now and state is self.durable.current else state.detail

    def doing(self, event: Doing) -> None:
        """The work that the job needs has come to another step, or is still at it."""
        if self._worked_for(event.key):
            self._step_told = event.text

    def write(self, record: JobRecord, *, sync: bool = False, blobs: tuple[bytes, ...] = ()) -> Append:
        """Change the durable state; the record must be in the journal before anything else leaves."""
        before = self.durable.jobs.get(record.job)
        if isinstance(record, RoundClosed | JobEnded):
            self.superseded = before.live() if before and isinstance(record, RoundClosed) else set()
        self.durable.apply(record)
        state = self.durable.jobs[record.job]
        if state.status != STATUS[self.step(state)]:
            raise Fault(f"job {state.name} is {state.status} after {type(record).__name__}, at {self.step(state)}")
        return Append(record, sync=sync, blobs=blobs)

    def start(self, now: float) -> list[Effect]:
        """Take up the job that was under way."""
        self._began = now
        state = self.durable.current
        return self._resume(state, now) if state else []

    def wake_at(self) -> float | None:
        """When patience ends, or planning or work is tried again."""
        return soonest(self._patience_ends(), self._plan_again_at, self._work_again_at)

    def woke(self, now: float) -> list[Effect]:
        """End a job that has waited too long, plan again for one that waits, go on without sites that are lost."""
        effects: list[Effect] = []
        state = self.durable.current
        ends = self._patience_ends()
        if state and ends is not None and ends <= now:
            return self.end(state, "patience ended", f"nobody came: {state.detail}", now)
        if self._plan_again_at is not None and self._plan_again_at <= now:
            self._plan_again_at = None
            if state and self.step(state) == "waiting":
                effects += self._plan_again(state, now, ask_silent=True)
        if self._latest and self._work_again_at is not None and self._work_again_at <= now:
            self._work_again_at = None
            effects.append(self._latest)
        for number in self._tours.overdue(now):
            effects += self._lost(state, number, now) if state else []
        return effects

    def _patience_ends(self) -> float | None:
        state = self.durable.current
        if self._waiting_since is None or state is None:
            return None
        patience = state.settings.fleet.patience
        return self._waiting_since + patience if patience else None

    def submitted(self, name: str) -> list[Effect]:
        """A job was queued: it begins at once if it is its turn."""
        state = self.durable.current
        return self._begin(state) if state and state.name == name else []

    def _resume(self, state: JobState, now: float) -> list[Effect]:
        """Go on with a job after a restart, or when it is its turn."""
        match self.step(state):
            case "queued":
                return self._begin(state)
            case "compiling":
                return self._compile(state)
            case "touring":
                return self._gather(state, now) if self._tours.gathered(state) else self._tours.ask_all(state, now)
            case "planning next":
                return self._plan_next(state, now)
            case _:
                return self._plan_again(state, now)

    def _begin(self, state: JobState) -> list[Effect]:
        self._advance(state, "its turn")
        return [self.write(JobStarted(state.name)), *self._compile(state)]

    def _advance(self, state: JobState, event: str) -> None:
        """Take the step that follows the event."""
        self._steps[state.name] = JOB.step(self.step(state), event)

    def _work(self, state: JobState, work: Any) -> Do:
        self._latest = Do(f"{WORK[self.step(state)]} {state.name}", work)
        return self._latest

    def _compile(self, state: JobState) -> list[Effect]:
        self._waiting_since = None
        self._step_told = ""
        work = PrepareJob(state.name, state.text, recipes(self.durable))
        return [Say(f"job {state.name}: compiling"), self._work(state, work)]

    def _plan_again(self, state: JobState, now: float, *, ask_silent: bool = False) -> list[Effect]:
        """Try to plan for a job that waits; with `ask_silent`, devices that gave no answer are asked once more."""
        self._advance(state, "plan again")
        return self._plan(state, now, ask_silent=ask_silent)

    def _plan_next(self, state: JobState, now: float) -> list[Effect]:
        """A round or an estimation is closed: plan the next round, unless the job is complete."""
        if reason := state.why_complete():
            return self.end(state, "complete", reason, now)
        return self._plan(state, now)

    def _plan(self, state: JobState, now: float, *, ask_silent: bool = False) -> list[Effect]:
        if not state.history and (unread := self._sites.unread(now)):
            # What is arranged once would leave out a site that is just coming up.
            waits = self._wait(state, f"{unread[0]} has not said yet which devices it has", now)
            self._plan_again_at = now + ROSTER_PATIENCE
            return waits
        self._reach, self._plan_again_at = self._reached(state), None
        asks = name_of(state.strategy.estimator)
        unable = self._sites.count() - len(set().union(*self._reach.values()))
        work = PlanRound(state.copy(), self._reach, self._sites.unwilling(asks), unable, ask_silent)
        return [self._work(state, work)]

    def _reached(self, state: JobState) -> dict[str, tuple[str, ...]]:
        """The devices that can do the job, by site."""
        settings, strategy = state.settings, state.strategy
        abilities = asked(settings.encoding, strategy.training, strategy.estimator)
        return self._sites.reach(name_of(strategy.objective), abilities)

    def _wait(self, state: JobState, reason: str, now: float) -> list[Effect]:
        """Until the sites change, or for a while: a device that gave no answer may have one then."""
        self._advance(state, "devices lacking")
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self._plan_again_at = now + PLAN_AGAIN
        if (state.status, state.detail) == ("waiting", reason):
            return []
        return [self.write(JobWaits(state.name, reason)), Say(f"job {state.name} waits: {reason}")]

    def reconsider(self, now: float) -> list[Effect]:
        """The sites may have changed: a job that waits for devices may have them now."""
        state = self.durable.current
        if state is None or self.step(state) != "waiting" or self._reached(state) == self._reach:
            return []
        return self._plan_again(state, now)

    def _worked_for(self, key: str) -> JobState | None:
        """The job that this piece of work was done for, if it still waits for it."""
        state = self.durable.current
        verb = WORK.get(self.step(state)) if state else None
        return state if state and verb and key == f"{verb} {state.name}" else None

    def did(self, event: Did, now: float) -> list[Effect]:
        """The work that the job needed is done: take down what came of it, and go on."""
        state, outcome = self._worked_for(event.key), event.outcome
        if state is None:
            return []
        self._no_room = ""
        if isinstance(outcome, NotYet):
            return [*self._wait(state, outcome.reason, now), *self.reconsider(now)]
        self._advance(state, _EVENTS[type(outcome)])
        written = self.write(outcome, sync=True, blobs=blobs_of(outcome))
        return [written, *self._after(state, outcome, now)]

    def _after(self, state: JobState, outcome: JobRecord, now: float) -> list[Effect]:
        """What follows from the outcome of a piece of work."""
        match outcome:
            case JobCompiled():
                return [Say(f"job {state.name}: compiled and checked"), *self._plan(state, now)]
            case RoundPlanned():
                self._began, self.traffic, self._waiting_since = now, 0, None
                self._plan_again_at = None
                return [Say(plan_line(state, outcome)), *self._resume(state, now)]
            case RoundClosed():
                return [Say(round_line(state, outcome)), *self._plan_next(state, now)]
            case DevicesEstimated():
                lines: list[Effect] = [Say(f"job {state.name}: {line}", "warning") for line in outcome.failures]
                estimated = Say(f"job {state.name}: {len(outcome.signatures)} devices estimated")
                return [*lines, estimated, *self._plan_next(state, now)]
            case _:
                return self._resume(state, now)

    def did_not(self, event: DidNot, now: float) -> list[Effect]:
        """The work that the job needed failed: it is tried again when the disk was full, else the job is refused."""
        state = self._worked_for(event.key)
        if state is None:
            return []
        if event.reason != "DiskFull":
            return self.end(state, "work failed", event.detail, now)
        self._advance(state, "no room")
        self._work_again_at = now + WORK_AGAIN
        told, self._no_room = self._no_room, event.detail
        return [] if told else [Say(f"job {state.name}: {event.detail}", "error")]

    def arrived(self, toured: Toured, now: float) -> list[Effect]:
        """A tour's result is here: journal it, accept it, and go on when all are home."""
        state = self.durable.current
        tour = self._tours.plan(state, toured.tour.number) if state else None
        if state is None or tour is None:
            return []
        blobs = tuple(ref.digest for ref in [*toured.vectors.values(), toured.reports])
        record = self.write(TourArrived(state.name, toured), sync=True, blobs=blobs)
        accepted = Send(Address("edge", tour.site), TourAccepted(toured.tour))
        return [record, accepted, *self._tour_over(state, now)]

    def _tour_over(self, state: JobState, now: float) -> list[Effect]:
        """A tour came home or was given up: go on if it was the last that was out."""
        if self._tours.gathered(state):
            return self._gather(state, now)
        self._advance(state, "tour home")
        return []

    def _gather(self, state: JobState, now: float) -> list[Effect]:
        """All tours that were out are home: the next leg departs, or the round closes."""
        if not state.last_leg:
            self._advance(state, "leg home")
            return [self._work(state, PassLeg(state.copy()))]
        self._advance(state, "all home")
        return [self._work(state, CloseRound(state.copy(), now - self._began, self.traffic))]

    def _lost(self, state: JobState, number: int, now: float) -> list[Effect]:
        """A site gave no sign of life: wait for it, go on without its tour, or give the tour to another site."""
        job = state.settings
        tour = next(t for t in state.tours if t.number == number)
        policy, reason = job.tours.on_lost_site, f"no sign of life for {job.tours.site_lease:g} s"
        if self._tours.past_deadline(number, now):
            # Its site speaks, and yet it does not end: waiting longer, or asking somebody else, could go on for ever.
            policy, reason = "drop", f"its tour is over the deadline of {tour_deadline(state, tour):g} s"
        lost = Say(f"job {state.name}: site {tour.site} is lost, {reason}; {policy}", "warning")
        self._advance(state, "site lost")
        if policy == "wait":
            return [lost, *self._tours.ask(state, tour, now)]
        self._tours.forget(number)
        moved = self._sites.move(tour) if policy == "reassign" else None
        if moved:
            return [lost, self.write(TourMoved(state.name, moved), sync=True), *self._tours.ask(state, moved, now)]
        given_up = self.write(TourGivenUp(state.name, number, reason), sync=True)
        return [lost, given_up, *self._tour_over(state, now)]

    def end(self, state: JobState, event: str, detail: str, now: float) -> list[Effect]:
        """A job is over: what is under way for it is called off, and the next one has its turn. If it was, nothing."""
        before, after = self.step(state), JOB.step(self.step(state), event)
        if before == after:
            return []
        effects: list[Effect] = []
        current = state is self.durable.current
        if current:
            under_way = before in WORK and event in ("stop", "patience ended") and self._work_again_at is None
            effects += [Undo(f"{WORK[before]} {state.name}")] if under_way else []
            self._waiting_since = self._plan_again_at = self._work_again_at = None
            self._no_room = ""
            for tour in state.tours:
                self._tours.forget(tour.number)
                if tour.number not in state.arrived:
                    effects.append(Send(Address("edge", tour.site), TourCancel(state.tour_id(tour))))
        self._advance(state, event)
        record = JobEnded(state.name, STATUS[after], detail[:20_000])
        effects += [self.write(record, sync=True), Say(f"job {state.name} is {STATUS[after]}: {detail}")]
        following = self.durable.current if current else None
        return [*effects, *(self._resume(following, now) if following else [])]
