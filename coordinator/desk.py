"""Where operators are answered: views of jobs, and exports that are being made."""

from __future__ import annotations

from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING, TypeVar

import msgspec

from coordinator.itinerary import settings_of
from sojourn.machine import Do, Send
from sojourn.messages import Exported, Jobs, Refused
from sojourn.topics import Address
from sojourn.wire import JobView, TourView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coordinator.bench import ExportModel, ModelExported
    from coordinator.coordinator_records import CoordinatorState, JobState, TourPlan
    from coordinator.sites import Sites
    from sojourn.machine import DidNot, Effect
    from sojourn.messages import Inspect, TourProgress
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

    def __init__(self) -> None:
        self.exported: set[bytes] = set()
        self._answers: dict[str, Exported] = {}
        self._exports: dict[str, ExportModel] = {}

    def told(self, ticket: str) -> Exported | None:
        """The answer to an export that was asked for before."""
        return self._answers.get(ticket)

    def begin(self, work: ExportModel) -> list[Effect]:
        """Have a model exported, unless that is under way."""
        key = f"export {work.ticket}"
        if key in self._exports:
            return []
        self._exports[key] = work
        return [Do(key, work)]

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

    def tell(
        self, message: Inspect, state: CoordinatorState, sites: Sites, progress: Mapping[int, TourProgress]
    ) -> Jobs | Refused:
        """What there is to say of one job, or of all."""
        if message.job is None:
            newest = list(state.jobs.values())[-JOBS:]
            views = (_view(job, sites) for job in newest)
            return Jobs(message.ticket, tuple(msgspec.structs.replace(it, detail=it.detail[:200]) for it in views))
        if message.job not in state.jobs:
            known = ", ".join(state.jobs) or "none"
            return Refused(message.ticket, f"there is no job {message.job!r}; the jobs are: {known}")
        job = state.jobs[message.job]
        tours = _fitting(_tour(job, tour, progress.get(tour.number)) for tour in job.tours[:TOURS])
        history = _fitting(job.history[message.since : message.since + HISTORY])
        return Jobs(message.ticket, (_view(job, sites, tours, history),))


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
