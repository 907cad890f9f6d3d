"""What operators ask about jobs: to submit or stop one, how it goes, and an export or a release of its model."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import msgspec

from coordinator.jobs.settings import read_job
from coordinator.machine.paging import first_page
from coordinator.machine.work import BuildRelease, ExportModel, ModelExported
from coordinator.records import JobSubmitted
from sojourn.errors import SojournError
from sojourn.node.machine import Do, Say, Send
from sojourn.protocol.messages import Export, Exported, Inspect, Jobs, Refused, refs
from sojourn.protocol.release_messages import ReleaseMade
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import JobView, TourView

if TYPE_CHECKING:
    from coordinator.machine.job_queue import JobQueue
    from coordinator.machine.sites import Sites
    from coordinator.machine.tours import RoundTours
    from coordinator.machine.work import ReleaseBuilt
    from coordinator.records import TourPlan
    from coordinator.state import JobState
    from sojourn.node.machine import DidNot, Effect
    from sojourn.protocol.messages import Stop, Submit, TourProgress
    from sojourn.protocol.release_messages import MakeRelease
    from sojourn.protocol.wire import RoundReport

HISTORY = 100
"""Rounds in one answer, if they fit; who wants more asks again from where this ended."""
TOURS = 100
JOBS = 100
"""At most this many jobs are in one answer: the newest."""
DETAILS = 20_000
"""Characters for the details of all jobs in one answer; what does not fit is cut, and whole where one is asked for."""
NAMES = 50
"""At most this many devices are named that every round took, or none."""
ANSWERS_KEPT = 4
"""At most this many exports and releases are kept to be fetched; the oldest goes first."""


class OperatorRequests:
    """Answers operators. Volatile: an operator whose question got no answer asks again."""

    def __init__(self, queue: JobQueue, sites: Sites, tours: RoundTours) -> None:
        self._queue = queue
        self._sites = sites
        self._tours = tours
        self._answers: dict[str, Exported | ReleaseMade] = {}
        self._making: dict[str, ExportModel | BuildRelease] = {}

    def submit(self, operator: Address, message: Submit, now: float) -> list[Effect]:
        """Queue a job, unless it says nonsense or there is another one of its name."""
        try:
            job = read_job(message.job, "the job")
        except SojournError as error:
            return [Send(operator, Refused(message.ticket, str(error)))]
        known = self._queue.durable.jobs.get(job.name)
        if known and known.ticket != message.ticket:
            reason = f"there is a job {job.name!r} already ({known.status}); give this one another name"
            return [Send(operator, Refused(message.ticket, reason))]
        if known:  # asked again
            return [self._view_for(operator, message.ticket, job.name)]
        record = self._queue.write(JobSubmitted(job.name, message.job, message.ticket), sync=True)
        answer = self._view_for(operator, message.ticket, job.name)
        return [record, answer, Say(f"job {job.name} submitted"), *self._queue.reconsider(now)]

    def stop(self, operator: Address, message: Stop, now: float) -> list[Effect]:
        """End a job, unless it has ended; the answer shows it, or says that there is none of that name."""
        state = self._queue.durable.jobs.get(message.job)
        effects = self._queue.end(state, "stop", "stopped by an operator", now) if state else []
        return [*effects, self._view_for(operator, message.ticket, message.job)]

    def make(self, operator: Address, message: Export | MakeRelease) -> list[Effect]:
        """Have an export or a release made of a job's model, unless that is under way or done."""
        if answer := self._answers.get(message.ticket):
            return [Send(operator, answer)]
        state = self._queue.durable.jobs.get(message.job)
        if state is None:
            return [self._view_for(operator, message.ticket, message.job)]
        if state.kit is None:
            reason = f"job {state.name!r} is {state.status}: it has no model yet"
            return [Send(operator, Refused(message.ticket, reason))]
        key = f"make {message.ticket}"
        if key in self._making:
            return []
        self._making[key] = (
            ExportModel(message.ticket, operator.name, state.copy())
            if isinstance(message, Export)
            else BuildRelease(message.ticket, operator.name, state.copy(), message)
        )
        return [Do(key, self._making[key])]

    def finish(self, outcome: ModelExported | ReleaseBuilt) -> list[Effect]:
        """What was made is here."""
        self._making.pop(f"make {outcome.ticket}", None)
        answer: Exported | ReleaseMade = (
            Exported(outcome.ticket, outcome.model, outcome.accuracy)
            if isinstance(outcome, ModelExported)
            else ReleaseMade(outcome.ticket, outcome.graph, outcome.card)
        )
        self._answers[outcome.ticket] = answer
        for old in list(self._answers)[:-ANSWERS_KEPT]:
            del self._answers[old]
        return [Send(Address("cloud", outcome.operator), answer)]

    def failed(self, event: DidNot) -> Effect | None:
        """Something could not be made, if that is what failed; with a full disk it is, when the operator asks again."""
        work = self._making.pop(event.key, None)
        if work and event.reason == "DiskFull":
            return Say(f"{event.detail}: what {work.operator} asked for is made when there is room", "error")
        return Send(Address("cloud", work.operator), Refused(work.ticket, event.detail)) if work else None

    @property
    def exported(self) -> set[bytes]:
        """The blobs that operators may still fetch."""
        return {ref.digest for answer in self._answers.values() for ref in refs(answer)}

    def inspect(self, message: Inspect) -> Jobs | Refused:
        """What there is to say of one job, or of all."""
        jobs, sites = self._queue.durable.jobs, self._sites
        if message.job is None:
            newest = list(jobs.values())[-JOBS:]
            room = DETAILS // max(1, len(newest))
            views = (_view(state, sites, _within(self._queue.detail(state), room)) for state in newest)
            return Jobs(message.ticket, tuple(views))
        if message.job not in jobs:
            known = ", ".join(jobs) or "none"
            return Refused(message.ticket, f"there is no job {message.job!r}; the jobs are: {known}")
        state, progress = jobs[message.job], self._tours.progress
        tours = first_page(_tour(state, tour, progress.get(tour.number)) for tour in state.tours[:TOURS])
        history = first_page(state.history[message.since : message.since + HISTORY])
        view = _view(state, sites, self._queue.detail(state), tours, history)
        notes = first_page((*state.unestimated, *(state.notices if state.tours else ())))
        always, never = tuple(state.always[:NAMES]), tuple(state.never[:NAMES])
        return Jobs(message.ticket, (msgspec.structs.replace(view, notes=notes, always=always, never=never),))

    def _view_for(self, operator: Address, ticket: str, job: str) -> Send:
        return Send(operator, self.inspect(Inspect(ticket, job)))


def _view(
    state: JobState, sites: Sites, detail: str, tours: tuple[TourView, ...] = (), history: tuple[RoundReport, ...] = ()
) -> JobView:
    job = state.settings
    accuracy = state.history[-1].accuracy if state.history else nan
    return JobView(
        state.name, job.strategy, job.model.name, state.status, detail, len(state.history), job.all_rounds,
        state.phase, accuracy, sites.count(), tours, history,
    )  # fmt: skip


def _within(detail: str, room: int) -> str:
    return detail if len(detail) <= room else f"{detail[: room - 1]}…"


def _tour(state: JobState, tour: TourPlan, seen: TourProgress | None) -> TourView:
    done = tour.number in state.arrived or tour.number in state.given_up
    hop, device, step, steps, lost = (
        (seen.hop, seen.device, seen.step, seen.steps, seen.lost) if seen else (0, None, 0, 0, 0)
    )
    hop = len(tour.hops) if done else hop
    return TourView(tour.number, tour.site, tour.hops[:50], hop, device, step, steps, lost, done)
