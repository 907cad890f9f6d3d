"""What a coordinator must not forget: its jobs and model lines. Only records change it (`coordinator.records`)."""

from __future__ import annotations

from itertools import filterfalse
from math import isfinite, nan
from typing import TYPE_CHECKING, Literal

import msgspec

from coordinator import rollout_records
from coordinator.audit_records import ActLogged, AuditLog
from coordinator.fleet_records import DeviceForgotten, FleetChanged, FleetHistory
from coordinator.jobs.goal import figure_of
from coordinator.jobs.settings import read_job
from coordinator.mandate_records import JobMandated, MandateWithdrawn, withdrawn
from coordinator.records import (
    ENDED,
    INITIAL,
    DevicesEstimated,
    JobCompiled,
    JobContinued,
    JobEnded,
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
from coordinator.rollout_records import LineState, RolloutRecord
from hierarchy.arranging.arrangement import ClientSet, Memo
from sojourn.errors import JobError
from sojourn.model.metrics import DIRECTIONS, MAIN
from sojourn.protocol.limits import MOST_BYTES, Moment, sum_within
from sojourn.protocol.mandate import SignedMandate, SignedWithdrawal
from sojourn.protocol.mandate_messages import Normalisation
from sojourn.protocol.messages import Toured
from sojourn.protocol.wire import JobStatus, Ref, RoundReport, TourId, TrainingSize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.jobs.settings import JobSettings
    from coordinator.records import JobRecord, Record
    from coordinator.strategies import Strategy
    from sojourn.protocol.task import Kind

MOST_NORMS = 256
"""As many as an order of a tour holds."""
ASK_AGAIN_AFTER = 5
"""Rounds after which devices that gave no answer to an estimation are asked again."""
NAMES_REMEMBERED = 1000
"""Of removed jobs whose devices may still remember them; the oldest goes first."""
NUMBERS_SKIPPED = 1_000_000
"""More tours than a job has between two backups, and more attempts than a tour."""


class JobState(msgspec.Struct):
    """All that is durable of a job."""

    name: str
    text: str
    ticket: str = ""
    status: JobStatus = "queued"
    detail: str = ""
    kit: Ref | None = None
    exemplars: Ref | None = None
    test: Ref | None = None
    recipe: str = ""
    """What the kit was made of: another job with the same recipe can use the kit."""
    initial: Ref | None = None
    """The first model, exact: another job with the same recipe can begin with it."""
    first_handout: Ref | None = None
    """The first model as it travels down: every estimation starts from it."""
    classes: int = 0
    vectors: dict[str, Ref] = {}
    """The job's state, exact: the model, and what its aggregator keeps."""
    handout: dict[str, Ref] = {}
    """The same vectors as they travel to the sites."""
    phase: Phase = "train"
    tours: tuple[TourPlan, ...] = ()
    quality: dict[str, float] = {}
    leg: int = 0
    """The leg of the present round that is under way."""
    fleet: dict[str, None] = {}
    """All devices that the job has ever had: N of them."""
    merged_fleet: int = 0
    """How many they were when models last merged."""
    notices: tuple[str, ...] = ()
    arranged: tuple[ClientSet, ...] = ()
    """The sets as they were last arranged, for schedules that keep an arrangement."""
    memo: Memo = {}
    """What the arranger remembers."""
    slots: dict[str, float] = {}
    """The samples that each slot has seen since models last merged."""
    since_merge: int = 0
    """The rounds since then."""
    arrived: dict[int, Toured] = {}
    given_up: dict[int, str] = {}
    signatures: dict[str, tuple[float, ...]] = {}
    weights: dict[str, Ref] = {}
    """What a device is known by where that is a vector of weights: its classifier, or its last update."""
    samples: dict[str, int] = {}
    """How many samples each device has, as it reported."""
    visits: dict[str, int] = {}
    """How many visits of each device have counted."""
    silent: dict[str, int] = {}
    """How often a device gave no answer to an estimation."""
    next_tour: int = 0
    norms: tuple[float, ...] = ()
    rises: tuple[float, float] | msgspec.UnsetType = msgspec.UNSET
    """By which factor visits of the last round made the loss on the exemplars grow: the median, and how far they are
    from it; unset before it is known."""
    data_notices: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """What is odd about the job's own data, if something is; told with its first round."""
    asks: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """What the kit asks of devices and sites, if something; unset before 0.6.0."""
    history: list[RoundReport] = []
    estimation_traffic: int = 0
    """Bytes since the last round with a result, of estimations and of rounds: they count as the next one's."""
    kept: dict[int, Ref] | msgspec.UnsetType = msgspec.UNSET
    """The models of rounds that can still be had, exact; unset before 0.4.0."""
    unmerged: Unmerged | msgspec.UnsetType = msgspec.UNSET
    """What more rounds go on from, where the last one merged only because it was the last."""
    memo_before: Memo | msgspec.UnsetType = msgspec.UNSET
    """What the arranger remembered before it arranged the round that is under way."""
    continued: str | msgspec.UnsetType = msgspec.UNSET
    """What the operator called the last request for more rounds."""
    submitted: Moment | msgspec.UnsetType = msgspec.UNSET
    started: Moment | msgspec.UnsetType = msgspec.UNSET
    """When it last had its turn."""
    ended: Moment | msgspec.UnsetType = msgspec.UNSET
    worked: float | msgspec.UnsetType = msgspec.UNSET
    """Seconds from its turn to its end, over all the times that it had one."""
    unestimated: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """What went wrong since the last round with a result, in estimations and in rounds, in lines for people."""
    estimation_failures: int | msgspec.UnsetType = msgspec.UNSET
    """How many visits failed then."""
    taken: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """How many rounds took each device, of those that were counted."""
    counted_rounds: int | msgspec.UnsetType = msgspec.UNSET
    """The rounds of which it was counted whom they took: earlier versions did not."""
    unmeasured: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the model of the newest round is still to be tested; unset where it is not."""
    normalisation: Normalisation | msgspec.UnsetType = msgspec.UNSET
    """What went into the kit besides the job's file; unset before 0.8.0."""
    mandate: SignedMandate | msgspec.UnsetType = msgspec.UNSET
    """What an operator signed for it last."""
    signed: str | msgspec.UnsetType = msgspec.UNSET
    """What the operator called that request."""
    size: TrainingSize | msgspec.UnsetType = msgspec.UNSET
    """What training takes of a device's memory."""
    failed_rounds: int | msgspec.UnsetType = msgspec.UNSET
    """How many rounds in a row ended without a result, up to the newest; unset where that one had a result."""

    @property
    def begun(self) -> bool:
        """Whether a round was planned: then as many devices as the job began with are not asked for again."""
        return bool(self.history or self.fleet)

    @property
    def replaceable(self) -> bool:
        """Whether another job may take its name: it ended in vain, and no device did a visit for it."""
        return self.status in ("refused", "failed") and not self.history and not self.visits

    @property
    def always(self) -> list[str]:
        """The devices that every round took, where some were left; from the second round on."""
        every = sorted(device for device, rounds in (self.taken or {}).items() if rounds == self.counted_rounds)
        return every if (self.counted_rounds or 0) > 1 and len(every) < len(self.fleet) else []

    @property
    def never(self) -> list[str]:
        """The devices that the job could have had, and no round took; from the second round on."""
        if (self.counted_rounds or 0) < 2:
            return []
        visited, taken = self.visits, self.taken or {}
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
        """The number of the round that is under way or next; the first is 1."""
        return len(self.history) + 1

    @property
    def told_rounds(self) -> int:
        """How many rounds people are shown: while the job runs, the newest one only with its figures."""
        return len(self.history) - bool(self.unmeasured and self.status not in ENDED)

    @property
    def gathered(self) -> bool:
        """Whether every tour of the present leg has arrived or was given up."""
        out = [t for t in self.tours if t.leg <= self.leg]
        return bool(self.tours) and all(t.number in self.arrived or t.number in self.given_up for t in out)

    @property
    def last_leg(self) -> bool:
        """Whether no tour waits for the present leg."""
        return all(tour.leg <= self.leg for tour in self.tours)

    def exact_vector(self, name: str) -> Ref:
        """One of the job's vectors, exact."""
        return self.initial if name == INITIAL and self.initial else self.vectors["model" if name == INITIAL else name]

    def travelling_vector(self, name: str) -> Ref:
        """One of the job's vectors, as it travels down."""
        first = self.first_handout
        return first if name == INITIAL and first else self.handout["model" if name == INITIAL else name]

    def why_complete(self) -> str | None:
        """Why the job needs no further round; None while it does."""
        if not self.history:
            return None
        settings, rounds = self.settings, len(self.history)
        if settings.goal is not None and settings.goal.reached(self.history[-1]):
            return f"the target {settings.goal} was reached in round {rounds}"
        return f"{rounds} rounds are done" if rounds >= settings.all_rounds else None

    @property
    def models(self) -> dict[int, Ref]:
        """The models that can be had, by their rounds: those that are kept, and the newest."""
        newest = {len(self.history): self.vectors["model"]} if "model" in self.vectors else {}
        return newest | (self.kept or {})  # what was kept of the newest round is what was measured then

    @property
    def best(self) -> int | None:
        """The round whose model was the best, the first of several; None where nothing was measured."""
        return best_round(self.history, self.settings.task.kind)

    def round_called(self, what: int | Literal["best"] | None) -> int:
        """The number of a round: of the best one, or of the newest (None); JobError where none is the best."""
        if what is None:
            return len(self.history)
        if what != "best":
            return what
        if self.best is None:
            raise JobError(f"no round of job {self.name!r} was measured, so that none is the best: name its number")
        return self.best

    def not_kept(self, number: int) -> str:
        """Why the model of a round cannot be had, and which can."""
        if number > len(self.history):
            return f"job {self.name!r} has done {len(self.history)} rounds: there is no round {number} yet"
        return f"round {number} of job {self.name!r} is not kept; kept are {as_ranges(self.models)}"

    def accuracy(self, number: int) -> float:
        """How accurate the model of a round was; NaN before the first and where it was not measured."""
        return self.history[number - 1].accuracy if 0 < number <= len(self.history) else nan

    def copy(self) -> JobState:
        """The same state by itself: work runs beside the machine, which goes on changing its own.

        What changes are the tables; what is in them is replaced, never changed, so that both may have it.
        """
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return msgspec.structs.replace(self, **{name: it.copy() for name, it in fields if isinstance(it, dict | list)})

    def tour_id(self, tour: TourPlan) -> TourId:
        """The tour's name on the wire."""
        return TourId(self.name, self.round, tour.number, tour.attempt)

    def live(self) -> set[bytes]:
        """The blobs that this job refers to."""
        return {ref.digest for ref in self.refs()}

    def refs(self) -> list[Ref]:
        """What this job refers to."""
        kept = [ref for ref in (self.kit, self.initial, self.first_handout, self.exemplars, self.test) if ref]
        kept += [*self.vectors.values(), *self.handout.values(), *self.weights.values(), *(self.kept or {}).values()]
        kept += [*self.unmerged.vectors.values(), *self.unmerged.handout.values()] if self.unmerged else []
        for toured in self.arrived.values():
            kept += [*toured.vectors.values(), toured.reports]
        return kept

    def apply(self, record: JobRecord) -> None:  # noqa: C901, PLR0912, PLR0915  # one short case for each record
        """Change by one record."""
        match record:
            case JobStarted():
                self.status = "waiting" if self.kit else "compiling"
                self.started, self.ended = record.at, msgspec.UNSET
            case JobCompiled():
                self.status, self.kit = "waiting", record.kit
                self.exemplars, self.test = record.exemplars, record.test
                self.recipe, self.initial, self.classes = record.recipe, record.initial, record.classes
                self.first_handout = record.handout["model"]
                self.vectors, self.handout = record.vectors, record.handout
                self.data_notices, self.asks = record.notices, record.asks
                self.normalisation, self.size = record.normalisation, record.size
            case JobMandated():
                self.mandate, self.signed = record.mandate, record.ticket
            case JobWaits():
                self.status, self.detail = "waiting", record.reason
            case RoundPlanned():
                self.status, self.detail, self.phase = "running", "", record.phase
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
                self.vectors, self.handout = self.vectors | record.vectors, self.handout | record.handout
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
                for device in record.silent:
                    self.silent[device] = self.silent.get(device, 0) + 1
                self.estimation_traffic = sum_within([self.estimation_traffic, record.traffic], MOST_BYTES)
                self.unestimated = record.failures
                self.estimation_failures = (self.estimation_failures or 0) + (record.failed or 0)
                self._clear()
            case RoundClosed():
                self._close(record)
            case RoundFailed():
                self._fail(record)
            case RoundMeasured():
                self._measure(record)
            case RoundsKept():
                self.kept = {number: ref for number, ref in (self.kept or {}).items() if number in record.rounds}
            case JobEnded():
                self._end(record)
            case JobContinued():
                self._go_on(record)
            case JobSubmitted() | JobRemoved():
                pass

    def renumber(self, boots: int) -> None:
        """Let every tour be newer than all that sites have seen: of that some is forgotten here."""
        self.next_tour = max(self.next_tour + NUMBERS_SKIPPED, boots)
        numbers = {it.number: max(it.attempt + NUMBERS_SKIPPED, boots) for it in self.tours}
        self.tours = tuple(msgspec.structs.replace(it, attempt=numbers[it.number]) for it in self.tours)
        ids = {tour.number: self.tour_id(tour) for tour in self.tours}
        self.arrived = {at: msgspec.structs.replace(toured, tour=ids[at]) for at, toured in self.arrived.items()}

    def _take(self, tours: tuple[TourPlan, ...]) -> None:
        self.counted_rounds = (self.counted_rounds or 0) + 1
        self.taken = self.taken or {}
        for device in dict.fromkeys(device for tour in tours for device in tour.hops):
            self.taken[device] = self.taken.get(device, 0) + 1

    def _close(self, record: RoundClosed) -> None:
        """Take over what the closed round came to, and have no tours any more."""
        if not self.tours or self.phase != "train" or record.report.round != self.round:
            self.fleet |= dict.fromkeys(record.visits)  # the record of its plan is missing
        while self.round < record.report.round:
            self.history.append(_unknown_round(self.round))
        self.vectors, self.handout, self.norms = record.vectors, record.handout, record.norms
        self.rises = record.rises or self.rises
        self.history.append(record.report)
        self.unmeasured = record.unmeasured or msgspec.UNSET
        if record.keeps:
            known = (self.kept or {}) | {record.report.round: record.vectors["model"]}
            self.kept = {number: ref for number, ref in known.items() if number in record.keeps.rounds}
        self.estimation_traffic, self.unestimated, self.estimation_failures = 0, (), 0
        self.failed_rounds = msgspec.UNSET
        self.silent = {} if len(self.history) % ASK_AGAIN_AFTER == 0 else self.silent
        self.slots = record.slots
        self.since_merge = 0 if record.merged else self.since_merge + 1
        self.merged_fleet = len(self.fleet) if record.merged else self.merged_fleet
        self.samples |= record.samples
        self.weights |= record.weights
        self._count_visits(record.visits)
        self.unmerged = (record.keeps and record.keeps.unmerged) or msgspec.UNSET
        self.memo_before = msgspec.UNSET
        if self.unmerged and len(self.history) < self.settings.all_rounds:  # more were asked for while it closed
            self._take_unmerged()
        self._clear()

    def _fail(self, record: RoundFailed) -> None:
        """Keep the model and the round's number: the same round is planned again, arranged from what was known."""
        self.failed_rounds = (self.failed_rounds or 0) + (not record.passing)
        self.status, self.detail = "waiting", record.reason
        self.norms, self.rises = record.norms or self.norms, record.rises or self.rises
        for device in record.silent:
            self.silent[device] = self.silent.get(device, 0) + 1
        self.estimation_traffic = sum_within([self.estimation_traffic, record.traffic], MOST_BYTES)
        self.unestimated = record.failures
        self.estimation_failures = (self.estimation_failures or 0) + record.failed
        self._count_visits(record.visits)
        self._arrange_as_before()
        self._clear()

    def _count_visits(self, visits: dict[str, int]) -> None:
        for device, done in visits.items():
            self.visits[device] = self.visits.get(device, 0) + done

    def _arrange_as_before(self) -> None:
        """The round under way has no result: when it is planned again, the arranger remembers what it did before."""
        if self.tours and self.phase == "train" and isinstance(self.memo_before, dict):
            self.memo = self.memo_before
        self.memo_before = msgspec.UNSET

    def _measure(self, record: RoundMeasured) -> None:
        """Fill in how good the model of the newest round is."""
        self.history[record.round - 1] = with_figures(self.history[record.round - 1], record)
        self.kept = {number: ref for number, ref in (self.kept or {}).items() if number in record.kept}
        self.unmeasured = msgspec.UNSET

    def _end(self, record: JobEnded) -> None:
        """No round is under way any more: should the job go on, that one is arranged as it was."""
        self._arrange_as_before()
        self.status, self.detail, self.ended = record.status, record.detail, record.at
        if isinstance(self.started, float) and isinstance(record.at, float):
            self.worked = (self.worked or 0.0) + max(0.0, record.at - self.started)
        self.started = msgspec.UNSET
        self._clear()

    def _go_on(self, record: JobContinued) -> None:
        """Have another number of rounds or another target; if it was over, wait for its turn."""
        self.text, self.continued = record.text, record.ticket
        if self.status in ENDED:
            self.status, self.detail, self.ended = "queued", "", msgspec.UNSET
            self.failed_rounds = msgspec.UNSET
            self._take_unmerged()

    def _take_unmerged(self) -> None:
        """Go on as if the last round had not been the last."""
        if it := self.unmerged:
            self.vectors, self.handout, self.slots = it.vectors, it.handout, it.slots
            self.since_merge, self.merged_fleet = it.since_merge, it.merged_fleet
        self.unmerged = msgspec.UNSET

    def _clear(self) -> None:
        self.tours, self.arrived, self.given_up, self.leg = (), {}, {}, 0


def as_ranges(numbers: Iterable[int]) -> str:
    """Numbers for people: 1, 10, 18 to 20."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(str(number) for number in run) for run in runs
    )


def best_round(history: Iterable[RoundReport], kind: Kind = "classification") -> int | None:
    """The round with the best main figure, the first of several; None where nothing was measured."""
    name = MAIN[kind]
    sign = 1.0 if DIRECTIONS[name] == "higher" else -1.0
    measured = [it for it in history if isfinite(figure_of(it, name))]
    return max(measured, key=lambda it: sign * figure_of(it, name)).round if measured else None


def with_figures(report: RoundReport, measured: RoundMeasured) -> RoundReport:
    """A round's report with what its model's test found."""
    failures = (*report.failures, measured.reason) if measured.reason else report.failures
    figures = {**(report.figures or {}), **(measured.figures or {})} or measured.figures
    return msgspec.structs.replace(
        report, accuracy=measured.accuracy, loss=measured.loss, failures=failures, figures=figures
    )


def _unknown_round(number: int) -> RoundReport:
    """Of a round whose record is missing only this is known: there was one."""
    return RoundReport(number, nan, nan, 0, 0, 0, 0, 0.0, {}, ("the record of this round was damaged",))


class CoordinatorState(msgspec.Struct):
    """The durable state of a coordinator: its jobs, oldest first, and its model lines."""

    jobs: dict[str, JobState] = {}
    lines: dict[str, LineState] = {}
    tours_before: int | msgspec.UnsetType = msgspec.UNSET
    """Where the tours of new jobs are numbered from: a job that was lost or removed may be submitted again."""
    removed: dict[str, None] | msgspec.UnsetType = msgspec.UNSET
    """The removed jobs of which devices may still remember something."""
    remembered: FleetHistory | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="seen")
    """The devices that were ever seen, and their visits; unset before 0.4.0."""
    withdrawals: dict[str, SignedWithdrawal] | msgspec.UnsetType = msgspec.UNSET
    """By job, the withdrawals of mandates that might still hold."""
    audit_log: AuditLog | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="audit")
    """What operators did; unset before 0.8.0."""

    @property
    def seen(self) -> FleetHistory:
        """The devices that were ever seen, and their visits."""
        return FleetHistory() if isinstance(self.remembered, msgspec.UnsetType) else self.remembered

    @property
    def audit(self) -> AuditLog:
        """What operators did."""
        return AuditLog() if isinstance(self.audit_log, msgspec.UnsetType) else self.audit_log

    def apply(self, record: Record) -> None:
        """Change by one record."""
        if isinstance(record, ActLogged):
            self.audit_log = self.audit
            self.audit_log.apply(record)
        elif isinstance(record, DeviceForgotten):
            self.remembered = self.seen
            self.remembered.forget(record)
        elif isinstance(record, FleetChanged):
            self.remembered = self.seen
            self.remembered.apply(record)
        elif isinstance(record, RolloutRecord):
            rollout_records.apply(self.lines, record)
        elif isinstance(record, MandateWithdrawn):
            self.withdrawals = withdrawn(self.withdrawals or {}, record)
        elif isinstance(record, JobSubmitted):
            state = JobState(record.job, record.text, record.ticket, next_tour=self._skipped, submitted=record.at)
            self.jobs[record.job] = state
        elif isinstance(record, JobRemoved):
            self._remove(self.jobs.pop(record.job), record)
        else:
            if isinstance(record, RoundClosed | RoundFailed | DevicesEstimated):
                self._remember_visits(record)
            ended = self.jobs[record.job].status in ENDED
            self.jobs[record.job].apply(record)
            if ended and isinstance(record, JobContinued):  # behind those that wait
                self.jobs[record.job] = self.jobs.pop(record.job)

    def _remember_visits(self, record: RoundClosed | RoundFailed | DevicesEstimated) -> None:
        """Keep how the visits of a round or an estimation ended."""
        state, phase = self.jobs[record.job], self.jobs[record.job].phase
        if not isinstance(record, RoundFailed):
            phase = "train" if isinstance(record, RoundClosed) else "estimate"
        self.remembered = self.seen
        self.remembered.visited(record.at or 0.0, record.job, state.round, phase, record.visited or ())

    def _remove(self, state: JobState, record: JobRemoved) -> None:
        """Sites have seen its tours, and devices may have its memory: another job of its name is not the same."""
        self.tours_before = max(self._skipped, state.next_tour)
        if record.remembered:
            names = {**(self.removed or {}), state.name: None}
            self.removed = dict.fromkeys(list(names)[-NAMES_REMEMBERED:])

    def renumber(self, boots: int) -> None:
        """Let the tours of all jobs be newer than those that sites have seen; `boots` is higher than ever before.

        No randomness comes from these numbers: what is done again gives the same bits, where devices remember nothing.
        """
        self.tours_before = max(self._skipped + NUMBERS_SKIPPED, boots)
        for state in self.jobs.values():
            state.renumber(boots)

    @property
    def _skipped(self) -> int:
        return self.tours_before if isinstance(self.tours_before, int) else 0

    @property
    def unfinished(self) -> list[JobState]:
        """The jobs that have not ended, oldest first."""
        return [state for state in self.jobs.values() if state.status not in ENDED]
