"""The durable state of one job, changed only by records (`coordinator.records`)."""

from __future__ import annotations

from itertools import filterfalse
from math import nan
from typing import Literal

import msgspec

from coordinator.jobs.goal import best_round
from coordinator.jobs.settings import JobSettings, read_job
from coordinator.records import (
    ENDED,
    INITIAL,
    DevicesEstimated,
    JobCompiled,
    JobContinued,
    JobEnded,
    JobMandated,
    JobRecord,
    JobRemoved,
    JobStarted,
    JobSubmitted,
    JobWaits,
    LegPassed,
    Phase,
    RoundClosed,
    RoundFailed,
    RoundMeasured,
    RoundPlanned,
    RoundsKept,
    TourArrived,
    TourGivenUp,
    TourMoved,
    TourPlan,
    Unmerged,
)
from coordinator.strategies import Strategy
from hierarchy.arranging.arrangement import ClientSet, Memo
from sojourn.errors import JobError
from sojourn.protocol.limits import MAX_BYTES, Moment, sum_within
from sojourn.protocol.mandates import Normalisation, SignedMandate
from sojourn.protocol.messages import Toured
from sojourn.protocol.wire import JobStatus, Ref, RoundReport, TourId, TrainingSize
from sojourn.text import as_ranges, quantity

MOST_NORMS = 256
"""The maximum that a tour message can hold."""
ASK_AGAIN_AFTER = 5
"""Rounds after which devices that did not answer an estimation are asked again."""
NUMBERS_SKIPPED = 1_000_000
"""More than the tours of a job between two backups, and more than the attempts of a tour."""


class JobState(msgspec.Struct):
    """The durable state of a job."""

    name: str
    text: str
    ticket: str = ""
    status: JobStatus = "queued"
    detail: str = ""
    unsigned: bool = False
    """Whether it waits for an operator's signature rather than for devices."""
    kit: Ref | None = None
    exemplars: Ref | None = None
    test: Ref | None = None
    recipe: str = ""
    """Identifies how the kit was made: another job with the same recipe can use the kit."""
    initial: Ref | None = None
    """The first model, exact: another job with the same recipe can begin with it."""
    first_wire_vector: Ref | None = None
    """The first model in the form sent to sites: every estimation starts from it."""
    classes: int = 0
    vectors: dict[str, Ref] = {}
    """The job's state, exact: the model, and the aggregator's vectors."""
    wire_vectors: dict[str, Ref] = {}
    """The same vectors in the form sent to sites."""
    phase: Phase = "train"
    tours: tuple[TourPlan, ...] = ()
    quality: dict[str, float] = {}
    leg: int = 0
    """The current leg of the current round."""
    fleet: dict[str, None] = {}
    """All devices that the job has ever had."""
    merged_fleet: int = 0
    """The number of these devices when models last merged."""
    notices: tuple[str, ...] = ()
    arranged: tuple[ClientSet, ...] = ()
    """The last arrangement, for schedules that keep one."""
    memo: Memo = {}
    """The arranger's memory."""
    slots: dict[str, float] = {}
    """The samples that each slot has seen since models last merged."""
    since_merge: int = 0
    """The number of rounds since models last merged."""
    arrived: dict[int, Toured] = {}
    given_up: dict[int, str] = {}
    signatures: dict[str, tuple[float, ...]] = {}
    weights: dict[str, Ref] = {}
    """Estimates that are vectors of weights: a device's classifier, or its last update."""
    samples: dict[str, int] = {}
    """The number of samples that each device reported."""
    visits: dict[str, int] = {}
    """The number of successful visits of each device."""
    silent: dict[str, int] = {}
    """How often a device did not answer an estimation."""
    next_tour: int = 0
    norms: tuple[float, ...] = ()
    rises: tuple[float, float] | None = None
    """The factor by which visits of the last round increased the loss on the exemplars: the median, and the median
    deviation from it; None if it is unknown."""
    data_notices: tuple[str, ...] = ()
    """Warnings about the job's own data, reported with its first round."""
    device_notes: dict[str, str] = {}
    """By device, its last note on its own data, so that each note is reported once."""
    asks: tuple[str, ...] = ()
    """The abilities that the kit requires of devices and sites."""
    history: list[RoundReport] = []
    estimation_traffic: int = 0
    """Bytes of estimations and failed rounds since the last round with a result; added to the next round's."""
    kept: dict[int, Ref] = {}
    """Stored models of rounds, exact."""
    unmerged: Unmerged | None = None
    """The state from which more rounds continue, if the last round merged only because it was the last."""
    memo_before: Memo | None = None
    """The arranger's memory before it arranged the current round."""
    continued: str = ""
    """The ticket of the last request for more rounds."""
    submitted: Moment | None = None
    started: Moment | None = None
    """When it last had its turn."""
    ended: Moment | None = None
    worked: float | None = None
    """Seconds from its turn to its end, over all its turns."""
    unestimated: tuple[str, ...] = ()
    """Failures since the last round with a result, in estimations and in rounds, as lines of text."""
    estimation_failures: int = 0
    """The number of failed visits in that time."""
    taken: dict[str, int] = {}
    """By device, the number of counted rounds that selected it."""
    counted_rounds: int = 0
    """The number of rounds counted in `taken`."""
    evaluation_pending: bool = False
    """Whether the model of the newest round has not been tested yet."""
    normalisation: Normalisation | None = None
    """The kit's constants that do not come from the job's file."""
    mandate: SignedMandate | None = None
    """The last mandate that an operator signed for it."""
    signed: str = ""
    """The ticket of that request."""
    size: TrainingSize | None = None
    """The memory that training needs on a device."""
    failed_rounds: int = 0
    """The number of consecutive rounds without a result, up to the newest; 0 if that one had a result."""

    @property
    def begun(self) -> bool:
        """Whether a round was planned: then the minimum number of devices no longer applies."""
        return bool(self.history or self.fleet)

    @property
    def replaceable(self) -> bool:
        """Whether another job may take its name: it failed, and no device made a visit for it."""
        return self.status in ("refused", "failed") and not self.history and not self.visits

    @property
    def always(self) -> list[str]:
        """Devices selected in every round, if others were not; from the second round on."""
        every = sorted(device for device, rounds in self.taken.items() if rounds == self.counted_rounds)
        return every if self.counted_rounds > 1 and len(every) < len(self.fleet) else []

    @property
    def never(self) -> list[str]:
        """Devices available to the job but not selected in any round; from the second round on."""
        if self.counted_rounds < 2:
            return []
        visited, taken = self.visits, self.taken
        return sorted(filterfalse(visited.get, filterfalse(taken.__contains__, self.fleet)))

    @property
    def settings(self) -> JobSettings:
        """The job's settings; its file was checked when it was submitted."""
        return read_job(self.text, self.name)

    @property
    def strategy(self) -> Strategy:
        """The parts of the job's strategy."""
        return self.settings.parts()

    @property
    def round(self) -> int:
        """The number of the current or next round; the first is 1."""
        return len(self.history) + 1

    @property
    def visible_rounds(self) -> int:
        """The number of rounds to show: while the job runs, the newest one only with its metrics."""
        return len(self.history) - bool(self.evaluation_pending and self.status not in ENDED)

    @property
    def gathered(self) -> bool:
        """Whether every tour of the current leg has arrived or was given up."""
        out = [t for t in self.tours if t.leg <= self.leg]
        return bool(self.tours) and all(t.number in self.arrived or t.number in self.given_up for t in out)

    @property
    def last_leg(self) -> bool:
        """Whether no later leg of the round waits for the current one."""
        return all(tour.leg <= self.leg for tour in self.tours)

    def exact_vector(self, name: str) -> Ref:
        """Return one of the job's vectors, exact."""
        return self.initial if name == INITIAL and self.initial else self.vectors["model" if name == INITIAL else name]

    def travelling_vector(self, name: str) -> Ref:
        """Return one of the job's vectors, in the form sent to sites."""
        first = self.first_wire_vector
        return first if name == INITIAL and first else self.wire_vectors["model" if name == INITIAL else name]

    def completion_reason(self) -> str | None:
        """Why the job needs no more rounds; None if it needs more."""
        if not self.history:
            return None
        settings, rounds = self.settings, len(self.history)
        if settings.goal is not None and settings.goal.reached(self.history[-1]):
            return f"the target {settings.goal} was reached in round {rounds}"
        done = f"{quantity(rounds, 'round')} {'is' if rounds == 1 else 'are'} done"
        return done if rounds >= settings.all_rounds else None

    @property
    def models(self) -> dict[int, Ref]:
        """The available models by round: those that are stored, and the newest."""
        newest = {len(self.history): self.vectors["model"]} if "model" in self.vectors else {}
        return newest | self.kept  # a stored model of the newest round is the one that was tested

    @property
    def best(self) -> int | None:
        """The round with the best model, the first of several; None if none was tested."""
        return best_round(self.history, self.settings.task.kind)

    def round_called(self, what: int | Literal["best"] | None) -> int:
        """Return the number of a round: of the best or the newest (None) one; raises JobError if none is the best."""
        if what is None:
            return len(self.history)
        if what != "best":
            return what
        if self.best is None:
            raise JobError(f"no round of job {self.name!r} was measured, so none is the best: give a round number")
        return self.best

    def not_kept(self, number: int) -> str:
        """Return why the model of a round is not available, and which models are."""
        if number > len(self.history):
            done = quantity(len(self.history), "round")
            return f"job {self.name!r} has completed {done}: there is no round {number} yet"
        return f"the model of round {number} of job {self.name!r} is not stored; stored: {as_ranges(self.models)}"

    def accuracy(self, number: int) -> float:
        """Return the accuracy of a round's model; NaN before the first round and if it was not measured."""
        return self.history[number - 1].accuracy if 0 < number <= len(self.history) else nan

    def copy(self) -> JobState:
        """Return a copy for work that runs in parallel with the machine, which continues to change its own.

        Only the tables are copied: their values are replaced but never changed, so both states may share them.
        """
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return msgspec.structs.replace(self, **{name: it.copy() for name, it in fields if isinstance(it, dict | list)})

    def tour_id(self, tour: TourPlan) -> TourId:
        """Return the tour's id on the wire."""
        return TourId(self.name, self.round, tour.number, tour.attempt)

    def live(self) -> set[bytes]:
        """Return the digests of the blobs that this job refers to."""
        return {ref.digest for ref in self.refs()}

    def refs(self) -> list[Ref]:
        """Return all references of this job."""
        kept = [ref for ref in (self.kit, self.initial, self.first_wire_vector, self.exemplars, self.test) if ref]
        for held in (self.vectors, self.wire_vectors, self.weights, self.kept):
            kept += held.values()
        kept += [*self.unmerged.vectors.values(), *self.unmerged.wire_vectors.values()] if self.unmerged else []
        for toured in self.arrived.values():
            kept += [*toured.vectors.values(), toured.reports]
        return kept

    def apply(self, record: JobRecord) -> None:  # noqa: C901, PLR0912, PLR0915  # one short case for each record
        """Change the state by one record."""
        match record:
            case JobStarted():
                self.status, self.unsigned = "waiting" if self.kit else "compiling", False
                self.started, self.ended = record.at, None
            case JobCompiled():
                self.status, self.kit = "waiting", record.kit
                self.exemplars, self.test = record.exemplars, record.test
                self.recipe, self.initial, self.classes = record.recipe, record.initial, record.classes
                self.first_wire_vector = record.wire_vectors["model"]
                self.vectors, self.wire_vectors = record.vectors, record.wire_vectors
                self.data_notices, self.asks = record.notices, record.asks
                self.normalisation, self.size = record.normalisation, record.size
            case JobMandated():
                self.mandate, self.signed, self.unsigned = record.mandate, record.ticket, False
            case JobWaits():
                self.status, self.detail, self.unsigned = "waiting", record.reason, record.unsigned
            case RoundPlanned():
                self.status, self.detail, self.unsigned = "running", "", False
                self.phase = record.phase
                self.tours, self.quality = record.tours, record.quality
                self.next_tour = max(tour.number for tour in record.tours) + 1
                if record.phase == "train":
                    self.fleet |= dict.fromkeys(record.newcomers)
                    self.notices = record.notices
                    self._take(record.tours)
                    if record.arranged is not None:
                        self.memo_before = self.memo
                        self.arranged, self.memo = record.arranged, record.memo
            case LegPassed():
                self.leg = record.leg
                self.vectors, self.wire_vectors = self.vectors | record.vectors, self.wire_vectors | record.wire_vectors
            case TourArrived():
                self.arrived[record.toured.tour.number] = record.toured
            case TourMoved():
                self.tours = tuple(record.tour if t.number == record.tour.number else t for t in self.tours)
            case TourGivenUp():
                self.given_up[record.number] = record.reason
            case DevicesEstimated():
                self.signatures |= record.signatures
                self.samples |= record.samples
                self.weights |= record.weights
                if record.norms and not self.history:
                    self.norms = tuple(sorted((*self.norms, *record.norms))[-MOST_NORMS:])
                self._note_failures(record)
                self._clear()
            case RoundClosed():
                self._close(record)
            case RoundFailed():
                self._fail(record)
            case RoundMeasured():
                self._measure(record)
            case RoundsKept():
                self.kept = {number: ref for number, ref in self.kept.items() if number in record.rounds}
            case JobEnded():
                self._end(record)
            case JobContinued():
                self._go_on(record)
            case JobSubmitted() | JobRemoved():
                pass

    def renumber(self, boots: int) -> None:
        """Number new tours above all that sites have seen, since records may be lost here."""
        self.next_tour = max(self.next_tour + NUMBERS_SKIPPED, boots)
        numbers = {it.number: max(it.attempt + NUMBERS_SKIPPED, boots) for it in self.tours}
        self.tours = tuple(msgspec.structs.replace(it, attempt=numbers[it.number]) for it in self.tours)
        ids = {tour.number: self.tour_id(tour) for tour in self.tours}
        self.arrived = {at: msgspec.structs.replace(toured, tour=ids[at]) for at, toured in self.arrived.items()}

    def _take(self, tours: tuple[TourPlan, ...]) -> None:
        self.counted_rounds += 1
        for device in dict.fromkeys(device for tour in tours for device in tour.hops):
            self.taken[device] = self.taken.get(device, 0) + 1

    def _close(self, record: RoundClosed) -> None:
        """Take over the results of the closed round, and drop its tours."""
        if not self.tours or self.phase != "train" or record.report.round != self.round:
            self.fleet |= dict.fromkeys(record.visits)  # the record of its plan may be missing
        while self.round < record.report.round:
            self.history.append(_unknown_round(self.round))
        self.vectors, self.wire_vectors, self.norms = record.vectors, record.wire_vectors, record.norms
        self.rises = record.rises or self.rises
        self.history.append(record.report)
        self.evaluation_pending = record.evaluation_pending
        if record.keeps:
            known = self.kept | {record.report.round: record.vectors["model"]}
            self.kept = {number: ref for number, ref in known.items() if number in record.keeps.rounds}
        self.estimation_traffic, self.unestimated, self.estimation_failures = 0, (), 0
        self.failed_rounds = 0
        self.silent = {} if len(self.history) % ASK_AGAIN_AFTER == 0 else self.silent
        self.slots = record.slots
        self.since_merge = 0 if record.merged else self.since_merge + 1
        self.merged_fleet = len(self.fleet) if record.merged else self.merged_fleet
        self.samples |= record.samples
        self.weights |= record.weights
        self.device_notes |= record.device_notes
        self._count_visits(record.visits)
        self.unmerged = record.keeps.unmerged if record.keeps else None
        self.memo_before = None
        if self.unmerged and len(self.history) < self.settings.all_rounds:  # it got more rounds during the last one
            self._take_unmerged()
        self._clear()

    def _fail(self, record: RoundFailed) -> None:
        """Keep the model and the round's number: the same round is planned again with the previous arrangement."""
        self.failed_rounds += not record.passing
        self.status, self.detail = "waiting", record.reason
        self.norms, self.rises = record.norms or self.norms, record.rises or self.rises
        self._note_failures(record)
        self._count_visits(record.visits)
        self._arrange_as_before()
        self._clear()

    def _note_failures(self, record: DevicesEstimated | RoundFailed) -> None:
        """Note the failures and the traffic that the next round with a result reports."""
        for device in record.silent:
            self.silent[device] = self.silent.get(device, 0) + 1
        self.estimation_traffic = sum_within([self.estimation_traffic, record.traffic], MAX_BYTES)
        self.unestimated = record.failures
        self.estimation_failures += record.failed

    def _count_visits(self, visits: dict[str, int]) -> None:
        for device, done in visits.items():
            self.visits[device] = self.visits.get(device, 0) + done

    def _arrange_as_before(self) -> None:
        """Restore the arranger's memory, since the current round has no result and is planned again."""
        if self.tours and self.phase == "train" and isinstance(self.memo_before, dict):
            self.memo = self.memo_before
        self.memo_before = None

    def _measure(self, record: RoundMeasured) -> None:
        """Fill in the metrics of the newest round's model."""
        self.history[record.round - 1] = with_metrics(self.history[record.round - 1], record)
        self.kept = {number: ref for number, ref in self.kept.items() if number in record.kept}
        self.evaluation_pending = False

    def _end(self, record: JobEnded) -> None:
        """Drop the current round; if the job continues, that round is arranged as before."""
        self._arrange_as_before()
        self.status, self.detail, self.ended = record.status, record.detail, record.at
        if isinstance(self.started, float) and isinstance(record.at, float):
            self.worked = (self.worked or 0.0) + max(0.0, record.at - self.started)
        self.started = None
        self._clear()

    def _go_on(self, record: JobContinued) -> None:
        """Change the number of rounds or the target; if the job was over, it waits for its turn."""
        self.text, self.continued = record.text, record.ticket
        if self.status in ENDED:
            self.status, self.detail, self.ended = "queued", "", None
            self.failed_rounds = 0
            self._take_unmerged()

    def _take_unmerged(self) -> None:
        """Continue as if the last round had not been the last."""
        if it := self.unmerged:
            self.vectors, self.wire_vectors, self.slots = it.vectors, it.wire_vectors, it.slots
            self.since_merge, self.merged_fleet = it.since_merge, it.merged_fleet
        self.unmerged = None

    def _clear(self) -> None:
        self.tours, self.arrived, self.given_up, self.leg = (), {}, {}, 0


def with_metrics(report: RoundReport, measured: RoundMeasured) -> RoundReport:
    """Return a round's report with the results of its model's test."""
    failures = (*report.failures, measured.reason) if measured.reason else report.failures
    metrics = report.metrics | measured.metrics
    return msgspec.structs.replace(
        report, accuracy=measured.accuracy, loss=measured.loss, failures=failures, metrics=metrics
    )


def _unknown_round(number: int) -> RoundReport:
    """Return a report for a round whose record is missing."""
    return RoundReport(number, nan, nan, 0, 0, 0, 0, 0.0, {}, ("the record of this round was damaged",))
