"""Answer operators' requests about jobs: submit, stop, continue and remove them, show progress, and get models."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coordinator.job_state import JobState
from coordinator.jobs.goal import metric_of
from coordinator.jobs.settings import JobSettings, continued, read_job
from coordinator.machine.answers import drop_oldest, first_page, refuse
from coordinator.machine.job_queue import JobQueue
from coordinator.machine.job_table import JobEvent
from coordinator.machine.sites import Sites
from coordinator.machine.tours import RoundTours
from coordinator.machine.work import BuildRelease, ExportModel, ModelExported, ReleaseBuilt
from coordinator.records import ENDED, JobSubmitted, TourPlan
from coordinator.rounds.starting import start_refusal_reason, waits_for
from sojourn import __version__
from sojourn.errors import SojournError
from sojourn.logs import About
from sojourn.node.machine import Effect, Log, Send, StartWork, WorkFailed
from sojourn.protocol.limits import MAX_BYTES, MAX_SECONDS, sum_within
from sojourn.protocol.messages import refs
from sojourn.protocol.metric_names import DIRECTIONS, MAIN
from sojourn.protocol.operator_messages import (
    Continue,
    Export,
    Exported,
    Inspect,
    Jobs,
    JobText,
    ReadJob,
    Refused,
    Remove,
    Removed,
    Stop,
    Submit,
)
from sojourn.protocol.release_messages import MakeRelease, ReleaseMade
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import JobModels, JobNews, JobTimes, JobView, TourView

MAX_ROUNDS = 100
"""Maximum rounds in one answer; a client requests the rest from where it ended."""
MAX_TOURS = 100
MAX_HOPS = 50
"""Maximum hops of a tour that are listed."""
MAX_NAMES = 50
"""Maximum devices listed as selected in every round, or in none."""
MAX_KEPT_ROUNDS = 1000
"""Maximum rounds listed whose models are available: the newest."""


def short_view(state: JobState, devices: int, detail: str, date: float) -> JobView:
    """Return a job as shown in a list; `date` is the current time."""
    job, visible = state.settings, state.visible_rounds
    return JobView(
        state.name,
        job.strategy,
        job.model.name,
        state.status,
        detail,
        visible,
        job.all_rounds,
        state.phase,
        state.accuracy(visible),
        devices,
        times=JobTimes(
            state.submitted,
            state.ended,
            _took(state, date),
            job.task.kind if job.task.kind != "classification" else None,
            _metrics(state, visible),
        ),
    )


def whole_view(short: JobView, state: JobState, tours: RoundTours, since: int) -> JobView:
    """Return a job with its tours, its history from a round on, and the rounds whose models are available."""
    visible = state.visible_rounds
    return msgspec.structs.replace(
        short,
        tours=first_page(_tour(state, tour, tours) for tour in state.tours[:MAX_TOURS]),
        history=first_page(state.history[since : min(since + MAX_ROUNDS, visible)]),
        models=JobModels(
            tuple(number for number in sorted(state.models)[-MAX_KEPT_ROUNDS:] if number <= visible), state.best
        ),
        news=_news(state),
    )


def _news(state: JobState) -> JobNews:
    """Return what operators should know since the newest round."""
    notes = first_page((*state.unestimated, *(state.notices if state.tours else ())))
    return JobNews(notes, tuple(state.always[:MAX_NAMES]), tuple(state.never[:MAX_NAMES]))


def _metrics(state: JobState, visible: int) -> dict[str, float]:
    """Return the metrics of a round for a list, including the task's main metric even if that is the loss."""
    if not 0 < visible <= len(state.history):
        return {}
    report, kind = state.history[visible - 1], state.settings.task.kind
    if kind == "classification" or not report.metrics:
        return report.metrics
    return {MAIN[kind]: metric_of(report, MAIN[kind]), **report.metrics}


def _took(state: JobState, date: float) -> float | None:
    """Return the seconds from a job's first turn to its end, or until now; None before its first turn."""
    if state.started is not None:
        return min((state.worked or 0.0) + max(0.0, date - state.started), MAX_SECONDS)
    return min(state.worked, MAX_SECONDS) if state.worked is not None else None


def _tour(state: JobState, tour: TourPlan, tours: RoundTours) -> TourView:
    done, seen = tour.number in state.arrived or tour.number in state.given_up, tours.progress.get(tour.number)
    hop, device, step, steps, lost = (
        (seen.hop, seen.device, seen.step, seen.steps, seen.lost) if seen else (0, None, 0, 0, 0)
    )
    hop = len(tour.hops) if done else hop
    ends = tours.ends.get(tour.number)
    return TourView(tour.number, tour.site, tour.hops[:MAX_HOPS], hop, device, step, steps, lost, done, ends)


CheckJob = Callable[["JobSettings"], str | None]
"""Returns what a job names that this machine does not have, or None."""
MAX_JOBS = 100
"""Maximum jobs in one answer: the newest."""
MAX_DETAIL_LENGTH = 20_000
"""Maximum characters for the details of all jobs in one answer; the request for a single job shows its detail whole."""
MAX_KEPT_ANSWERS = 4
"""Number of exports, releases and removals kept for repeated requests; the oldest is dropped first."""


class OperatorRequests:
    """Answers operators' requests. Volatile: a client repeats a request that got no answer."""

    def __init__(self, queue: JobQueue, sites: Sites, tours: RoundTours, check_job: CheckJob) -> None:
        self._check_job = check_job
        self._queue = queue
        self._sites = sites
        self._tours = tours
        self._answers: dict[str, Exported | ReleaseMade | Removed] = {}
        self._making: dict[str, ExportModel | BuildRelease] = {}

    def submit(self, operator: Address, message: Submit, now: float) -> list[Effect]:
        """Queue a job, unless it is invalid or another job has its name."""
        try:
            job = read_job(message.job, "the job")
        except SojournError as error:
            return refuse(operator, message.ticket, str(error))
        known = self._queue.durable.jobs.get(job.name)
        if known and known.ticket != message.ticket and not known.replaceable:
            reason = f"a job {job.name!r} already exists ({known.status}); use another name"
            return refuse(operator, message.ticket, reason)
        if known and known.ticket == message.ticket:  # a repeated request
            return self.view_for(operator, message.ticket, job.name, now)
        if refusal := self._refusal_reason(job):
            return refuse(operator, message.ticket, refusal)
        replaced = self._queue.remove(known) if known else []
        record = self._queue.write(
            JobSubmitted(job.name, message.job, message.ticket, self._queue.date(now)), sync=True
        )
        answer = self.view_for(operator, message.ticket, job.name, now)
        line = Log(f"job {job.name} submitted", about=About(job.name))
        return [*replaced, record, *answer, line, *self._queue.reconsider(now)]

    def _refusal_reason(self, job: JobSettings) -> str | None:
        """Return why a new job cannot be accepted, or None."""
        if job.name in self._queue.durable.removed and job.parts().objective.keeps:
            return (
                f"devices may still remember the removed job {job.name!r} and would confuse it with this one; "
                "use another name"
            )
        return start_refusal_reason(job, self._queue.durable) or self._check_job(job)

    def continue_job(self, operator: Address, message: Continue, now: float) -> list[Effect]:
        """Give a job more rounds or another target; one that is over waits for its turn again."""
        state = self._queue.durable.jobs.get(message.job)
        if state is None or state.continued == message.ticket:  # unknown, or a repeated request
            return self.view_for(operator, message.ticket, message.job, now)
        try:
            target = message.goal or message.target
            text = continued(state.text, message.rounds or None, target, message.devices or None)
        except SojournError as error:
            return refuse(operator, message.ticket, str(error))
        if reason := self._continue_refusal_reason(state, text, message.devices or None):
            return refuse(operator, message.ticket, reason)
        effects = self._queue.continue_job(state, text, message.ticket, now)
        return [*effects, *self.view_for(operator, message.ticket, message.job, now)]

    def _continue_refusal_reason(self, state: JobState, text: str, devices: int | None) -> str | None:
        """Return why a job cannot continue with this job file, or None."""
        job, done = read_job(text, state.name), len(state.history)
        if devices and state.begun:
            return f"job {state.name!r} has started: --devices applies only before the first round, so omit it"
        if state.name in self._queue.incomplete:
            return f"job {state.name!r} cannot continue, files are missing from the disk: {state.detail}"
        if done >= job.all_rounds:
            return (
                f"job {state.name!r} has completed {done} of {state.settings.all_rounds} rounds: set the total with "
                f"--rounds, more than {done}"
            )
        if done and job.goal is not None and state.history and job.goal.reached(state.history[-1]):
            better = DIRECTIONS[job.goal.metric]
            return (
                f"job {state.name!r} has reached its target {job.goal}: set a {better} one with --target, or remove it "
                "with --target 0"
            )
        return None

    def remove(self, operator: Address, message: Remove, now: float) -> list[Effect]:
        """Forget a job that is over; the answer shows how much space that frees."""
        if answer := self._answers.get(message.ticket):
            return [Send(operator, answer)]
        state = self._queue.durable.jobs.get(message.job)
        if state is None:
            return self.view_for(operator, message.ticket, message.job, now)
        if state.status not in ENDED:
            return refuse(operator, message.ticket, f"job {state.name!r} is {state.status}: stop it first")
        if waiting := waits_for(state.name, self._queue.durable):
            reason = f"job {waiting!r} is queued and starts from the model of {state.name!r}: wait for it or stop it"
            return refuse(operator, message.ticket, reason)
        sizes = self._freed(state)
        effects = self._queue.remove(state)
        answer = Removed(message.ticket, state.name, len(sizes), sum_within(sizes.values(), MAX_BYTES))
        self._remember(answer)
        return [*effects, Send(operator, answer)]

    def _freed(self, state: JobState) -> dict[bytes, int]:
        """Return the blobs that only this job refers to, with their sizes."""
        others = [other.live() for other in self._queue.durable.jobs.values() if other is not state]
        shared = set[bytes]().union(*others)
        return {ref.digest: ref.size for ref in state.refs() if ref.digest not in shared}

    def read(self, operator: Address, message: ReadJob, _now: float) -> list[Effect]:
        """Send the text of a job's file."""
        state = self._queue.durable.jobs.get(message.job)
        if state is None:
            return refuse(operator, message.ticket, self._queue.durable.no_such_job(message.job))
        return [Send(operator, JobText(message.ticket, state.name, state.text))]

    def stop(self, operator: Address, message: Stop, now: float) -> list[Effect]:
        """End a job unless it is over; the answer shows the job, or that it does not exist."""
        state = self._queue.durable.jobs.get(message.job)
        effects = self._queue.end(state, JobEvent.STOP, "stopped by an operator", now) if state else []
        return [*effects, *self.view_for(operator, message.ticket, message.job, now)]

    def make(self, operator: Address, message: Export | MakeRelease, now: float) -> list[Effect]:
        """Start an export or a release of a job's model, unless it is in progress or done."""
        if answer := self._answers.get(message.ticket):
            return [Send(operator, answer)]
        state = self._queue.durable.jobs.get(message.job)
        if state is None:
            return self.view_for(operator, message.ticket, message.job, now)
        if state.kit is None:
            return refuse(operator, message.ticket, f"job {state.name!r} is {state.status}: it has no model yet")
        if not state.history:
            why = f": {state.detail}" if state.detail else ""
            reason = f"no device has trained the model of job {state.name!r}, which is {state.status}{why}"
            return refuse(operator, message.ticket, reason)
        number = len(state.history) if message.round is None else message.round
        if number not in state.models:
            return refuse(operator, message.ticket, state.not_kept(number))
        key = f"make {message.ticket}"
        if key in self._making:
            return []
        self._making[key] = (
            ExportModel(message.ticket, operator.name, state.copy(), number)
            if isinstance(message, Export)
            else BuildRelease(message.ticket, operator.name, state.copy(), message, number)
        )
        return [StartWork(key, self._making[key])]

    def finish(self, outcome: ModelExported | ReleaseBuilt) -> list[Effect]:
        """Answer with the finished export or release."""
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
        drop_oldest(self._answers, MAX_KEPT_ANSWERS)

    def failed(self, event: WorkFailed) -> Effect | None:
        """Refuse an export or release that failed; if the disk was full, it is retried when the operator asks again."""
        work = self._making.pop(event.key, None)
        if work and event.reason == "disk":
            return Log(f"{event.detail}: the request of {work.operator} is retried when there is space", "error")
        return Send(Address("cloud", work.operator), Refused(work.ticket, event.detail)) if work else None

    @property
    def exported(self) -> set[bytes]:
        """The blobs that operators may still fetch."""
        return {ref.digest for answer in self._answers.values() for ref in refs(answer)}

    def inspect(self, operator: Address, message: Inspect, now: float) -> list[Effect]:
        """Send the view of one job, or of all."""
        jobs = self._queue.durable.jobs
        if message.job is None:
            newest = list(jobs.values())[-MAX_JOBS:]
            room = MAX_DETAIL_LENGTH // max(1, len(newest))
            views = (self._view(state, now) for state in newest)
            shown = tuple(msgspec.structs.replace(it, detail=_within(it.detail, room)) for it in views)
            return [Send(operator, Jobs(message.ticket, shown, __version__))]
        if message.job not in jobs:
            return refuse(operator, message.ticket, self._queue.durable.no_such_job(message.job))
        state = jobs[message.job]
        whole = whole_view(self._view(state, now), state, self._tours, message.since)
        return [Send(operator, Jobs(message.ticket, (whole,), __version__))]

    def _view(self, state: JobState, now: float) -> JobView:
        return short_view(state, self._sites.count(), self._queue.detail(state), self._queue.date(now))

    def view_for(self, operator: Address, ticket: str, job: str, now: float) -> list[Effect]:
        """Answer a request with the view of a job, or with the jobs that exist."""
        return self.inspect(operator, Inspect(ticket, job), now)


def _within(detail: str, room: int) -> str:
    return detail if len(detail) <= room else f"{detail[: room - 1]}…"
