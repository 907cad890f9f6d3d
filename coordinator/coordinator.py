"""The coordinator: queues jobs, plans rounds, hands tours to sites, and makes the next model of what comes back.

A machine without I/O (`sojourn.machine`). It knows nothing of strategies: planning and closing a round is work that it
has done. One job is worked on at a time; the others wait. What is durable changes only in `apply`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.bench import ExportModel, ModelExported
from coordinator.closing import PassLeg
from coordinator.coordinator_records import (
    ENDED,
    CoordinatorState,
    DevicesEstimated,
    JobCompiled,
    JobEnded,
    JobStarted,
    JobState,
    JobSubmitted,
    JobWaits,
    Record,
    RoundClosed,
    RoundPlanned,
    TourArrived,
    TourGivenUp,
    TourMoved,
    TourPlan,
)  # fmt: skip
from coordinator.desk import Desk
from coordinator.itinerary import blobs_of, copy_of, ending, settings_of, told_plan, told_round
from coordinator.job import read_job
from coordinator.planning import NotYet, PlanRound
from coordinator.preparing import PrepareJob, recipes
from coordinator.results import CloseRound
from coordinator.sites import RosterRead, Sites
from coordinator.tours import Tours
from sojourn.errors import SojournError
from sojourn.machine import (
    Append,
    Did,
    DidNot,
    Do,
    Linked,
    Present,
    Pulled,
    PullFailed,
    Received,
    Say,
    Send,
    Undo,
    Woke,
    soonest,
)  # fmt: skip
from sojourn.messages import (
    Birth,
    Export,
    Inspect,
    Refused,
    Roster,
    RosterAsk,
    Stop,
    Submit,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Toured,
    TourProgress,
)  # fmt: skip
from sojourn.outbox import Outbox
from sojourn.parts import name_of
from sojourn.topics import Address

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sojourn.machine import Effect, Event
    from sojourn.messages import Jobs, Message
    from sojourn.topics import Role
    from sojourn.wire import Epoch, JobStatus, Offer, TourId


PLAN_AGAIN = 60.0
"""Seconds after which a job that waits is planned again, if nothing happens before."""


class Coordinator:
    """The state machine of the cloud."""

    def __init__(self, name: str, operators: frozenset[str] = frozenset({"operator"})) -> None:
        self.address = Address("cloud", name)
        self.offer: Offer | None = None
        self.watches: tuple[Role, ...] = ("edge",)
        self.record_form: Any = Record
        self.state = CoordinatorState()
        self.sites = Sites()
        self._operators = operators
        self._desk = Desk()
        self._outbox = Outbox()
        self._working: str | None = None
        self._reach: dict[str, tuple[str, ...]] = {}
        """What the sites reached when planning was last tried."""
        self._tours = Tours(self._outbox)
        self._began = 0.0
        self._waiting_since: float | None = None
        self._plan_again_at: float | None = None
        self._traffic = 0

    def role_of(self, sender: str) -> Role | None:
        """Operators are known by name and speak as the cloud does; everybody else who may write here is an edge."""
        return "cloud" if sender in self._operators else "edge"

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""
        self.state = msgspec.msgpack.decode(snapshot, type=CoordinatorState)

    def snapshot(self) -> bytes:
        """The durable state."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    def live(self) -> AbstractSet[bytes]:
        """All that a job, a result on its way, a roster or an export refers to."""
        live = self.sites.live() | self._desk.exported | self._tours.live()
        return live.union(*(job.live() for job in self.state.jobs.values()))

    def heard(self, peer: Address, traffic: int, now: float, *, spoke: bool) -> None:
        """Count the bytes between the cloud and the sites; a site that sends its result is alive."""
        if peer.role != "edge":
            return
        self._traffic += traffic
        if spoke and (job := self.state.current):
            self._tours.heard_from(job, peer.name, now)

    def wake_at(self) -> float | None:
        """The next resend, lease or end of patience."""
        return soonest(self._outbox.wake_at(), self._tours.wake_at(), self._patience_ends(), self._plan_again_at)

    def start(self, now: float) -> list[Effect]:
        """Take up the job that was under way."""
        self._began = now
        job = self.state.current
        return self._advance(job, now) if job else []

    def handle(self, event: Event, now: float) -> list[Effect]:
        """React."""
        match event:
            case Received():
                return self._receive(event.sender, event.epoch, event.message, now)
            case Present():
                return self._present(event, now)
            case Pulled():
                return self._pulled(event.digest, now)
            case PullFailed():
                return self._pull_failed(event)
            case Did():
                return self._did(event, now)
            case DidNot():
                return self._did_not(event, now)
            case Linked():
                return [*self._outbox.hasten(now)]
            case Woke():
                return self._woke(now)
            case _:
                return []

    def _receive(self, sender: Address, epoch: Epoch, message: Message, now: float) -> list[Effect]:
        match message:
            case Roster():
                self._outbox.settle(("roster", sender.name))
                return self.sites.roster(sender, epoch, message)
            case TourProgress():
                return self._progress(sender, message, now)
            case Toured():
                return self._toured(sender, message)
            case Submit():
                return self._submit(sender, message, now)
            case Inspect():
                return [Send(sender, self._tell(message))]
            case Stop():
                return self._stop(sender, message, now)
            case Export():
                return self._export(sender, message)
            case _:
                return []

    # --- what operators ask

    def _submit(self, operator: Address, message: Submit, now: float) -> list[Effect]:
        try:
            job = read_job(message.job, "the job")
        except SojournError as error:
            return [Send(operator, Refused(message.ticket, str(error)))]
        known = self.state.jobs.get(job.name)
        if known and known.ticket != message.ticket:
            reason = f"there is a job {job.name!r} already ({known.status}); give this one another name"
            return [Send(operator, Refused(message.ticket, reason))]
        if known:  # asked again
            return [Send(operator, self._tell(Inspect(message.ticket, job.name)))]
        record = JobSubmitted(job.name, message.job, message.ticket)
        self.apply(record)
        answer = Send(operator, self._tell(Inspect(message.ticket, job.name)))
        effects: list[Effect] = [Append(record, sync=True), answer, Say(f"job {job.name} submitted")]
        return [*effects, *self._advance_if_current(job.name, now)]

    def _stop(self, operator: Address, message: Stop, now: float) -> list[Effect]:
        job = self.state.jobs.get(message.job)
        if job is None:
            return [Send(operator, self._tell(Inspect(message.ticket, message.job)))]
        effects = [] if job.status in ENDED else self._end(job, "stopped", "stopped by an operator", now)
        return [*effects, Send(operator, self._tell(Inspect(message.ticket, message.job)))]

    def _export(self, operator: Address, message: Export) -> list[Effect]:
        if said := self._desk.told(message.ticket):
            return [Send(operator, said)]
        job = self.state.jobs.get(message.job)
        if job is None:
            return [Send(operator, self._tell(Inspect(message.ticket, message.job)))]
        if job.kit is None:
            reason = f"job {job.name!r} is {job.status}: it has no model yet"
            return [Send(operator, Refused(message.ticket, reason))]
        return self._desk.begin(ExportModel(message.ticket, operator.name, copy_of(job)))

    def _tell(self, message: Inspect) -> Jobs | Refused:
        return self._desk.tell(message, self.state, self.sites, self._tours.progress)

    # --- the course of a job

    def _advance_if_current(self, name: str, now: float) -> list[Effect]:
        job = self.state.current
        return self._advance(job, now) if job and job.name == name else []

    def _advance(self, job: JobState, now: float) -> list[Effect]:
        """Do the next thing that the job needs."""
        if self._working:
            return []
        if job.status == "queued":
            record = JobStarted(job.name)
            self.apply(record)
            return [Append(record), *self._advance(job, now)]
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
        if not job.history and (unread := self.sites.unread()):
            # What is arranged once would leave out a site that is just coming up.
            return self._wait(job, f"{unread[0]} has not said yet which devices it has", now)
        self._reach, self._plan_again_at = self._reached(job), None
        asks = name_of(settings_of(job.text).parts().estimator)
        unable = self.sites.count() - len(set().union(*self._reach.values()))
        work = PlanRound(copy_of(job), self._reach, self.sites.unwilling(asks), unable, again)
        return self._do(f"plan {job.name}", work)

    def _gather(self, job: JobState, now: float) -> list[Effect]:
        """All tours that were out are home: the next leg departs, or the round closes."""
        if not job.last_leg:
            return self._do(f"pass {job.name}", PassLeg(copy_of(job)))
        return self._do(f"close {job.name}", CloseRound(copy_of(job), now - self._began, self._traffic))

    def _did(self, event: Did, now: float) -> list[Effect]:
        if isinstance(event.outcome, ModelExported):
            return self._desk.finish(event.outcome)
        if isinstance(event.outcome, RosterRead):
            return [*self.sites.take(event.outcome), *self._reconsider(now)]
        if event.key != self._working:
            return []
        self._working = None
        outcome = event.outcome
        if isinstance(outcome, NotYet):
            return self._not_yet(outcome.reason, now)
        job = self.state.jobs[outcome.job]
        self.apply(outcome)
        effects: list[Effect] = [Append(outcome, sync=True, blobs=blobs_of(outcome))]
        match outcome:
            case RoundPlanned():
                self._began, self._traffic, self._waiting_since = now, 0, None
                self._plan_again_at = None
                effects.append(Say(told_plan(job, outcome)))
            case RoundClosed():
                effects.append(Say(told_round(job, outcome)))
                settings = settings_of(job.text)
                if reason := ending(job, settings):
                    return [*effects, *self._end(job, "done", reason, now)]
            case DevicesEstimated():
                effects += [Say(f"job {job.name}: {line}", "warning") for line in outcome.failures]
                effects.append(Say(f"job {job.name}: {len(outcome.signatures)} devices estimated"))
            case JobCompiled():
                effects.append(Say(f"job {job.name}: compiled and checked"))
        return [*effects, *self._advance(job, now)]

    def _did_not(self, event: DidNot, now: float) -> list[Effect]:
        if said := self._desk.failed(event):
            return [said]
        if event.key != self._working:
            return []
        self._working = None
        job = self.state.jobs[event.key.partition(" ")[2]]
        return self._end(job, "refused", event.detail, now)

    def _not_yet(self, reason: str, now: float) -> list[Effect]:
        job = self.state.current
        return [*self._wait(job, reason, now), *self._reconsider(now)] if job else []

    def _wait(self, job: JobState, reason: str, now: float) -> list[Effect]:
        """Until the sites change, or for a while: a device that gave no answer may have one then."""
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self._plan_again_at = now + PLAN_AGAIN
        if (job.status, job.detail) == ("waiting", reason):
            return []
        record = JobWaits(job.name, reason)
        self.apply(record)
        return [Append(record), Say(f"job {job.name} waits: {reason}")]

    def _reconsider(self, now: float) -> list[Effect]:
        """The sites may have changed: a job that waits for devices may have them now."""
        job = self.state.current
        waits = job is not None and job.status == "waiting" and not self._working
        return self._plan(job, now) if job and waits and self._reached(job) != self._reach else []

    def _reached(self, job: JobState) -> dict[str, tuple[str, ...]]:
        """The devices that can do the job, by site."""
        return self.sites.reach(name_of(settings_of(job.text).parts().objective))

    def _end(self, job: JobState, status: JobStatus, detail: str, now: float) -> list[Effect]:
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
        self.apply(record)
        effects += [Append(record, sync=True), Say(f"job {job.name} is {status}: {detail}")]
        following = self.state.current if current else None
        return [*effects, *(self._advance(following, now) if following else [])]

    # --- tours

    def _present(self, event: Present, now: float) -> list[Effect]:
        """An edge server came or went."""
        born, site = self.sites.present(event), event.node.name
        effects: list[Effect] = [*self._outbox.hasten(now, event.node)]
        if isinstance(event.state, Birth):
            effects += self._outbox.ask(("roster", site), event.node, RosterAsk(), now)
        else:
            self._outbox.settle(("roster", site))
        job = self.state.current
        if job and born:
            effects += self._tours.ask_again(job, site, now)
        return [*effects, *self._reconsider(now)]

    def _progress(self, sender: Address, message: TourProgress, now: float) -> list[Effect]:
        found = self._current(sender, message.tour)
        if found is None:
            return [Send(sender, TourCancel(message.tour))]
        self._tours.heard_of(*found, message, now)
        return []

    def _toured(self, sender: Address, message: Toured) -> list[Effect]:
        found = self._current(sender, message.tour)
        if found is None:
            if self._counted(message):
                return [Send(sender, TourAccepted(message.tour))]
            return [Send(sender, TourDiscarded(message.tour, "this attempt is no longer wanted"))]
        job, tour = found
        if tour.number in job.arrived:
            return [Send(sender, TourAccepted(message.tour))]
        return self._tours.fetch(tour, message)

    def _current(self, sender: Address, tour_id: TourId) -> tuple[JobState, TourPlan] | None:
        """The job and tour that are meant, if this is the attempt that counts."""
        job = self.state.current
        if job is None or job.name != tour_id.job:
            return None
        tour = self._tours.plan(job, tour_id.tour)
        if tour is None or tour.number in job.given_up or tour.site != sender.name or job.tour_id(tour) != tour_id:
            return None
        return job, tour

    def _counted(self, message: Toured) -> bool:
        """Whether the tour belongs to a round that was closed: its edge server did not hear that it was accepted."""
        job = self.state.jobs.get(message.tour.job)
        number = message.tour.tour
        return job is not None and number < job.next_tour and all(tour.number != number for tour in job.tours)

    def _pulled(self, digest: bytes, now: float) -> list[Effect]:
        effects = self.sites.pulled(digest)
        for toured in self._tours.pulled(digest):
            effects += self._arrived(toured, now)
        return effects

    def _arrived(self, toured: Toured, now: float) -> list[Effect]:
        job = self.state.current
        tour = self._tours.plan(job, toured.tour.tour) if job else None
        if job is None or tour is None:
            return []
        record = TourArrived(job.name, toured)
        self.apply(record)
        blobs = tuple(ref.digest for ref in [*toured.vectors.values(), toured.reports])
        accepted = Send(Address("edge", tour.site), TourAccepted(toured.tour))
        effects: list[Effect] = [Append(record, sync=True, blobs=blobs), accepted]
        return [*effects, *(self._advance(job, now) if self._tours.gathered(job) else [])]

    def _pull_failed(self, event: PullFailed) -> list[Effect]:
        self.sites.pull_failed(event.digest)
        self._tours.pull_failed(event.digest)
        return [Say(f"a blob could not be fetched ({event.reason})", "warning")]

    # --- time

    def _patience_ends(self) -> float | None:
        job = self.state.current
        if self._waiting_since is None or job is None:
            return None
        patience = settings_of(job.text).fleet.patience
        return self._waiting_since + patience if patience else None

    def _woke(self, now: float) -> list[Effect]:
        effects: list[Effect] = [*self._outbox.due(now)]
        job = self.state.current
        ends = self._patience_ends()
        if job and ends is not None and ends <= now:
            return [*effects, *self._end(job, "refused", f"nobody came: {job.detail}", now)]
        if self._plan_again_at is not None and self._plan_again_at <= now:
            self._plan_again_at = None
            if job and job.status == "waiting" and not self._working:
                effects += self._plan(job, now, again=True)
        for number in self._tours.overdue(now):
            effects += self._lost(job, number, now) if job else []
        return effects

    def _lost(self, job: JobState, number: int, now: float) -> list[Effect]:
        """A site gave no sign of life: wait for it, go on without its tour, or give the tour to another site."""
        settings = settings_of(job.text)
        tour = next(t for t in job.tours if t.number == number)
        policy, reason = settings.tours.on_lost_site, f"no sign of life for {settings.tours.site_lease:g} s"
        said = Say(f"job {job.name}: site {tour.site} is lost, {reason}; {policy}", "warning")
        if policy == "wait":
            return [said, *self._tours.ask(job, tour, now)]
        self._tours.forget(number)
        moved = self.sites.move(tour) if policy == "reassign" else None
        record: Record = TourMoved(job.name, moved) if moved else TourGivenUp(job.name, number, reason)
        self.apply(record)
        effects: list[Effect] = [said, Append(record, sync=True)]
        if moved:
            return [*effects, *self._tours.ask(job, moved, now)]
        return [*effects, *(self._advance(job, now) if self._tours.gathered(job) else [])]
