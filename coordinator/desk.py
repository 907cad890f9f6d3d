"""Where operators are answered: jobs submitted and stopped, views of them, and exports that are being made."""

from __future__ import annotations

from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING, TypeVar

import msgspec

from coordinator.bench import ExportModel
from coordinator.coordinator_records import ENDED, JobSubmitted
from coordinator.itinerary import copy_of, settings_of
from coordinator.job import read_job
from sojourn.errors import SojournError
from sojourn.machine import Do, Say, Send
from sojourn.messages import Exported, Inspect, Jobs, Refused
from sojourn.topics import Address
from sojourn.wire import JobView, TourView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.bench import ModelExported
    from coordinator.coordinator_records import JobState, TourPlan
    from coordinator.job_queue import JobQueue
    from coordinator.sites import Sites
    from coordinator.tours import Tours
    from sojourn.machine import DidNot, Effect
    from sojourn.messages import Export, Stop, Submit, TourProgress
    from sojourn.wire import RoundReport

_T = TypeVar("_T")
HISTORY = 100
"""Rounds told at once, if they fit; who wants more asks again from where this ended."""
TOURS = 100
JOBS = 100
"""The newest jobs are told when all are asked for."""
ROOM = 15_000
"""Bytes for the tours, and as many for the history: with the longest detail they still fit in any broker's packet."""


class Desk:
    """Volatile: an operator whose question got no answer asks again."""

    def __init__(self, queue: JobQueue, sites: Sites, tours: Tours) -> None:
        self.exported: set[bytes] = set()
        self._queue = queue
        self._sites = sites
        self._tours = tours
        self._answers: dict[str, Exported] = {}
        self._exports: dict[str, ExportModel] = {}

    def submit(self, operator: Address, message: Submit, now: float) -> list[Effect]:
        """Queue a job, unless it says nonsense or there is another one of its name."""
        try:
            job = read_job(message.job, "the job")
        except SojournError as error:
            return [Send(operator, Refused(message.ticket, str(error)))]
        known = self._queue.state.jobs.get(job.name)
        if known and known.ticket != message.ticket:
            reason = f"there is a job {job.name!r} already ({known.status}); give this one another name"
            return [Send(operator, Refused(message.ticket, reason))]
        if known:  # asked again
            return [self._view_for(operator, message.ticket, job.name)]
        record = self._queue.write(JobSubmitted(job.name, message.job, message.ticket), sync=True)
        answer = self._view_for(operator, message.ticket, job.name)
        return [record, answer, Say(f"job {job.name} submitted"), *self._queue.advance(job.name, now)]

    def stop(self, operator: Address, message: Stop, now: float) -> list[Effect]:
        """End a job, unless it has ended; who stops a job that is not there is told so."""
        job = self._queue.state.jobs.get(message.job)
        going_on = job is not None and job.status not in ENDED
        effects = self._queue.end(job, "stopped", "stopped by an operator", now) if job and going_on else []
        return [*effects, self._view_for(operator, message.ticket, message.job)]

    def export(self, operator: Address, message: Export) -> list[Effect]:
        """Have a job's model exported, unless that is under way or done."""
        if said := self._answers.get(message.ticket):
            return [Send(operator, said)]
        job = self._queue.state.jobs.get(message.job)
        if job is None:
            return [self._view_for(operator, message.ticket, message.job)]
        if job.kit is None:
            reason = f"job {job.name!r} is {job.status}: it has no model yet"
            return [Send(operator, Refused(message.ticket, reason))]
        key = f"export {message.ticket}"
        if key in self._exports:
            return []
        self._exports[key] = ExportModel(message.ticket, operator.name, copy_of(job))
        return [Do(key, self._exports[key])]

    def finish(self, outcome: ModelExported) -> list[Effect]:
        """The exported model is here."""
        self._exports.pop(f"export {outcome.ticket}", None)
        answer = Exported(outcome.ticket, outcome.model, outcome.accuracy)
        self.exported = {outcome.model.digest}
        self._answers = {outcome.ticket: answer}
        return [Send(Address("cloud", outcome.operator), answer)]

    def failed(self, event: DidNot) -> Effect | None:
        """An export failed, if it was one."""
        work = self._exports.pop(event.key, None)
        return Send(Address("cloud", work.operator), Refused(work.ticket, event.detail)) if work else None

    def tell(self, message: Inspect) -> Jobs | Refused:
        """What there is to say of one job, or of all."""
        jobs, sites = self._queue.state.jobs, self._sites
        if message.job is None:
            newest = list(jobs.values())[-JOBS:]
            views = (_view(job, sites) for job in newest)
            return Jobs(message.ticket, tuple(msgspec.structs.replace(it, detail=it.detail[:200]) for it in views))
        if message.job not in jobs:
            known = ", ".join(jobs) or "none"
            return Refused(message.ticket, f"there is no job {message.job!r}; the jobs are: {known}")
        job, progress = jobs[message.job], self._tours.progress
        tours = _fitting(_tour(job, tour, progress.get(tour.number)) for tour in job.tours[:TOURS])
        history = _fitting(job.history[message.since : message.since + HISTORY])
        return Jobs(message.ticket, (_view(job, sites, tours, history),))

    def _view_for(self, operator: Address, ticket: str, job: str) -> Send:
        return Send(operator, self.tell(Inspect(ticket, job)))


def _fitting(items: Iterable[_T]) -> tuple[_T, ...]:
    """The first items that fit in the room there is, at least one."""
    sized = [(len(msgspec.msgpack.encode(item)), item) for item in items]
    ends = accumulate(size for size, _ in sized)
    return tuple(item for (size, item), end in zip(sized, ends, strict=True) if end <= max(ROOM, size))


def _view(
    job: JobState, sites: Sites, tours: tuple[TourView, ...] = (), history: tuple[RoundReport, ...] = ()
) -> JobView:
    settings = settings_of(job.text)
    accuracy = job.history[-1].accuracy if job.history else nan
    return JobView(
        job.name, settings.strategy, settings.model.name, job.status, job.detail, len(job.history), settings.all_rounds,
        job.phase, accuracy, sites.count(), tours, history,
    )  # fmt: skip


def _tour(job: JobState, tour: TourPlan, seen: TourProgress | None) -> TourView:
    done = tour.number in job.arrived or tour.number in job.given_up
    hop, device, step, steps, lost = (
        (seen.hop, seen.device, seen.step, seen.steps, seen.lost) if seen else (0, None, 0, 0, 0)
    )
    hop = len(tour.hops) if done else hop
    return TourView(tour.number, tour.site, tour.hops[:50], hop, device, step, steps, lost, done)
