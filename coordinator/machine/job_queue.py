"""The queue of jobs: each is compiled, planned, sent out as tours, gathered and ended, one job at a time.

The oldest job that can continue has its turn. While it waits for devices, the next one runs; the older job may continue
when a round of that job is closed. Each change of a job is a row of `job_table.JOB`. `finished_work` applies the
outcomes of a job's work.
"""

from __future__ import annotations

from itertools import takewhile

from coordinator.job_state import JobState
from coordinator.machine.fleet_view import FleetWatch
from coordinator.machine.job_log import log_tour_complete
from coordinator.machine.job_table import ENDS, JOB, JobEvent, JobStep, step_of
from coordinator.machine.job_work import MEASURE, JobWork, measure
from coordinator.machine.mandates import MandateRules
from coordinator.machine.sites import Sites
from coordinator.machine.tours import RoundTours
from coordinator.machine.waiting_jobs import Reach, WaitingJobs, needs
from coordinator.records import (
    ENDED,
    JobContinued,
    JobEnded,
    JobMandated,
    JobRecord,
    JobRemoved,
    JobStarted,
    JobWaits,
    RoundClosed,
    RoundPlanned,
    TourArrived,
    TourGivenUp,
    TourMoved,
)
from coordinator.rounds.closing import PassLeg
from coordinator.rounds.orders import Leg
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob, recipes
from coordinator.rounds.results import CloseRound
from coordinator.rounds.starting import start_of
from coordinator.state import CoordinatorState
from sojourn.errors import JobError
from sojourn.logs import About
from sojourn.node.machine import Append, CancelWork, Effect, Log, Send, earliest
from sojourn.parts import name_of
from sojourn.protocol.messages import TourAccepted, TourCancel, Toured
from sojourn.protocol.topics import Address
from sojourn.protocol.visit_outcomes import SILENT, TOUR_LATE

FAILED_ROUNDS = 3
"""Consecutive rounds without a result after which a job fails."""
_OVER = {
    JobStep.TOURING: JobEvent.TOUR_OVER,
    JobStep.PASSING: JobEvent.LEG_OVER,
    JobStep.CLOSING: JobEvent.ALL_OVER,
}
"""The event of a tour's end, by the step that follows from it."""


class JobQueue:
    """All jobs, and the work for the one whose turn it is."""

    def __init__(self, sites: Sites, tours: RoundTours, watch: FleetWatch, mandates: MandateRules) -> None:
        self._mandates = mandates
        self.durable = CoordinatorState()
        self.incomplete: set[str] = set()
        """Jobs that cannot continue because their files are missing from the disk."""
        self.traffic = 0
        """The bytes between the cloud and the sites since the round was planned."""
        self.superseded: set[bytes] = set()
        """The blobs of the previous round: if the record of its end is damaged, the round is closed again from them."""
        self._sites = sites
        self._tours = tours
        self._watch = watch
        self._turn: str | None = None
        """The current job, or the last one."""
        self.work = JobWork()
        """The work in progress for that job."""
        self.waiting = WaitingJobs(sites)
        self._reach: Reach = {}
        """The devices that the sites reached when a plan was last requested."""
        self._began = 0.0

    @property
    def current(self) -> JobState | None:
        """The job whose turn it is; None if there is none."""
        state = self.durable.jobs.get(self._turn) if self._turn else None
        return state if state and state.status not in ENDED else None

    def step(self, state: JobState) -> JobStep:
        """Return the job's step in the table."""
        gathered = self._tours.gathered(state) if state.tours and state is self.current else state.gathered
        return step_of(state, gathered=gathered)

    def date(self, now: float) -> float:
        """Return `now` in seconds since 1970."""
        return self._watch.moment(now)

    def detail(self, state: JobState) -> str:
        """Return details about a job in addition to its status."""
        current = self.current
        now = self.work.no_room or (self.work.progress if self.step(state) is JobStep.COMPILING else "")
        if now and state is current:
            return now
        if state.status == "queued" and current:
            return f"its turn comes after job {current.name}"
        return state.detail

    def write(
        self, record: JobRecord, event: JobEvent | None = None, *, sync: bool = False, blobs: tuple[bytes, ...] = ()
    ) -> Append:
        """Change the durable state; the record must be in the journal before anything else is sent.

        event: the job's event, which its current step must accept; None for a record that changes no step.
        """
        before = self.durable.jobs.get(record.job)
        if before and event:
            JOB.step(self.step(before), event)
        if isinstance(record, RoundClosed | JobEnded):
            self.superseded = before.live() if before and isinstance(record, RoundClosed) else set()
        self.durable.apply(record)
        return Append(record, sync=sync, blobs=blobs)

    def start(self, now: float) -> list[Effect]:
        """Resume the job that was in progress: the one whose tours are out, otherwise the oldest."""
        self._began = now
        unfinished = self.durable.unfinished
        effects: list[Effect] = []
        for state in unfinished:
            if self.step(state) is JobStep.UNSIGNED and not self._missing_signature(state, now):
                effects += self._wait(state, "a signature is no longer required", JobEvent.SIGNED)
        out = next((state for state in unfinished if state.tours), None)
        effects += self._take_turn(out, now) if out else self.reconsider(now)
        return [*effects, *(measure(state) for state in self.durable.jobs.values() if state.evaluation_pending)]

    def wake_at(self) -> float | None:
        """When a job times out, or planning or work is retried."""
        waiting = [state.name for state in self.durable.unfinished if self._waits(state)]
        return earliest(self.work.wake_at(), self.waiting.wake_at(waiting, idle=self._idle))

    def woke(self, now: float) -> list[Effect]:
        """End jobs that have waited too long, plan again for those that wait, continue without lost sites."""
        effects = [*self._end_overdue(now), *self.work.due(now)]
        for number in self._tours.overdue(now):
            state = self.current
            effects += self._lost(state, number, now) if state else []
        return [*effects, *self.reconsider(now)]

    def _waits(self, state: JobState) -> bool:
        """Return whether a job waits for devices and no round is being planned for it."""
        return self.step(state) is JobStep.WAITING and not self.work.is_for(state.name)

    def _end_overdue(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for state in self.durable.unfinished:
            if self._waits(state) and self.waiting.is_over(state, now):
                detail = f"waited {state.settings.fleet.timeout:g} s for devices (fleet.timeout): {state.detail}"
                effects += self.end(state, JobEvent.TIMEOUT, detail, now)
        return effects

    # --- turns

    def continue_job(self, state: JobState, text: str, ticket: str, now: float) -> list[Effect]:
        """Give a job other rounds or another target; if it is over, it waits for its turn."""
        event = JobEvent.CONTINUE if state.status in ENDED else None
        effects: list[Effect] = [self.write(JobContinued(state.name, text, ticket), event, sync=True)]
        self.waiting.retry_now(state.name, now)
        effects.append(Log(f"job {state.name} continues to round {state.settings.all_rounds}", about=About(state.name)))
        return [*effects, *self.reconsider(now)]

    def remove(self, state: JobState) -> list[Effect]:
        """Forget a job that is over."""
        self.waiting.forget(state.name)
        record = JobRemoved(state.name, state.strategy.objective.keeps)
        self.durable.apply(record)
        undo = [CancelWork(f"{MEASURE}{state.name}")] if state.evaluation_pending else []
        return [Append(record, sync=True), *undo, Log(f"job {state.name} is removed", about=About(state.name))]

    @property
    def _idle(self) -> bool:
        """Whether no job has work in progress."""
        state = self.current
        resting = (JobStep.QUEUED, JobStep.WAITING, JobStep.UNSIGNED)
        return state is None or (self.step(state) in resting and not self.work.under_way)

    def reconsider(self, now: float) -> list[Effect]:
        """If nothing is in progress, continue the oldest job that can continue now."""
        if not self._idle:
            return []
        state = next((it for it in self.durable.unfinished if self._can_continue(it, now)), None)
        return self._take_turn(state, now) if state else []

    def _can_continue(self, state: JobState, now: float) -> bool:
        """Return whether a job can be tried: it waits for nothing, or may have its devices or signature now."""
        match self.step(state):
            case JobStep.UNSIGNED:
                return False
            case JobStep.WAITING:
                return self.waiting.can_continue(state, now)
            case _:
                return True

    def _take_turn(self, state: JobState, now: float) -> list[Effect]:
        self._turn = state.name
        return self.resume(state, now)

    def next_turn(self, state: JobState, now: float) -> list[Effect]:
        """After a job is compiled or closed a round, continue an older job first if it can continue now."""
        if state.completion_reason():
            return self.resume(state, now)
        older = takewhile(lambda it: it is not state, self.durable.unfinished)
        return self._take_turn(next((it for it in older if self._can_continue(it, now)), state), now)

    def resume(self, state: JobState, now: float) -> list[Effect]:
        """Start the work of the job's step: after an event, after a restart, or when it is the job's turn."""
        match self.step(state):
            case JobStep.QUEUED:
                event = JobEvent.ITS_TURN_AGAIN if state.kit else JobEvent.ITS_TURN
                return [self.write(JobStarted(state.name, self.date(now)), event), *self.resume(state, now)]
            case JobStep.COMPILING:
                return self._compile(state, now)
            case JobStep.WAITING:
                if state.failed_rounds >= FAILED_ROUNDS:
                    return self._end_failed(state, now)
                return self._plan(state, now, ask_silent=self.waiting.is_due(state.name, now))
            case JobStep.PLANNING:
                if reason := state.completion_reason():
                    return self.end(state, JobEvent.COMPLETE, reason, now)
                return self._plan(state, now)
            case JobStep.TOURING:
                return self._tours.ask_all(state, now)
            case JobStep.PASSING:
                return [self.work.start("pass", state.name, PassLeg(state.copy()))]
            case JobStep.CLOSING:
                return [self.work.start("close", state.name, self._closing(state, now))]
            case _:
                return []

    def _compile(self, state: JobState, now: float) -> list[Effect]:
        try:
            start = start_of(state.settings, self.durable)
        except JobError as error:
            return self.end(state, JobEvent.WORK_FAILED, str(error), now)
        work = PrepareJob(state.name, state.text, recipes(self.durable), start)
        compiling = Log(f"job {state.name}: compiling", about=About(state.name))
        return [compiling, self.work.start("prepare", state.name, work)]

    def _plan(self, state: JobState, now: float, *, ask_silent: bool = False) -> list[Effect]:
        """Plan a round; with `ask_silent`, include devices that did not answer before."""
        if reason := self._missing_signature(state, now):
            return [*self._wait(state, reason, JobEvent.SIGNATURE_MISSING), *self.reconsider(now)]
        waited = self.waiting.waited(state.name, now)
        if awaited := self.waiting.gathering(state, now) or self._watch.awaited(self.durable, state, waited, now):
            self.waiting.add(state, now, None, awaited.seconds)  # it keeps its turn in the meantime
            return self._wait(state, awaited.reason)
        self._reach, here = self.waiting.reached(state), self._sites.here()
        offline = {
            name: it.since for name, it in self.durable.seen.devices.items() if not it.online and name not in here
        }
        work = PlanRound(
            state.copy(),
            self._reach,
            self._sites.unwilling(name_of(state.strategy.estimator), state.strategy.objective.consent),
            self.waiting.unable(state),
            ask_silent,
            offline,
            () if state.mandate else self._sites.requiring_signature(),
        )
        return [self.work.start("plan", state.name, work)]

    def not_planned(self, state: JobState, reason: str, now: float) -> list[Effect]:
        """The devices that were online when the plan was requested are not enough."""
        self.waiting.add(state, now, self._reach)
        return [*self._wait(state, reason), *self.reconsider(now)]

    def planned(self, state: JobState, plan: RoundPlanned, now: float) -> list[Effect]:
        """Send the tours of a planned round."""
        self._began, self.traffic = now, 0
        if plan.phase == "train":  # an estimation trains no device
            self.waiting.begins(state.name)
        return self.resume(state, now)

    def round_failed(self, state: JobState, now: float, *, passing: bool) -> list[Effect]:
        """A round had no result: plan it again later, unless too many consecutive rounds had none."""
        if state.failed_rounds >= FAILED_ROUNDS:
            return self._end_failed(state, now)
        self.waiting.retry(state, now, passing=passing)
        return self.reconsider(now)

    def _missing_signature(self, state: JobState, now: float) -> str | None:
        return self._mandates.missing_signature(self.durable, state, self.date(now))

    def signed(self, state: JobState, record: JobMandated, now: float) -> list[Effect]:
        """Continue a job that waited for a signature with the mandate that an operator signed."""
        event = JobEvent.SIGNED if self.step(state) is JobStep.UNSIGNED else None
        line = Log(f"job {state.name} is signed", about=About(state.name))
        return [self.write(record, event, sync=True), line, *self.reconsider(now)]

    def _wait(self, state: JobState, reason: str, event: JobEvent = JobEvent.DEVICES_MISSING) -> list[Effect]:
        """Make a job wait until the sites change, or for a while, since a silent device may answer then."""
        record = JobWaits(state.name, reason, unsigned=event is JobEvent.SIGNATURE_MISSING)
        if (state.status, state.detail, state.unsigned) == ("waiting", reason, record.unsigned):
            return []
        waits = Log(f"job {state.name} waits: {reason}", about=About(state.name))
        return [self.write(record, event), waits]

    def arrived(self, toured: Toured, now: float) -> list[Effect]:
        """Journal a tour's result, accept it, and continue once all tours are complete."""
        state = self.current
        tour = self._tours.plan(state, toured.tour.number) if state else None
        if state is None or tour is None:
            return []
        blobs = tuple(ref.digest for ref in [*toured.vectors.values(), toured.reports])
        written, following = self._tour_over(state, TourArrived(state.name, toured), blobs, now)
        accepted = Send(Address("edge", tour.site), TourAccepted(toured.tour))
        return [written, log_tour_complete(toured, tour.site), accepted, *following]

    def _tour_over(
        self, state: JobState, record: TourArrived | TourGivenUp, blobs: tuple[bytes, ...], now: float
    ) -> tuple[Append, list[Effect]]:
        """Record that a tour is complete or was given up, and continue if it was the last one out."""
        before = self.step(state)
        written = self.write(record, sync=True, blobs=blobs)
        after = self.step(state)
        JOB.step(before, _OVER[after])
        return written, self.resume(state, now) if after is not JobStep.TOURING else []

    def _closing(self, state: JobState, now: float) -> CloseRound:
        """Return the work of closing the round; all of its tours are complete."""
        settings = state.settings
        # Test now if the job may end with this round or nothing is to be tested; otherwise the test can wait.
        measured = state.round >= settings.all_rounds or settings.target is not None or state.test is None
        return CloseRound(state.copy(), now - self._began, self.traffic, self.date(now), measured)

    def _lost(self, state: JobState, number: int, now: float) -> list[Effect]:
        """Handle a lost site: wait for it, continue without its tour, or give the tour to another site."""
        job = state.settings
        tour = next(t for t in state.tours if t.number == number)
        policy, reason = job.tours.on_lost_site, f"{SILENT} for {job.tours.site_lease:g} s"
        if self._tours.past_deadline(number, now):
            # Its site is alive, and yet the tour does not end: waiting or moving the tour could repeat for ever.
            policy, reason = "drop", f"{TOUR_LATE} of {Leg(state, tour.leg).deadline(tour):g} s"
        text = f"job {state.name}: site {tour.site} is lost, {reason}; {policy}"
        lost = Log(text, "warning", state.tour_id(tour).about(site=tour.site))
        JOB.step(self.step(state), JobEvent.SITE_LOST)
        if policy == "wait":
            return [lost, *self._tours.ask(state, tour, now)]
        self._tours.forget(number)
        moved = self._sites.move(tour, *needs(state)) if policy == "reassign" else None
        if moved:
            return [lost, self.write(TourMoved(state.name, moved), sync=True), *self._tours.ask(state, moved, now)]
        given_up, following = self._tour_over(state, TourGivenUp(state.name, number, reason), (), now)
        return [lost, given_up, *following]

    def _end_failed(self, state: JobState, now: float) -> list[Effect]:
        detail = f"{state.failed_rounds} attempts at round {state.round} had no result; in the last one, {state.detail}"
        return self.end(state, JobEvent.ROUNDS_FAILED, detail, now)

    def end(self, state: JobState, event: JobEvent, detail: str, now: float) -> list[Effect]:
        """End a job: cancel its work and start the next one. Does nothing if the job is already over."""
        before, after = self.step(state), JOB.step(self.step(state), event)
        if before == after:
            return []
        effects: list[Effect] = []
        self.waiting.forget(state.name)
        if state is self.current:
            effects += self.work.cancel()
            for tour in state.tours:
                self._tours.forget(tour.number)
                if tour.number not in state.arrived:
                    effects.append(Send(Address("edge", tour.site), TourCancel(state.tour_id(tour))))
        ended = self.write(JobEnded(state.name, ENDS[after], detail[:20_000], self.date(now)), event, sync=True)
        line = Log(f"job {state.name} is {after}: {detail}", about=About(state.name))
        return [*effects, ended, line, *self.reconsider(now)]
