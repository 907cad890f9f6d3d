"""What operators ask about jobs: to submit, stop, continue or remove one, how it goes, and its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from coordinator.jobs.continuing import continued
from coordinator.jobs.settings import read_job
from coordinator.machine.job_views import short_view, whole_view
from coordinator.machine.work import BuildRelease, ExportModel, ModelExported
from coordinator.records import ENDED, JobSubmitted
from coordinator.rounds.starting import objection_to_start, waits_for
from sojourn import __version__
from sojourn.about import About
from sojourn.errors import SojournError
from sojourn.model.metrics import DIRECTIONS
from sojourn.node.machine import Do, Say, Send
from sojourn.protocol.job_messages import JobText, Removed
from sojourn.protocol.limits import MOST_BYTES, sum_within
from sojourn.protocol.messages import Export, Exported, Inspect, Jobs, Refused, refs
from sojourn.protocol.release_messages import ReleaseMade
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from coordinator.jobs.settings import JobSettings
    from coordinator.machine.job_queue import JobQueue
    from coordinator.machine.sites import Sites
    from coordinator.machine.tours import RoundTours
    from coordinator.machine.work import ReleaseBuilt
    from coordinator.state import JobState
    from sojourn.node.machine import DidNot, Effect
    from sojourn.protocol.job_messages import Continue, ReadJob, Remove
    from sojourn.protocol.messages import Stop, Submit
    from sojourn.protocol.release_messages import MakeRelease
    from sojourn.protocol.wire import JobView

CheckJob = Callable[["JobSettings"], str | None]
"""Finds what a job names and this machine does not have."""
JOBS = 100
"""At most this many jobs are in one answer: the newest."""
DETAILS = 20_000
"""Characters for the details of all jobs in one answer; what does not fit is cut, and whole where one is asked for."""
ANSWERS_KEPT = 4
"""At most this many exports, releases and removals can be asked for again; the oldest goes first."""


class OperatorRequests:
    """Answers operators. Volatile: an operator whose question got no answer asks again."""

    def __init__(self, queue: JobQueue, sites: Sites, tours: RoundTours, check_job: CheckJob = lambda _: None) -> None:
        self._check_job = check_job
        self._queue = queue
        self._sites = sites
        self._tours = tours
        self._answers: dict[str, Exported | ReleaseMade | Removed] = {}
        self._making: dict[str, ExportModel | BuildRelease] = {}

    def submit(self, operator: Address, message: Submit, now: float) -> list[Effect]:
        """Queue a job, unless it says nonsense or there is another one of its name."""
        try:
            job = read_job(message.job, "the job")
        except SojournError as error:
            return [Send(operator, Refused(message.ticket, str(error)))]
        known = self._queue.durable.jobs.get(job.name)
        if known and known.ticket != message.ticket and not known.replaceable:
            reason = f"there is a job {job.name!r} already ({known.status}); give this one another name"
            return [Send(operator, Refused(message.ticket, reason))]
        if known and known.ticket == message.ticket:  # asked again
            return [self._view_for(operator, message.ticket, job.name, now)]
        if objection := self._why_not(job):
            return [Send(operator, Refused(message.ticket, objection))]
        replaced = self._queue.remove(known) if known else []
        record = self._queue.write(
            JobSubmitted(job.name, message.job, message.ticket, self._queue.date(now)), sync=True
        )
        answer = self._view_for(operator, message.ticket, job.name, now)
        said = Say(f"job {job.name} submitted", about=About(job.name))
        return [*replaced, record, answer, said, *self._queue.reconsider(now)]

    def _why_not(self, job: JobSettings) -> str | None:
        """Why a job of a new name cannot be taken as it is."""
        if job.name in (self._queue.durable.removed or {}) and job.parts().objective.keeps:
            return (
                f"devices may still remember the job {job.name!r} that was removed, and would mix it up with this one; "
                "give this one another name"
            )
        return objection_to_start(job, self._queue.durable) or self._check_job(job)

    def go_on(self, operator: Address, message: Continue, now: float) -> list[Effect]:
        """Give a job more rounds or another target; one that is over waits for its turn again."""
        state = self._queue.durable.jobs.get(message.job)
        if state is None or state.continued == message.ticket:  # unknown, or asked again
            return [self._view_for(operator, message.ticket, message.job, now)]
        try:
            target = message.goal or (None if message.target is UNSET else message.target)
            text = continued(state.text, message.rounds or None, target, message.devices or None)
        except SojournError as error:
            return [Send(operator, Refused(message.ticket, str(error)))]
        if reason := self._why_over(state, text, message.devices or None):
            return [Send(operator, Refused(message.ticket, reason))]
        effects = self._queue.go_on(state, text, message.ticket, now)
        return [*effects, self._view_for(operator, message.ticket, message.job, now)]

    def _why_over(self, state: JobState, text: str, devices: int | None) -> str | None:
        """Why a job has nothing to go on with under this job file."""
        job, done = read_job(text, state.name), len(state.history)
        if devices and state.begun:
            return f"job {state.name!r} has begun: --devices counts only before the first round, so leave it out"
        if state.name in self._queue.incomplete:
            return f"job {state.name!r} cannot go on, something of it is gone from the disk: {state.detail}"[:20_000]
        if done >= job.all_rounds:
            return (
                f"job {state.name!r} has done {done} rounds of {state.settings.all_rounds}: say with --rounds how many "
                f"there are to be in all, more than {done}"
            )
        if done and job.goal is not None and state.history and job.goal.reached(state.history[-1]):
            better = DIRECTIONS[job.goal.figure]
            return (
                f"job {state.name!r} has reached its target {job.goal}: give it a {better} one with --target, or none "
                "with --target 0"
            )
        return None

    def remove(self, operator: Address, message: Remove, now: float) -> list[Effect]:
        """Forget a job that is over; the answer says what that frees."""
        if answer := self._answers.get(message.ticket):
            return [Send(operator, answer)]
        state = self._queue.durable.jobs.get(message.job)
        if state is None:
            return [self._view_for(operator, message.ticket, message.job, now)]
        if state.status not in ENDED:
            reason = f"job {state.name!r} is {state.status}: stop it first"
            return [Send(operator, Refused(message.ticket, reason))]
        if waiting := waits_for(state.name, self._queue.durable):
            reason = f"job {waiting!r} is queued and starts from the model of {state.name!r}: wait for it, or stop it"
            return [Send(operator, Refused(message.ticket, reason))]
        sizes = self._freed(state)
        effects = self._queue.remove(state)
        answer = Removed(message.ticket, state.name, len(sizes), sum_within(sizes.values(), MOST_BYTES))
        self._remember(answer)
        return [*effects, Send(operator, answer)]

    def _freed(self, state: JobState) -> dict[bytes, int]:
        """The blobs that this job alone refers to, with their sizes."""
        others = [other.live() for other in self._queue.durable.jobs.values() if other is not state]
        shared = set[bytes]().union(*others)
        return {ref.digest: ref.size for ref in state.refs() if ref.digest not in shared}

    def read(self, message: ReadJob) -> JobText | Refused:
        """The text of a job's file."""
        state = self._queue.durable.jobs.get(message.job)
        return JobText(message.ticket, state.name, state.text) if state else self._unknown(message.ticket, message.job)

    def stop(self, operator: Address, message: Stop, now: float) -> list[Effect]:
        """End a job, unless it has ended; the answer shows it, or says that there is none of that name."""
        state = self._queue.durable.jobs.get(message.job)
        effects = self._queue.end(state, "stop", "stopped by an operator", now) if state else []
        return [*effects, self._view_for(operator, message.ticket, message.job, now)]

    def make(self, operator: Address, message: Export | MakeRelease, now: float) -> list[Effect]:
        """Have an export or a release made of a job's model, unless that is under way or done."""
        if answer := self._answers.get(message.ticket):
            return [Send(operator, answer)]
        state = self._queue.durable.jobs.get(message.job)
        if state is None:
            return [self._view_for(operator, message.ticket, message.job, now)]
        if state.kit is None:
            reason = f"job {state.name!r} is {state.status}: it has no model yet"
            return [Send(operator, Refused(message.ticket, reason))]
        if not state.history:
            why = f": {state.detail}" if state.detail else ""
            reason = f"no device has trained the model of job {state.name!r}, which is {state.status}{why}"
            return [Send(operator, Refused(message.ticket, reason[:20_000]))]
        number = len(state.history) if message.round is UNSET else message.round
        if number not in state.models:
            return [Send(operator, Refused(message.ticket, state.not_kept(number)))]
        key = f"make {message.ticket}"
        if key in self._making:
            return []
        self._making[key] = (
            ExportModel(message.ticket, operator.name, state.copy(), number)
            if isinstance(message, Export)
            else BuildRelease(message.ticket, operator.name, state.copy(), message, number)
        )
        return [Do(key, self._making[key])]

    def finish(self, outcome: ModelExported | ReleaseBuilt) -> list[Effect]:
        """What was made is here."""
        self._making.pop(f"make {outcome.ticket}", None)
        answer: Exported | ReleaseMade = (
            Exported(outcome.ticket, outcome.model, outcome.accuracy, outcome.round)
            if isinstance(outcome, ModelExported)
            else ReleaseMade(outcome.ticket, outcome.graph, outcome.card)
        )
        self._remember(answer)
        return [Send(Address("cloud", outcome.operator), answer)]

    def _remember(self, answer: Exported | ReleaseMade | Removed) -> None:
        self._answers[answer.ticket] = answer
        for old in list(self._answers)[:-ANSWERS_KEPT]:
            del self._answers[old]

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

    def inspect(self, message: Inspect, now: float) -> Jobs | Refused:
        """What there is to say of one job, or of all."""
        jobs = self._queue.durable.jobs
        if message.job is None:
            newest = list(jobs.values())[-JOBS:]
            room = DETAILS // max(1, len(newest))
            views = (self._view(state, now) for state in newest)
            shown = tuple(msgspec.structs.replace(it, detail=_within(it.detail, room)) for it in views)
            return Jobs(message.ticket, shown, __version__)
        if message.job not in jobs:
            return self._unknown(message.ticket, message.job)
        state = jobs[message.job]
        whole = whole_view(self._view(state, now), state, self._tours, message.since)
        return Jobs(message.ticket, (whole,), __version__)

    def _view(self, state: JobState, now: float) -> JobView:
        return short_view(state, self._sites.count(), self._queue.detail(state), self._queue.date(now))

    def _unknown(self, ticket: str, job: str) -> Refused:
        known = ", ".join(self._queue.durable.jobs) or "none"
        return Refused(ticket, f"there is no job {job!r}; the jobs are: {known}"[:20_000])

    def _view_for(self, operator: Address, ticket: str, job: str, now: float) -> Send:
        return Send(operator, self.inspect(Inspect(ticket, job), now))


def _within(detail: str, room: int) -> str:
    return detail if len(detail) <= room else f"{detail[: room - 1]}…"
