"""Apply the outcomes of a job's work: record them and start the job's next step."""

from __future__ import annotations

from math import nan

import msgspec

from coordinator.job_state import JobState, with_metrics
from coordinator.machine.job_log import closed_line, failure_lines_of, outcomes, plan_line, round_line
from coordinator.machine.job_queue import FAILED_ROUNDS, JobQueue
from coordinator.machine.job_table import JOB, JobEvent
from coordinator.machine.job_work import MEASURE, measure
from coordinator.machine.kept_models import KeepSettings, kept_after, rounds_within_limit
from coordinator.machine.waiting_jobs import PLAN_AGAIN
from coordinator.records import (
    DevicesEstimated,
    JobCompiled,
    LegPassed,
    RoundClosed,
    RoundFailed,
    RoundKeeps,
    RoundMeasured,
    RoundPlanned,
    RoundsKept,
    blobs_of,
)
from coordinator.rounds.planning import NotYet
from sojourn.logs import About
from sojourn.node.machine import Effect, Log, WorkDone, WorkFailed

Outcome = JobCompiled | RoundPlanned | LegPassed | RoundClosed | RoundFailed | DevicesEstimated

MAX_REASON_LENGTH = 300
"""Maximum characters of the reason why a model could not be tested."""
_EVENTS: dict[type, JobEvent] = {
    JobCompiled: JobEvent.COMPILED,
    RoundPlanned: JobEvent.PLANNED,
    LegPassed: JobEvent.LEG_PASSED,
    RoundClosed: JobEvent.ROUND_CLOSED,
    RoundFailed: JobEvent.ROUND_FAILED,
    DevicesEstimated: JobEvent.DEVICES_ESTIMATED,
}
"""The event that corresponds to each kind of outcome."""


class FinishedWork:
    """Applies the outcomes of the work that the queue requested."""

    def __init__(self, queue: JobQueue, keep: KeepSettings) -> None:
        self._queue = queue
        self._keep = keep

    def done(self, event: WorkDone, now: float) -> list[Effect]:
        """Record the outcome of a job's work, and continue the job."""
        outcome = event.outcome
        if isinstance(outcome, RoundMeasured):
            return self._measured(outcome, now)
        state = self._job_of(event.key)
        if state is None:
            return []
        if isinstance(outcome, RoundClosed) and state.evaluation_pending:
            self._queue.work.hold(event)  # until the metrics of the previous round are available
            return []
        self._queue.work.done()
        if isinstance(outcome, NotYet):
            return self._queue.not_planned(state, outcome.reason, now)
        return self._record_outcome(state, self._completed(state, outcome, now), now)

    def _job_of(self, key: str) -> JobState | None:
        """Return the job that this work was for, if it still waits for it."""
        return self._queue.current if self._queue.work.has_key(key) else None

    def _completed(self, state: JobState, outcome: Outcome, now: float) -> Outcome:
        """Return the record of an outcome, completed with what only the coordinator knows."""
        date = self._queue.date(now)
        match outcome:
            case RoundClosed():
                kept = kept_after(state, outcome.report, self._keep)
                keeps = msgspec.structs.replace(outcome.keeps or RoundKeeps(), rounds=kept)
                return msgspec.structs.replace(outcome, at=date, keeps=keeps)
            case RoundFailed():
                return msgspec.structs.replace(outcome, at=date, reason=_retry_reason(state, outcome))
            case DevicesEstimated():
                return msgspec.structs.replace(outcome, at=date)
            case _:
                return outcome

    def _record_outcome(self, state: JobState, outcome: Outcome, now: float) -> list[Effect]:
        """Record an outcome, and log the warnings that it reports for the first time."""
        before = state.unestimated
        known = {*before, *state.notices, *state.data_notices}
        written = self._queue.write(outcome, _EVENTS[type(outcome)], sync=True, blobs=blobs_of(outcome))
        failed = isinstance(outcome, RoundFailed)  # its reason contains all lines
        news = [line for line in state.unestimated if line not in before and not failed]
        logged = [Log(f"job {state.name}: {line}", "warning", About(state.name)) for line in news]
        if isinstance(outcome, RoundClosed):
            logged += failure_lines_of(outcome, known)
        return [written, *logged, *self._after(state, outcome, now)]

    def _after(self, state: JobState, outcome: Outcome, now: float) -> list[Effect]:
        """Return the effects that follow from an outcome."""
        match outcome:
            case JobCompiled():
                logged = [Log(f"job {state.name}: compiled and checked", about=About(state.name))]
                return [*logged, *self._queue.next_turn(state, now)]
            case RoundPlanned():
                about = About(state.name, state.round)
                logged = [Log(f"job {state.name}: {line}", "warning", about) for line in outcome.notices]
                return [Log(plan_line(state, outcome), about=about), *logged, *self._queue.planned(state, outcome, now)]
            case RoundFailed():
                ended = outcomes(state.name, state.round, outcome.visited)
                about = About(state.name, state.round)
                waits = Log(f"job {state.name} waits: {outcome.reason}", "warning", about)
                return [*ended, waits, *self._queue.round_failed(state, now, passing=outcome.passing)]
            case RoundClosed():
                return self._closed(state, outcome, now)
            case DevicesEstimated():
                known = len(outcome.signatures) or len(outcome.weights) or len(outcome.samples)
                ended = outcomes(state.name, state.round, outcome.visited)
                logged = [Log(f"job {state.name}: {known} devices estimated", about=About(state.name, state.round))]
                return [*ended, *logged, *self._queue.resume(state, now)]
            case LegPassed():
                return self._queue.resume(state, now)

    def _closed(self, state: JobState, closed: RoundClosed, now: float) -> list[Effect]:
        """After a round is closed, drop old models if necessary, and plan the next round."""
        self._queue.waiting.forget(state.name)
        logged = [*outcomes(state.name, closed.report.round, closed.visited), closed_line(closed)]
        effects = [*self._drop_old_models(), *self._queue.next_turn(state, now)]
        if closed.evaluation_pending:  # tested after the next round is planned, so that planning need not wait
            return [*logged, *effects, measure(state)]
        about = About(state.name, closed.report.round)
        return [*logged, Log(round_line(state, closed.report), about=about), *effects]

    def _measured(self, outcome: RoundMeasured, now: float) -> list[Effect]:
        """Record the metrics of the newest model; it does not matter whether the job has ended in the meantime."""
        state = self._queue.durable.jobs.get(outcome.job)
        if state is None or not state.evaluation_pending or outcome.round != len(state.history):
            return []
        report = with_metrics(state.history[-1], outcome)
        kept = kept_after(state, report, self._keep)
        written = self._queue.write(msgspec.structs.replace(outcome, kept=kept), sync=True)
        about = About(state.name, report.round)
        text = f"job {state.name} round {report.round}: {outcome.reason}" if outcome.reason else None
        logged = Log(text, "warning", about) if text else Log(round_line(state, report), about=about)
        held = self._queue.work.release(outcome.job)
        return [written, logged, *(self.done(held, now) if held else ())]

    def _drop_old_models(self) -> list[Effect]:
        """Drop the oldest models of rounds if all of them exceed the size limit."""
        found = rounds_within_limit(self._queue.durable.jobs.values(), self._keep)
        return [self._queue.write(RoundsKept(name, rounds)) for name, rounds in found.items()]

    def failed(self, event: WorkFailed, now: float) -> list[Effect]:
        """Work for a job failed: retry if the disk was full, otherwise end the job."""
        if event.key.startswith(MEASURE):
            return self._not_measured(event, now)
        state = self._job_of(event.key)
        if state is None:
            return []
        if event.reason == "disk":
            JOB.step(self._queue.step(state), JobEvent.NO_ROOM)
            news = self._queue.work.retry_later(event, now)
            return [Log(f"job {state.name}: {event.detail}", "error", About(state.name))] if news else []
        self._queue.work.done()
        return self._queue.end(state, JobEvent.WORK_FAILED, event.detail, now)

    def _not_measured(self, event: WorkFailed, now: float) -> list[Effect]:
        """The model of a round could not be tested: the job continues without its metrics."""
        state = self._queue.durable.jobs.get(event.key.removeprefix(MEASURE))
        if state is None:
            return []
        reason = f"its model could not be tested: {event.detail}"[:MAX_REASON_LENGTH]
        return self._measured(RoundMeasured(state.name, len(state.history), nan, nan, reason=reason), now)


def _retry_reason(state: JobState, failed: RoundFailed) -> str:
    """Return why a job waits after a round without a result, and until when."""
    attempt, text = state.failed_rounds + 1, f"every device declines for now: {failed.reason}"
    if not failed.passing:
        if attempt >= FAILED_ROUNDS:
            return failed.reason
        text = f"attempt {attempt} of {FAILED_ROUNDS} at round {state.round} had no result: {failed.reason}"
    return f"{text}. The next attempt starts in {PLAN_AGAIN:g} s, or when another device connects"
