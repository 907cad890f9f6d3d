"""Checks whether the parts of a strategy fit together and fit the job: if training with them gives a meaningful result.

When a round is planned, `hierarchy.arranging.arrangement` and `coordinator.rounds.planning` check whether they also fit
the online devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from coordinator.strategies import Strategy
from sojourn.errors import ConfigError
from sojourn.parts import (
    CluSampArranger,
    Common,
    CustomArranger,
    Elmy,
    FedCatArranger,
    FedSeqArranger,
    Fusion,
    LocalNorms,
    NoFinisher,
    Own,
    OwnAggregator,
    OwnEstimator,
    OwnFinisher,
    OwnObjective,
    OwnSchedule,
    PhasedRing,
    Ring,
    SingleArranger,
    SiteArranger,
    Slots,
    WeightedMean,
    name_of,
)
from sojourn.parts.custom_code import load

if TYPE_CHECKING:
    from coordinator.jobs.settings import JobSettings


def objections(strategy: Strategy, job: JobSettings | None = None) -> list[str]:
    """Return one sentence with a reason and a fix for each problem of this combination; empty if it is valid."""
    found = chain.from_iterable(check(strategy) for check in CHECKS)
    return [*found, *(_job(strategy, job) if job else ())]


def _custom_parts(strategy: Strategy) -> Iterator[str]:
    """Check that custom coordinator parts are installed here; a custom objective runs on devices and is not checked."""
    methods = {
        OwnEstimator: ("estimate",),
        CustomArranger: ("arrange",),
        OwnSchedule: ("depart", "merges"),
        OwnAggregator: ("aggregate",),
        OwnFinisher: ("finish",),
    }
    every = (strategy.estimator, strategy.arranger, strategy.schedule, strategy.aggregator, strategy.finisher)
    for part in every:
        if isinstance(part, Own):
            try:
                load(part, *methods[type(part)])
            except ConfigError as error:
                yield str(error)


def _halves(strategy: Strategy) -> Iterator[str]:
    """Check that objectives and aggregators that are two halves of one algorithm are used together."""
    objective, aggregator = name_of(strategy.objective), name_of(strategy.aggregator)
    wanted = strategy.objective.server_half
    if wanted and wanted != aggregator:
        yield (
            f"the objective {objective} is one half of an algorithm: its other half is the aggregator {wanted}, not "
            f'{aggregator}: set aggregator.name = "{wanted}", or objective.name = "sgd"'
        )
    wanted = strategy.aggregator.device_half
    if wanted and wanted != objective:
        yield (
            f"the aggregator {aggregator} is one half of an algorithm: its other half is the objective {wanted}, not "
            f'{objective}: set objective.name = "{wanted}", or aggregator.name = "uniform-mean"'
        )


def _optimiser(strategy: Strategy) -> Iterator[str]:
    training = strategy.training
    if training.optimiser == "adam" and training.momentum:
        yield (
            f"Adam has its own moments and would ignore training.momentum = {training.momentum}: set it to 0, or "
            f'set training.optimiser = "sgd"'
        )
    if strategy.objective.plain_sgd and (training.momentum or training.optimiser != "sgd"):
        yield (
            f"the objective {name_of(strategy.objective)} needs plain gradients, which momentum and optimisers other "
            f'than SGD change: set training.optimiser = "sgd" and training.momentum = 0'
        )


def _memory(strategy: Strategy) -> Iterator[str]:
    """Check that an objective with a memory has at most one visit at a time per device, and more than one round."""
    objective, name = strategy.objective, name_of(strategy.objective)
    if not objective.keeps:
        return
    arranger, schedule = name_of(strategy.arranger), name_of(strategy.schedule)
    # A ring runs one tour after another.
    if not strategy.arranger.once and not strategy.schedule.in_turn:
        yield (
            f"the objective {name} keeps a memory between visits, and the arranger {arranger} may put a device on two "
            f"tours at once, whose memories would conflict: choose another arranger, or set "
            f'objective.name = "prox"'
        )
    if strategy.schedule.at_edge:
        yield (
            f"the objective {name} keeps a memory between visits, and edge-cloud merges at the edge, where neither "
            f'that memory nor its results are merged: set objective.name = "prox", or schedule.name = "every-round"'
        )
    if strategy.schedule.fixed_rounds == 1 and not isinstance(objective, OwnObjective):
        yield (
            f"the memory of the objective {name} is used from the second round on, and {schedule} has one round: "
            f'choose objective.name = "prox", or another schedule'
        )


def _edges(strategy: Strategy) -> Iterator[str]:
    if strategy.schedule.at_edge and strategy.arranger.alone:
        yield (
            f"edge-cloud merges the devices of a set at its site, and the arranger {name_of(strategy.arranger)} makes "
            f'sets of one device: set arranger.name = "site"'
        )


def _pools(strategy: Strategy) -> Iterator[str]:
    objective = strategy.objective
    if isinstance(objective, Elmy) and objective.start == "own" and strategy.schedule.in_turn:
        yield (
            'elmy with start = "own" begins a tour with another random model, and ring passes one model from tour to '
            'tour, so the training of a site would be lost at the next: set objective.start = "received", or '
            'schedule.name = "one-shot"'
        )


def _models_on_devices(strategy: Strategy) -> Iterator[str]:
    """Check that MetaFed's schedule, which sets the phase, is used with its objective, which runs it."""
    objective, schedule, aggregator = strategy.objective, strategy.schedule, strategy.aggregator
    if isinstance(schedule, PhasedRing) != isinstance(objective, Common):
        yield (
            f"the schedule {name_of(schedule)} and the objective {name_of(objective)} do not fit: devices keep "
            f"their models only with both of MetaFed's parts: set schedule.name = "
            f'"phased-ring" and objective.name = "common", or neither'
        )
    if isinstance(objective, Common) and objective.phase != "warm-up":
        yield "the schedule sets objective.phase in each round: leave it out"
    if isinstance(objective, Common) and objective.anchor != "received":
        yield (
            "a device of metafed learns from the model of the previous device: leave objective.anchor out, or set it "
            'to "received"'
        )
    if isinstance(schedule, PhasedRing) and (aggregator.steps or aggregator.device_half):
        yield (
            f"a ring returns one model, and the aggregator {name_of(aggregator)} would change it again: set "
            f'aggregator.name = "uniform-mean"'
        )


def _rows(strategy: Strategy) -> Iterator[str]:
    """Report an estimator that does not give the rows that the arranger needs."""
    arranger, estimator = strategy.arranger, strategy.estimator
    what, given = name_of(arranger), name_of(estimator)
    if arranger.needs != "nothing" and not estimator.rows:
        yield (
            f"the arranger {what} needs rows that describe each device's data, and the estimator {given} gives "
            f'none: set estimator.name = "signature"'
        )
    elif arranger.needs == "classes" and not estimator.by_class:
        yield (
            f"the arranger {what} needs one number for each class, and the estimator {given} gives other "
            f'rows: set estimator.name = "signature", "confidence" or "class-counts"'
        )


def _samples(strategy: Strategy) -> Iterator[str]:
    """Report an arranger that needs sample counts without an estimator; every estimator but `none` requests them."""
    arranger = strategy.arranger
    if arranger.weighs and not strategy.estimator.sizes:
        yield (
            f"the arranger {name_of(arranger)} needs the number of samples of each device, and the estimator none "
            f'does not request it: set estimator.name = "sizes", or another estimator'
        )


def _fedseq(strategy: Strategy) -> Iterator[str]:
    arranger = strategy.arranger
    if not isinstance(arranger, FedSeqArranger):
        return
    if arranger.half_sized:
        yield (
            f"fedseq makes sets x size superclients or closes them by min_samples and max_devices; sets = "
            f"{arranger.sets} with size = {arranger.size} is incomplete: set both, or neither"
        )
    if arranger.distributions and strategy.estimator.rows and not strategy.estimator.by_class:
        yield (
            f"fedseq's tau = {arranger.tau} compares distributions over classes, and the estimator "
            f'{name_of(strategy.estimator)} gives other rows: set arranger.tau = "cosine" or "euclidean", or '
            f'estimator.name = "confidence"'
        )


def _updates(strategy: Strategy) -> Iterator[str]:
    """Report updates that the coordinator cannot attribute to one device."""
    estimator, schedule = strategy.estimator, strategy.schedule
    if not estimator.from_visits:
        return
    if not strategy.arranger.alone or getattr(schedule, "passes", 1) > 1:
        yield (
            "the estimator updates with epochs = 0 describes a device by its last visit, and after a tour of several "
            "visits only the model at its end is known: set estimator.epochs = 1"
        )
    if schedule.arranges_once:
        yield (
            f"the estimator updates with epochs = 0 has no rows before the first round, and {name_of(schedule)} "
            f"arranges devices only then: set estimator.epochs = 1, or {_rearranging(strategy)}"
        )


def _fixed_draw(strategy: Strategy) -> Iterator[str]:
    """Report an arranger that draws some devices for a round under a schedule that keeps the first draw."""
    arranger = strategy.arranger
    some = isinstance(arranger, SingleArranger | SiteArranger) and arranger.fraction < 1
    draws = some or isinstance(arranger, FedCatArranger | CluSampArranger)
    if draws and strategy.schedule.arranges_once and strategy.schedule.fixed_rounds != 1:
        yield (
            f"the arranger {name_of(arranger)} draws the devices of a round, and {name_of(strategy.schedule)} with "
            f"these settings keeps the first draw, so the others never train: set {_rearranging(strategy)}"
        )


def _rearranging(strategy: Strategy) -> str:
    """Return the setting with which devices are arranged in every round."""
    kept = hasattr(strategy.schedule, "rearrange_every")
    return "schedule.rearrange_every = 1" if kept else 'schedule.name = "every-round"'


def _merge(strategy: Strategy) -> Iterator[str]:
    """Check schedules and aggregators that work against the arranger, or have no effect."""
    arranger, schedule, aggregator = strategy.arranger, strategy.schedule, strategy.aggregator
    if schedule.counts_sets and not arranger.counted:
        yield (
            f"stp needs another number of groups in each round, and the arranger {name_of(arranger)} does "
            f'not accept a number: set arranger.name = "icg", "random", "visit" or "hiercluster"'
        )
    plain = isinstance(aggregator, WeightedMean)
    fix = 'aggregator.name = "uniform-mean"' if plain else 'aggregator.weighting = "uniform"'
    if arranger.draws_by_samples and getattr(aggregator, "weighting", "") == "samples":
        yield (
            f"{name_of(arranger)} draws devices in proportion to their samples, and the aggregator "
            f"{name_of(aggregator)} would weight them by samples again: set {fix}"
        )
    if schedule.fixed_rounds == 1 and aggregator.steps:
        yield (
            f"the aggregator {name_of(aggregator)} changes each parameter by about its lr in a round, and "
            f"{name_of(schedule)} has one round, so the devices' training would be lost: set "
            f'aggregator.name = "weighted-mean"'
        )
    if schedule.in_turn and aggregator.compares:
        yield (
            f"ida weights models by their distance to the mean, and {name_of(schedule)} returns one model, so "
            'it would have no effect: set aggregator.name = "weighted-mean"'
        )


def _window(strategy: Strategy) -> Iterator[str]:
    """Report an aggregator window that cannot give the job's model."""
    schedule, window = strategy.schedule, strategy.aggregator.window
    if window == 1:
        return
    if schedule.fixed_rounds == 1 or isinstance(schedule, Slots | PhasedRing | OwnSchedule):
        yield (
            f"aggregator.window = {window} averages that many merges, one after each round, and the schedule "
            f"{name_of(schedule)} does not merge after each of several rounds: leave aggregator.window out, or set "
            f'schedule.name = "every-round"'
        )
    if not isinstance(strategy.finisher, NoFinisher) or isinstance(strategy.objective, Fusion):
        half = strategy.objective if isinstance(strategy.objective, Fusion) else strategy.finisher
        yield (
            f"aggregator.window = {window} averages that many merged models, and {name_of(half)} replaces "
            f"the merged model: leave aggregator.window out"
        )


def _finisher(strategy: Strategy) -> Iterator[str]:
    """Check that the objective and the schedule give a finisher all models of one round separately."""
    finisher, objective, schedule = strategy.finisher, strategy.objective, strategy.schedule
    name = name_of(finisher)
    if objective.finisher_half and objective.finisher_half != name:
        yield (
            f"the objective {name_of(objective)} produces results for the finisher {objective.finisher_half}, "
            f'and the finisher is {name}: set finisher.name = "{objective.finisher_half}", or objective.name = "sgd"'
        )
    if isinstance(finisher, NoFinisher):
        return
    if finisher.device_half and finisher.device_half != name_of(objective):
        yield (
            f"the finisher {name} needs the results of the objective {finisher.device_half}, and the objective is "
            f'{name_of(objective)}: set objective.name = "{finisher.device_half}", or finisher.name = "none"'
        )
    if schedule.in_turn or schedule.at_edge or isinstance(schedule, Slots):
        yield (
            f"the finisher {name} needs all models of a round, and the schedule {name_of(schedule)} returns one "
            f'model, or keeps models separate for several rounds: set schedule.name = "one-shot" or "every-round"'
        )
    if finisher.outcome == "vote" and schedule.fixed_rounds != 1:
        yield (
            f"the finisher {name} ends with a vote of models, from which a second round cannot start: set "
            f'schedule.name = "one-shot"'
        )
    if finisher.alone and not strategy.arranger.alone:
        yield (
            f"the finisher {name} needs the models of single devices, and the arranger "
            f'{name_of(strategy.arranger)} makes tours of several: set arranger.name = "single"'
        )


def _models_on_devices_of_job(strategy: Strategy, job: JobSettings) -> Iterator[str]:
    """Check that the job's model has the BatchNorm layers that devices keep, and that MetaFed has an accuracy."""
    objective = strategy.objective
    if objective.outcome == "own models" and job.target is not None:
        yield (
            f"target = {job.target} applies to the job's one model on the job's test set, and the result is a model "
            "for each device: leave target out"
        )
    keeps_norms = isinstance(objective, LocalNorms) or (isinstance(objective, Common) and not objective.share_norms)
    if keeps_norms and job.model.batchnorm == "frozen":
        yield (
            'model.batchnorm = "frozen" removes running statistics from the model, and devices keep their own: '
            'leave it out, or set it to "merge"'
        )
    if isinstance(objective, Common) and job.task.kind != "classification":
        yield (
            f"metafed chooses between models by their accuracy, and a task of the kind {job.task.kind!r} "
            'has none: use strategy = "fedbn" or another one'
        )


def _finisher_of_job(strategy: Strategy, job: JobSettings) -> Iterator[str]:
    """Report a task that does not fit the finisher."""
    if strategy.finisher.classes and job.task.kind != "classification":
        yield (
            f"the finisher {name_of(strategy.finisher)} needs a classification, and this job's task is "
            f'{job.task.kind}: choose another strategy, or finisher.name = "none"'
        )


def _job(strategy: Strategy, job: JobSettings) -> Iterator[str]:
    yield from _models_on_devices_of_job(strategy, job)
    yield from _finisher_of_job(strategy, job)
    schedule, tours = strategy.schedule, job.tours
    fixed = schedule.fixed_rounds
    if fixed is not None and job.rounds is not None and job.rounds != fixed:
        more = (
            f"set schedule.trips = {job.rounds}, as fedelmy-few-shot does"
            if isinstance(schedule, Ring)
            else f"set schedule.trips = {max(1, job.rounds - 2)}: it has one round before the trips and one after them"
            if isinstance(schedule, PhasedRing)
            else 'set schedule.name = "every-round"'
        )
        yield (
            f"the job has rounds = {job.rounds}, and the schedule {name_of(schedule)} has {fixed}: leave rounds out, "
            f"or {more}"
        )
    if tours.on_lost_visit == "swap" and not tours.spares:
        yield (
            'tours.on_lost_visit = "swap" needs devices to swap in, and tours.spares = 0 gives a tour no spare: set '
            'tours.spares = 1, or tours.on_lost_visit = "skip"'
        )
    if tours.on_lost_visit == "retry" and not tours.retries:
        yield (
            'tours.on_lost_visit = "retry" with tours.retries = 0 never retries: set tours.retries = 1, or '
            'tours.on_lost_visit = "skip"'
        )
    if tours.visit_deadline < tours.lease:
        yield (
            f"tours.deadline = {tours.deadline:g} ends before a lease of tours.lease = {tours.lease:g} seconds: "
            f"set it to the maximum seconds of a visit to the slowest device"
        )


CHECKS = (
    _custom_parts,
    _halves,
    _optimiser,
    _memory,
    _edges,
    _pools,
    _models_on_devices,
    _rows,
    _samples,
    _fedseq,
    _updates,
    _fixed_draw,
    _merge,
    _window,
    _finisher,
)
