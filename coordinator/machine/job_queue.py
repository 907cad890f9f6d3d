"""The queue of jobs. The first is taken from step to step: compiled, planned, sent out as tours, gathered, ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.machine.tour_messages import blobs_of, copy_of, ending, settings_of, told_plan, told_round
from coordinator.records import (
    CoordinatorState,
    DevicesEstimated,
    JobCompiled,
    JobEnded,
    JobStarted,
    JobWaits,
    RoundClosed,
    RoundPlanned,
    TourArrived,
    TourGivenUp,
    TourMoved,
)
from coordinator.rounds.closing import PassLeg
from coordinator.rounds.planning import NotYet, PlanRound
from coordinator.rounds.preparing import PrepareJob, recipes
from coordinator.rounds.results import CloseRound
from sojourn.node.machine import Append, Do, Say, Send, Undo, soonest
from sojourn.parts import name_of
from sojourn.protocol.messages import TourAccepted, TourCancel
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from coordinator.machine.sites import Sites
    from coordinator.machine.tours import Tours
    from coordinator.records import JobState, Record
    from sojourn.node.machine import Did, DidNot, Effect
    from sojourn.protocol.messages import Toured
    from sojourn.protocol.wire import JobStatus


PLAN_AGAIN = 60.0
"""Seconds after which a job that waits is planned again, if nothing happens before."""


class JobQueue:
    """All jobs, and of the one whose turn it is: the work that is under way, and how long it has waited."""

    def __init__(self, sites: Sites, tours: Tours) -> None:
        self.state = CoordinatorState()
        self.traffic = 0
        """The bytes between the cloud and the sites since the round was planned."""
        self._sites = sites
        self._tours = tours
        self._working: str | None = None
        self._reach: dict[str, tuple[str, ...]] = {}
        """What the sites reached when planning was last tried."""
        self._began = 0.0
        self._waiting_since: float | None = None
        self._plan_again_at: float | None = None

    def write(self, record: Record, *, sync: bool = False, blobs: tuple[bytes, ...] = ()) -> Append:
        """Change the durable state; the record must be in the journal before anything else leaves."""
        self.state.apply(record)
        return Append(record, sync=sync, blobs=blobs)

    def start(self, now: float) -> list[Effect]:
        """Take up the job that was under way."""
        self._began = now
        job = self.state.current
        return self._advance(job, now) if job else []

    def wake_at(self) -> float | None:
        """When patience ends, or planning is tried again."""
        return soonest(self._patience_ends(), self._plan_again_at)

    def woke(self, now: float) -> list[Effect]:
        """End a job that has waited too long, plan again for one that waits, go on without sites that are lost."""
        effects: list[Effect] = []
        job = self.state.current
        ends = self._patience_ends()
        if job and ends is not None and ends <= now:
            return self.end(job, "refused", f"nobody came: {job.detail}", now)
        if self._plan_again_at is not None and self._plan_again_at <= now:
            self._plan_again_at = None
            if job and job.status == "waiting" and not self._working:
                effects += self._plan(job, now, again=True)
        for number in self._tours.overdue(now):
            effects += self._lost(job, number, now) if job else []
        return effects

    def _patience_ends(self) -> float | None:
        job = self.state.current
        if self._waiting_since is None or job is None:
            return None
        patience = settings_of(job.text).fleet.patience
        return self._waiting_since + patience if patience else None

    def advance(self, name: str, now: float) -> list[Effect]:
        """Go on with a job, if it is its turn."""
        job = self.state.current
        return self._advance(job, now) if job and job.name == name else []

    def _advance(self, job: JobState, now: float) -> list[Effect]:
        """Do the next thing that the job needs."""
        if self._working:
            return []
        if job.status == "queued":
            return [self.write(JobStarted(job.name)), *self._advance(job, now)]
        if job.status == "compiling":
            self._waiting_since = None
            said = Say(f"job {job.name}: compiling")
            return [said, *self._do(f"prepare {job.name}", PrepareJob(job.name, job.text, recipes(self.state)))]
        if job.tours:
            return self._gather(job, now) if self._tours.gathered(job) else self._tours.ask_all(job, now)
        return self._plan(job, now)

    def _do(self, key: str, work: Any) -> list[Effect]:
        self._working = key
        return [Do(key, work)]

    def _plan(self, job: JobState, now: float, *, again: bool = False) -> list[Effect]:
        if not job.history and (unread := self._sites.unread()):
            # What is arranged once would leave out a site that is just coming up.
            return self._wait(job, f"{unread[0]} has not said yet which devices it has", now)
        self._reach, self._plan_again_at = self._reached(job), None
        asks = name_of(settings_of(job.text).parts().estimator)
        unable = self._sites.count() - len(set().union(*self._reach.values()))
        work = PlanRound(copy_of(job), self._reach, self._sites.unwilling(asks), unable, again)
        return self._do(f"plan {job.name}", work)

    def _gather(self, job: JobState, now: float) -> list[Effect]:
        """All tours that were out are home: the next leg departs, or the round closes."""
        if not job.last_leg:
            return self._do(f"pass {job.name}", PassLeg(copy_of(job)))
        return self._do(f"close {job.name}", CloseRound(copy_of(job), now - self._began, self.traffic))

    def did(self, event: Did, now: float) -> list[Effect]:
        """The work that the job needed is done: take down what came of it, and go on."""
        if event.key != self._working:
            return []
        self._working = None
        outcome = event.outcome
        if isinstance(outcome, NotYet):
            return self._not_yet(outcome.reason, now)
        job = self.state.jobs[outcome.job]
        effects: list[Effect] = [self.write(outcome, sync=True, blobs=blobs_of(outcome))]
        match outcome:
            case RoundPlanned():
                self._began, self.traffic, self._waiting_since = now, 0, None
                self._plan_again_at = None
                effects.append(Say(told_plan(job, outcome)))
            case RoundClosed():
                effects.append(Say(told_round(job, outcome)))
                settings = settings_of(job.text)
                if reason := ending(job, settings):
                    return [*effects, *self.end(job, "done", reason, now)]
            case DevicesEstimated():
                effects += [Say(f"job {job.name}: {line}", "warning") for line in outcome.failures]
                effects.append(Say(f"job {job.name}: {len(outcome.signatures)} devices estimated"))
            case JobCompiled():
                effects.append(Say(f"job {job.name}: compiled and checked"))
        return [*effects, *self._advance(job, now)]

    def did_not(self, event: DidNot, now: float) -> list[Effect]:
        """The work that the job needed failed: the job cannot be done."""
        if event.key != self._working:
            return []
        self._working = None
        job = self.state.jobs[event.key.partition(" ")[2]]
        return self.end(job, "refused", event.detail, now)

    def _not_yet(self, reason: str, now: float) -> list[Effect]:
        job = self.state.current
        return [*self._wait(job, reason, now), *self.reconsider(now)] if job else []

    def _wait(self, job: JobState, reason: str, now: float) -> list[Effect]:
        """Until the sites change, or for a while: a device that gave no answer may have one then."""
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self._plan_again_at = now + PLAN_AGAIN
        if (job.status, job.detail) == ("waiting", reason):
            return []
        return [self.write(JobWaits(job.name, reason)), Say(f"job {job.name} waits: {reason}")]

    def reconsider(self, now: float) -> list[Effect]:
        """The sites may have changed: a job that waits for devices may have them now."""
        job = self.state.current
        waits = job is not None and job.status == "waiting" and not self._working
        return self._plan(job, now) if job and waits and self._reached(job) != self._reach else []

    def _reached(self, job: JobState) -> dict[str, tuple[str, ...]]:
        """The devices that can do the job, by site."""
        return self._sites.reach(name_of(settings_of(job.text).parts().objective))

    def arrived(self, toured: Toured, now: float) -> list[Effect]:
        """A tour's result is here: journal it, accept it, and go on when all are home."""
        job = self.state.current
        tour = self._tours.plan(job, toured.tour.number) if job else None
        if job is None or tour is None:
            return []
        blobs = tuple(ref.digest for ref in [*toured.vectors.values(), toured.reports])
        record = self.write(TourArrived(job.name, toured), sync=True, blobs=blobs)
        accepted = Send(Address("edge", tour.site), TourAccepted(toured.tour))
        return [record, accepted, *self._go_on_when_gathered(job, now)]

    def _go_on_when_gathered(self, job: JobState, now: float) -> list[Effect]:
        return self._advance(job, now) if self._tours.gathered(job) else []

    def _lost(self, job: JobState, number: int, now: float) -> list[Effect]:
        """A site gave no sign of life: wait for it, go on without its tour, or give the tour to another site."""
        settings = settings_of(job.text)
        tour = next(t for t in job.tours if t.number == number)
        policy, reason = settings.tours.on_lost_site, f"no sign of life for {settings.tours.site_lease:g} s"
        said = Say(f"job {job.name}: site {tour.site} is lost, {reason}; {policy}", "warning")
        if policy == "wait":
            return [said, *self._tours.ask(job, tour, now)]
        self._tours.forget(number)
        moved = self._sites.move(tour) if policy == "reassign" else None
        if moved:
            return [said, self.write(TourMoved(job.name, moved), sync=True), *self._tours.ask(job, moved, now)]
        given_up = self.write(TourGivenUp(job.name, number, reason), sync=True)
        return [said, given_up, *self._go_on_when_gathered(job, now)]

    def end(self, job: JobState, status: JobStatus, detail: str, now: float) -> list[Effect]:
        """A job is over: what is under way for it is called off, and the next one has its turn."""
        effects: list[Effect] = []
        current = job is self.state.current
        if current:
            effects += [Undo(self._working)] if self._working else []
            self._working, self._waiting_since, self._plan_again_at = None, None, None
            for tour in job.tours:
                self._tours.forget(tour.number)
                if tour.number not in job.arrived:
                    effects.append(Send(Address("edge", tour.site), TourCancel(job.tour_id(tour))))
        record = JobEnded(job.name, status, detail[:20_000])
        effects += [self.write(record, sync=True), Say(f"job {job.name} is {status}: {detail}")]
        following = self.state.current if current else None
        return [*effects, *(self._advance(following, now) if following else [])]
