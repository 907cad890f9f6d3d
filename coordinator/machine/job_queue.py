"""The queue of jobs. One at a time is taken from step to step: compiled, planned, sent out as tours, gathered, ended.

It is the oldest that can go on: while a job waits for devices, the next one has its turn, until a round of it is closed
and the older one may go on. Which step follows which event stands in `job_table`.
"""

from __future__ import annotations

from itertools import takewhile
from math import nan
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.machine.job_summaries import closed_line, comes_home, mishap_lines, outcomes, plan_line, round_line
from coordinator.machine.job_table import JOB, STATUS, WORK, step_of
from coordinator.machine.kept_rounds import KeepSettings, kept_after, let_go
from coordinator.machine.mandate_rules import MandateRules
from coordinator.machine.waiting_jobs import PLAN_AGAIN, WaitingJobs, needs
from coordinator.records import (
    ENDED,
    DevicesEstimated,
    JobCompiled,
    JobContinued,
    JobEnded,
    JobRemoved,
    JobStarted,
    JobWaits,
    LegPassed,
    RoundClosed,
    RoundFailed,
    RoundKeeps,
    RoundMeasured,
    RoundPlanned,
    RoundsKept,
    TourArrived,
    TourGivenUp,
    TourMoved,
    blobs_of,
)
from coordinator.rounds.closing import PassLeg
from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.orders import Leg
from coordinator.rounds.planning import NotYet, PlanRound
from coordinator.rounds.preparing import PrepareJob, recipes
from coordinator.rounds.results import CloseRound
from coordinator.rounds.starting import start_of
from coordinator.state import CoordinatorState, with_figures
from sojourn.about import About
from sojourn.errors import Fault, JobError
from sojourn.node.machine import Append, Did, Do, Say, Send, Undo, soonest
from sojourn.parts import name_of
from sojourn.protocol.messages import TourAccepted, TourCancel
from sojourn.protocol.topics import Address
from sojourn.protocol.visit_words import SILENT, TOUR_LATE

if TYPE_CHECKING:
    from coordinator.machine.fleet_watch import FleetWatch
    from coordinator.machine.sites import Sites
    from coordinator.machine.tours import RoundTours
    from coordinator.machine.waiting_jobs import Reach
    from coordinator.mandate_records import JobMandated
    from coordinator.records import JobRecord
    from coordinator.state import JobState
    from sojourn.node.machine import DidNot, Doing, Effect
    from sojourn.protocol.messages import Toured


WORK_AGAIN = 15.0
"""Seconds after which work for which the disk had no room is tried again."""
MEASURE = "measure "
"""What begins the key of a test of a round's model, which is done beside the job's other work."""
FAILED_ROUNDS = 3
"""Rounds in a row without a result after which a job fails."""
REASON = 300
"""Characters of why a model could not be tested."""
_EVENTS: dict[type, str] = {
    JobCompiled: "compiled",
    RoundPlanned: "planned",
    LegPassed: "leg passed",
    RoundClosed: "round closed",
    RoundFailed: "round failed",
    DevicesEstimated: "devices estimated",
}
"""The event that the outcome of a piece of work is."""


class JobQueue:
    """All jobs, and of the one whose turn it is: the step it is at, and how long it has waited."""

    def __init__(
        self,
        sites: Sites,
        tours: RoundTours,
        watch: FleetWatch,
        keep: KeepSettings | None = None,
        mandates: MandateRules | None = None,
    ) -> None:
        self._mandates = mandates or MandateRules()
        self.durable = CoordinatorState()
        self.incomplete: set[str] = set()
        """The jobs of which something is gone from the disk: they cannot go on."""
        self._keep = keep or KeepSettings()
        self.traffic = 0
        """The bytes between the cloud and the sites since the round was planned."""
        self.superseded: set[bytes] = set()
        """The blobs of the round before: should the record of its end be damaged, it is done again from them."""
        self._sites = sites
        self._tours = tours
        self._watch = watch
        self._turn: str | None = None
        """The job that is worked on, or was last."""
        self._steps: dict[str, str] = {}
        """The steps of the jobs that have taken one since the start."""
        self._waiting = WaitingJobs(sites)
        self._reach: Reach = {}
        """Whom the sites reached when a plan was last asked for."""
        self._began = 0.0
        self._latest: Do | None = None
        """The work that was last asked for."""
        self._closed: Did | None = None
        """A round that is closed before the figures of the one before it are there: it waits for them."""
        self._work_again_at: float | None = None
        self._no_room = ""
        """Why the work of the job whose turn it is waits for room on the disk; empty while it does not."""
        self._step_told = ""
        """What the work of the job whose turn it is has said that it is at."""

    @property
    def current(self) -> JobState | None:
        """The job whose turn it is; None if there is none."""
        state = self.durable.jobs.get(self._turn) if self._turn else None
        return state if state and state.status not in ENDED else None

    def step(self, state: JobState) -> str:
        """The step of the table that a job is at."""
        return self._steps.get(state.name) or step_of(state)

    def date(self, now: float) -> float:
        """What a clock on the wall shows now."""
        return self._watch.moment(now)

    def detail(self, state: JobState) -> str:
        """What there is to say of a job besides its status."""
        current = self.current
        now = self._no_room or (self._step_told if self.step(state) == "compiling" else "")
        if now and state is current:
            return now
        if state.status == "queued" and current:
            return f"its turn comes after job {current.name}"
        return state.detail

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
        """Take up the job that was under way: the one whose tours are out, else the oldest."""
        self._began = now
        unfinished = self.durable.unfinished
        out = [state for state in unfinished if state.tours]
        effects = self._take_turn((out or unfinished)[0], now) if unfinished else []
        return [*effects, *(_measure(state) for state in self.durable.jobs.values() if state.unmeasured)]

    def wake_at(self) -> float | None:
        """When a job times out, or planning or work is tried again."""
        waiting = [state.name for state in self.durable.unfinished if self.step(state) == "waiting"]
        return soonest(self._work_again_at, self._waiting.wake_at(waiting, idle=self._idle))

    def woke(self, now: float) -> list[Effect]:
        """End jobs that have waited too long, plan again for those that wait, go on without sites that are lost."""
        effects = self._end_overdue(now)
        if self._latest and self._work_again_at is not None and self._work_again_at <= now:
            self._work_again_at = None
            effects.append(self._latest)
        for number in self._tours.overdue(now):
            state = self.current
            effects += self._lost(state, number, now) if state else []
        return [*effects, *self.reconsider(now)]

    def _end_overdue(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for state in self.durable.unfinished:
            if self.step(state) == "waiting" and self._waiting.is_over(state, now):
                detail = f"waited {state.settings.fleet.timeout:g} s for devices (fleet.timeout): {state.detail}"
                effects += self.end(state, "timeout", detail, now)
        return effects

    # --- whose turn it is

    def go_on(self, state: JobState, text: str, ticket: str, now: float) -> list[Effect]:
        """Give a job other rounds or another target; if it is over, it waits for its turn."""
        if state.status in ENDED:
            self._advance(state, "continue")
        effects: list[Effect] = [self.write(JobContinued(state.name, text, ticket), sync=True)]
        self._waiting.hurry(state.name, now)
        effects.append(Say(f"job {state.name} goes on to round {state.settings.all_rounds}", about=About(state.name)))
        return [*effects, *self.reconsider(now)]

    def remove(self, state: JobState) -> list[Effect]:
        """Forget a job that is over."""
        self._steps.pop(state.name, None)
        self._waiting.forget(state.name)
        record = JobRemoved(state.name, state.strategy.objective.keeps)
        self.durable.apply(record)
        undo = [Undo(f"{MEASURE}{state.name}")] if state.unmeasured else []
        return [Append(record, sync=True), *undo, Say(f"job {state.name} is removed", about=About(state.name))]

    @property
    def _idle(self) -> bool:
        """Whether nothing is under way for any job."""
        state = self.current
        return state is None or self.step(state) in ("waiting", "queued", "unsigned")

    def reconsider(self, now: float) -> list[Effect]:
        """Something may have changed: if nothing is under way, take up the oldest job that may go on now."""
        if not self._idle:
            return []
        state = next((it for it in self.durable.unfinished if self._may_go_on(it, now)), None)
        return self._take_turn(state, now) if state else []

    def _may_go_on(self, state: JobState, now: float) -> bool:
        """Whether a job is worth a try: it does not wait for devices, or may have them now."""
        if self.step(state) == "unsigned":
            return False
        return self.step(state) != "waiting" or self._waiting.may_go_on(state, now)

    def _take_turn(self, state: JobState, now: float) -> list[Effect]:
        self._turn = state.name
        return self._resume(state, now)

    def _next_turn(self, state: JobState, now: float) -> list[Effect]:
        """This job is compiled, or a round of it is closed: an older job that waited and may go on now goes first."""
        if state.why_complete():
            return self._plan_next(state, now)
        older = takewhile(lambda it: it is not state, self.durable.unfinished)
        return self._take_turn(next((it for it in older if self._may_go_on(it, now)), state), now)

    def _resume(self, state: JobState, now: float) -> list[Effect]:
        """Go on with a job after a restart, or when it is its turn."""
        match self.step(state):
            case "queued":
                return self._begin(state, now)
            case "compiling":
                return self._compile(state, now)
            case "touring":
                return self._gather(state, now) if self._tours.gathered(state) else self._tours.ask_all(state, now)
            case "planning next":
                return self._plan_next(state, now)
            case "planning":  # it was compiled, and an older job went first
                return self._plan(state, now)
            case _:
                if (state.failed_rounds or 0) >= FAILED_ROUNDS:
                    return self._end_failed(state, now)
                return self._plan_again(state, now, ask_silent=self._waiting.is_due(state.name, now))

    def _begin(self, state: JobState, now: float) -> list[Effect]:
        self._advance(state, "its turn again" if state.kit else "its turn")
        started = self.write(JobStarted(state.name, self.date(now)))
        return [started, *(self._plan(state, now) if state.kit else self._compile(state, now))]

    def _advance(self, state: JobState, event: str) -> None:
        """Take the step that follows the event."""
        self._steps[state.name] = JOB.step(self.step(state), event)

    def _work(self, state: JobState, work: Any) -> Do:
        self._latest = Do(f"{WORK[self.step(state)]} {state.name}", work)
        return self._latest

    def _compile(self, state: JobState, now: float) -> list[Effect]:
        self._step_told = ""
        try:
            start = start_of(state.settings, self.durable)
        except JobError as error:
            return self.end(state, "work failed", str(error), now)
        work = PrepareJob(state.name, state.text, recipes(self.durable), start)
        return [Say(f"job {state.name}: compiling", about=About(state.name)), self._work(state, work)]

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
        if reason := self._mandates.lacking(self.durable, state, self.date(now)):
            return [*self._wait(state, reason, "signature lacking"), *self.reconsider(now)]
        waited = self._waiting.waited(state.name, now)
        if awaited := self._waiting.gathering(state, now) or self._watch.awaited(self.durable, state, waited, now):
            self._waiting.add(state, now, None, awaited.seconds)  # it keeps its turn meanwhile
            return self._wait(state, awaited.reason)
        self._reach, here = self._waiting.reached(state), self._sites.here()
        gone = {name: it.since for name, it in self.durable.seen.devices.items() if not it.here and name not in here}
        work = PlanRound(
            state.copy(),
            self._reach,
            self._sites.unwilling(name_of(state.strategy.estimator), state.strategy.objective.consent),
            self._waiting.unable(state),
            ask_silent,
            gone,
            () if state.mandate else self._sites.demanding(),
        )
        return [self._work(state, work)]

    def signed(self, state: JobState, record: JobMandated, now: float) -> list[Effect]:
        """An operator signed a job: it goes on with that, if it waited for it."""
        if self.step(state) == "unsigned":
            self._advance(state, "signed")
        said = Say(f"job {state.name} is signed", about=About(state.name))
        return [self.write(record, sync=True), said, *self.reconsider(now)]

    def _wait(self, state: JobState, reason: str, event: str = "devices lacking") -> list[Effect]:
        """Until the sites change, or for a while: a device that gave no answer may have one then."""
        self._advance(state, event)
        if (state.status, state.detail) == ("waiting", reason):
            return []
        waits = Say(f"job {state.name} waits: {reason}", about=About(state.name))
        return [self.write(JobWaits(state.name, reason)), waits]

    def _worked_for(self, key: str) -> JobState | None:
        """The job that this piece of work was done for, if it still waits for it."""
        state = self.current
        verb = WORK.get(self.step(state)) if state else None
        return state if state and verb and key == f"{verb} {state.name}" else None

    def did(self, event: Did, now: float) -> list[Effect]:
        """The work that the job needed is done: take down what came of it, and go on."""
        state, outcome = self._worked_for(event.key), event.outcome
        if isinstance(outcome, RoundMeasured):
            return self._measured(outcome, now)
        if state is None:
            return []
        self._no_room = ""
        if isinstance(outcome, RoundClosed) and state.unmeasured:
            self._closed = event
            return []
        if isinstance(outcome, NotYet):
            self._waiting.add(state, now, self._reach)
            return [*self._wait(state, outcome.reason), *self.reconsider(now)]
        if isinstance(outcome, RoundClosed | RoundFailed | DevicesEstimated):
            outcome = msgspec.structs.replace(outcome, at=self._watch.moment(now))
        if isinstance(outcome, RoundFailed):
            outcome = msgspec.structs.replace(outcome, reason=_why_again(state, outcome))
        told = state.unestimated or ()
        known = {*told, *state.notices, *(state.data_notices or ())}
        self._advance(state, _EVENTS[type(outcome)])
        if isinstance(outcome, RoundClosed):
            keeps = msgspec.structs.replace(
                outcome.keeps or RoundKeeps(), rounds=kept_after(state, outcome.report, self._keep)
            )
            outcome = msgspec.structs.replace(outcome, keeps=keeps)
        written = self.write(outcome, sync=True, blobs=blobs_of(outcome))
        failed = isinstance(outcome, RoundFailed)  # its reason holds all lines
        news = [line for line in state.unestimated or () if line not in told and not failed]
        said = [Say(f"job {state.name}: {line}", "warning", About(state.name)) for line in news]
        if isinstance(outcome, RoundClosed):
            said += mishap_lines(outcome, known)
        return [written, *said, *self._after(state, outcome, now)]

    def _after(self, state: JobState, outcome: JobRecord, now: float) -> list[Effect]:
        """What follows from the outcome of a piece of work."""
        match outcome:
            case JobCompiled():
                said = [Say(f"job {state.name}: compiled and checked", about=About(state.name))]
                return [*said, *self._next_turn(state, now)]
            case RoundPlanned():
                self._began, self.traffic = now, 0
                if outcome.phase == "train":  # devices that are only asked for an estimate do not train
                    self._waiting.begins(state.name)
                about = About(state.name, state.round)
                said = [Say(f"job {state.name}: {line}", "warning", about) for line in outcome.notices]
                return [Say(plan_line(state, outcome), about=about), *said, *self._resume(state, now)]
            case RoundFailed():
                ended = outcomes(state.name, state.round, outcome.visited or ())
                about = About(state.name, state.round)
                said = [*ended, Say(f"job {state.name} waits: {outcome.reason}", "warning", about)]
                if (state.failed_rounds or 0) >= FAILED_ROUNDS:
                    return [*said, *self._end_failed(state, now)]
                self._waiting.retry(state, now, passing=outcome.passing)
                return [*said, *self.reconsider(now)]
            case RoundClosed():
                self._waiting.forget(state.name)
                said = [*outcomes(state.name, outcome.report.round, outcome.visited or ()), closed_line(outcome)]
                effects = [*self._make_room(), *self._next_turn(state, now)]
                if outcome.unmeasured:  # tested after the plan of the next round, which is not to wait for it
                    return [*said, *effects, _measure(state)]
                about = About(state.name, outcome.report.round)
                return [*said, Say(round_line(state, outcome.report), about=about), *effects]
            case DevicesEstimated():
                known = len(outcome.signatures) or len(outcome.weights) or len(outcome.samples)
                ended = outcomes(state.name, state.round, outcome.visited or ())
                said = [Say(f"job {state.name}: {known} devices estimated", about=About(state.name, state.round))]
                return [*ended, *said, *self._plan_next(state, now)]
            case _:
                return self._resume(state, now)

    def _measured(self, outcome: RoundMeasured, now: float) -> list[Effect]:
        """The model of a job's newest round was tested; that the job has ended since does not matter."""
        state = self.durable.jobs.get(outcome.job)
        if state is None or not state.unmeasured or outcome.round != len(state.history):
            return []
        report = with_figures(state.history[-1], outcome)
        kept = kept_after(state, report, self._keep)
        written = self.write(msgspec.structs.replace(outcome, kept=kept), sync=True)
        about = About(state.name, report.round)
        text = f"job {state.name} round {report.round}: {outcome.reason}" if outcome.reason else None
        said = Say(text, "warning", about) if text else Say(round_line(state, report), about=about)
        effects: list[Effect] = [written, said]
        closed = self._closed
        if closed is None or closed.outcome.job != state.name:
            return effects
        self._closed = None
        return [*effects, *self.did(closed, now)]

    def _make_room(self) -> list[Effect]:
        """Let the oldest models of rounds go, where all of them take more room than they may."""
        found = let_go(self.durable.jobs.values(), self._keep)
        return [self.write(RoundsKept(name, rounds)) for name, rounds in found.items()]

    def did_not(self, event: DidNot, now: float) -> list[Effect]:
        """The work that the job needed failed: it is tried again when the disk was full, else the job is refused."""
        if event.key.startswith(MEASURE):
            return self._not_measured(event, now)
        state = self._worked_for(event.key)
        if state is None:
            return []
        if event.reason != "DiskFull":
            return self.end(state, "work failed", event.detail, now)
        self._advance(state, "no room")
        self._work_again_at = now + WORK_AGAIN
        told, self._no_room = self._no_room, event.detail
        return [] if told else [Say(f"job {state.name}: {event.detail}", "error", About(state.name))]

    def _not_measured(self, event: DidNot, now: float) -> list[Effect]:
        """The model of a round could not be tested: the job goes on without its figures."""
        state = self.durable.jobs.get(event.key.removeprefix(MEASURE))
        if state is None:
            return []
        reason = f"its model could not be tested: {event.detail}"[:REASON]
        return self._measured(RoundMeasured(state.name, len(state.history), nan, nan, reason=reason), now)

    def arrived(self, toured: Toured, now: float) -> list[Effect]:
        """A tour's result is here: journal it, accept it, and go on when all are home."""
        state = self.current
        tour = self._tours.plan(state, toured.tour.number) if state else None
        if state is None or tour is None:
            return []
        blobs = tuple(ref.digest for ref in [*toured.vectors.values(), toured.reports])
        record = self.write(TourArrived(state.name, toured), sync=True, blobs=blobs)
        accepted = Send(Address("edge", tour.site), TourAccepted(toured.tour))
        return [record, comes_home(toured, tour.site), accepted, *self._tour_over(state, now)]

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
        settings = state.settings
        # The job may end with this round, or nothing is to be tested; else that need not be waited for.
        measure = state.round >= settings.all_rounds or settings.target is not None or state.test is None
        work = CloseRound(state.copy(), now - self._began, self.traffic, self.date(now), measure)
        return [self._work(state, work)]

    def _lost(self, state: JobState, number: int, now: float) -> list[Effect]:
        """A site gave no sign of life: wait for it, go on without its tour, or give the tour to another site."""
        job = state.settings
        tour = next(t for t in state.tours if t.number == number)
        policy, reason = job.tours.on_lost_site, f"{SILENT} for {job.tours.site_lease:g} s"
        if self._tours.past_deadline(number, now):
            # Its site speaks, and yet it does not end: waiting longer, or asking somebody else, could go on for ever.
            policy, reason = "drop", f"{TOUR_LATE} of {Leg(state, tour.leg).deadline(tour):g} s"
        text = f"job {state.name}: site {tour.site} is lost, {reason}; {policy}"
        lost = Say(text, "warning", state.tour_id(tour).about(site=tour.site))
        self._advance(state, "site lost")
        if policy == "wait":
            return [lost, *self._tours.ask(state, tour, now)]
        self._tours.forget(number)
        moved = self._sites.move(tour, *needs(state)) if policy == "reassign" else None
        if moved:
            return [lost, self.write(TourMoved(state.name, moved), sync=True), *self._tours.ask(state, moved, now)]
        given_up = self.write(TourGivenUp(state.name, number, reason), sync=True)
        return [lost, given_up, *self._tour_over(state, now)]

    def _end_failed(self, state: JobState, now: float) -> list[Effect]:
        detail = f"{state.failed_rounds} attempts at round {state.round} had no result; in the last one, {state.detail}"
        return self.end(state, "rounds failed", detail, now)

    def end(self, state: JobState, event: str, detail: str, now: float) -> list[Effect]:
        """A job is over: what is under way for it is called off, and the next one has its turn. If it was, nothing."""
        before, after = self.step(state), JOB.step(self.step(state), event)
        if before == after:
            return []
        effects: list[Effect] = []
        current = state is self.current
        self._waiting.forget(state.name)
        if current:
            under_way = before in WORK and event == "stop" and self._work_again_at is None
            effects += [Undo(f"{WORK[before]} {state.name}")] if under_way else []
            self._work_again_at, self._no_room, self._closed = None, "", None
            for tour in state.tours:
                self._tours.forget(tour.number)
                if tour.number not in state.arrived:
                    effects.append(Send(Address("edge", tour.site), TourCancel(state.tour_id(tour))))
        self._advance(state, event)
        record = JobEnded(state.name, STATUS[after], detail[:20_000], self.date(now))
        said = Say(f"job {state.name} is {STATUS[after]}: {detail}", about=About(state.name))
        effects += [self.write(record, sync=True), said]
        return [*effects, *self.reconsider(now)]


def _why_again(state: JobState, failed: RoundFailed) -> str:
    """Why a job waits after a round without a result, and until when."""
    attempt, text = (state.failed_rounds or 0) + 1, f"every device declines for now: {failed.reason}"
    if not failed.passing:
        if attempt >= FAILED_ROUNDS:
            return failed.reason
        text = f"attempt {attempt} of {FAILED_ROUNDS} at round {state.round} had no result: {failed.reason}"
    return f"{text}. The next attempt starts in {PLAN_AGAIN:g} s, or when another device connects"


def _measure(state: JobState) -> Do:
    """Have the model of a job's newest round tested: it keeps nothing but the figures."""
    return Do(f"{MEASURE}{state.name}", MeasureRound.newest(state), keeps=False)
