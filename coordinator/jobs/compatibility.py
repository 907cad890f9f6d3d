"""Whether the parts of a strategy fit together: every combination that would train for a night and mean nothing.

Whether it fits the fleet (who shares class counts, how many devices there are) is found when a round is planned.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from coordinator.jobs import arranger_compatibility, finisher_compatibility
from sojourn.errors import ConfigError
from sojourn.parts import (
    Common,
    DynServer,
    Elmy,
    Fusion,
    FusionMean,
    LocalNorms,
    NoFinisher,
    Own,
    OwnAggregator,
    OwnArranger,
    OwnEstimator,
    OwnFinisher,
    OwnObjective,
    OwnSchedule,
    PhasedRing,
    Ring,
    ScaffoldServer,
    Slots,
    WeightedMean,
    name_of,
)
from sojourn.parts.own import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.jobs.settings import JobSettings
    from coordinator.strategies import Strategy


def objections(strategy: Strategy, job: JobSettings | None = None) -> list[str]:
    """What speaks against this combination, each as a sentence that says why and what to do; none if it is sound."""
    found = chain.from_iterable(check(strategy) for check in CHECKS)
    return [*found, *(_job(strategy, job) if job else ())]


def _own_parts(strategy: Strategy) -> Iterator[str]:
    """What a user wrote must be installed here; an objective of one's own runs on devices and is not looked for."""
    methods = {
        OwnEstimator: ("estimate",),
        OwnArranger: ("arrange",),
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
    """Objectives and aggregators that are two halves of one algorithm."""
    objective, aggregator = strategy.objective, strategy.aggregator
    if objective.server_half and objective.server_half != name_of(aggregator):
        yield (
            f"the objective scaffold steps along the server's control variate, and the aggregator "
            f'{name_of(aggregator)} keeps none: set aggregator.name = "scaffold"'
        )
    lacks_half = aggregator.device_half and aggregator.device_half != name_of(objective)
    if lacks_half and isinstance(aggregator, ScaffoldServer):
        yield (
            f"the aggregator scaffold sums what the objective scaffold returns, and {name_of(objective)} returns "
            f'nothing: set objective.name = "scaffold", or aggregator.name = "uniform-mean"'
        )
    if lacks_half and isinstance(aggregator, FusionMean):
        yield (
            f"the aggregator fusion smooths the numbers of the objective fusion, and the objective is "
            f'{name_of(objective)}: set objective.name = "fusion", or aggregator.name = "uniform-mean"'
        )
    if lacks_half and isinstance(aggregator, DynServer):
        yield (
            f"the aggregator dyn takes its a from the objective dyn, and the objective is {name_of(objective)}: "
            f'set objective.name = "dyn", or aggregator.name = "uniform-mean"'
        )


def _optimiser(strategy: Strategy) -> Iterator[str]:
    training = strategy.training
    if training.optimiser == "adam" and training.momentum:
        yield (
            f"Adam has moments of its own and would ignore training.momentum = {training.momentum}: set it to 0, or "
            f'set training.optimiser = "sgd"'
        )
    if strategy.objective.plain_sgd and (training.momentum or training.optimiser != "sgd"):
        yield (
            "scaffold works a control variate out from (w_in - w_out) / (steps lr), which is a gradient only for plain "
            'SGD; momentum 0.9 inflates it tenfold: set training.optimiser = "sgd" and training.momentum = 0'
        )


def _memory(strategy: Strategy) -> Iterator[str]:
    """Objectives that remember: one visit at a time, and more than one round."""
    objective, name = strategy.objective, name_of(strategy.objective)
    if not objective.keeps:
        return
    arranger, schedule = name_of(strategy.arranger), name_of(strategy.schedule)
    # A ring is one tour after another.
    if not strategy.arranger.once and not strategy.schedule.in_turn:
        yield (
            f"the objective {name} remembers from visit to visit, and the arranger {arranger} may put a device on two "
            f"tours at once, which would not know of each other: choose another arranger, or set "
            f'objective.name = "prox"'
        )
    if strategy.schedule.at_edge:
        yield (
            f"the objective {name} remembers from visit to visit, and edge-cloud merges at the edge, where neither "
            f'that memory nor what it returns is merged: set objective.name = "prox", or schedule.name = "every-round"'
        )
    if strategy.schedule.fixed_rounds == 1 and not isinstance(objective, OwnObjective):
        yield (
            f"what the objective {name} remembers helps from the second round on, and {schedule} has one: choose "
            f'objective.name = "prox", or another schedule'
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
            'elmy with start = "own" begins a tour with another random model, and ring hands one model from tour to '
            'tour, so that what a site learnt would be lost at the next: set objective.start = "received", or '
            'schedule.name = "one-shot"'
        )


def _own_models(strategy: Strategy) -> Iterator[str]:
    """MetaFed's schedule and its objective are two halves: one says where the job is, the other what that means."""
    objective, schedule, aggregator = strategy.objective, strategy.schedule, strategy.aggregator
    if isinstance(schedule, PhasedRing) != isinstance(objective, Common):
        yield (
            f"the schedule {name_of(schedule)} and the objective {name_of(objective)} do not go together: what devices "
            f"make alone stays on them only with both of MetaFed's: set schedule.name = "
            f'"phased-ring" and objective.name = "common", or neither'
        )
    if isinstance(objective, Common) and objective.phase != "warm-up":
        yield "objective.phase is told by the schedule, round by round: leave it out"
    if isinstance(objective, Common) and objective.anchor != "received":
        yield (
            "a device of metafed learns from the model of the one before it: leave objective.anchor out, or set it to "
            '"received"'
        )
    if isinstance(schedule, PhasedRing) and (aggregator.steps or aggregator.device_half):
        yield (
            f"a ring brings one model home, and the aggregator {name_of(aggregator)} would move it once more: set "
            f'aggregator.name = "uniform-mean"'
        )


def _merge(strategy: Strategy) -> Iterator[str]:
    """Schedules and aggregators that work against the arranger, or do nothing."""
    arranger, schedule, aggregator = strategy.arranger, strategy.schedule, strategy.aggregator
    if schedule.counts_sets and not arranger.counted:
        yield (
            f"stp asks for another number of groups in each round, and the arranger {name_of(arranger)} cannot be "
            f'told a number: set arranger.name = "icg", "random", "visit" or "hiercluster"'
        )
    plain = isinstance(aggregator, WeightedMean)
    way_out = 'aggregator.name = "uniform-mean"' if plain else 'aggregator.weighting = "uniform"'
    if arranger.draws_by_samples and getattr(aggregator, "weighting", "") == "samples":
        yield (
            f"{name_of(arranger)} draws devices in proportion to their samples, and the aggregator "
            f"{name_of(aggregator)} would weigh them by samples again: set {way_out}"
        )
    if schedule.fixed_rounds == 1 and aggregator.steps:
        yield (
            f"the aggregator {name_of(aggregator)} moves each number by about its lr in a round, and "
            f"{name_of(schedule)} has one, so that what devices learnt would be lost: set "
            f'aggregator.name = "weighted-mean"'
        )
    if schedule.in_turn and aggregator.compares:
        yield (
            f"ida weighs models by their distance to the mean, and {name_of(schedule)} brings one model home, so that "
            'it would do nothing: set aggregator.name = "weighted-mean"'
        )


def _window(strategy: Strategy) -> Iterator[str]:
    """Where the mean of several merges cannot be the job's model."""
    schedule, window = strategy.schedule, strategy.aggregator.window
    if window == 1:
        return
    if schedule.fixed_rounds == 1 or isinstance(schedule, Slots | PhasedRing | OwnSchedule):
        yield (
            f"aggregator.window = {window} takes the mean of that many merges, one after each round, and the schedule "
            f"{name_of(schedule)} does not merge after each of several rounds: leave aggregator.window out, or set "
            f'schedule.name = "every-round"'
        )
    if not isinstance(strategy.finisher, NoFinisher) or isinstance(strategy.objective, Fusion):
        half = strategy.objective if isinstance(strategy.objective, Fusion) else strategy.finisher
        yield (
            f"aggregator.window = {window} takes the mean of that many merged models, and {name_of(half)} makes "
            f"something else of one merge: leave aggregator.window out"
        )


def _own_of_job(strategy: Strategy, job: JobSettings) -> Iterator[str]:
    """What devices keep of BatchNorm layers must be in the model, and MetaFed goes by right answers."""
    objective = strategy.objective
    if objective.outcome == "own models" and job.target is not None:
        yield (
            f"target = {job.target} goes by the job's one model on the job's test set, and the result is a model for "
            "each device: leave target out"
        )
    keeps_norms = isinstance(objective, LocalNorms) or (isinstance(objective, Common) and not objective.share_norms)
    if keeps_norms and job.model.batchnorm == "frozen":
        yield (
            'model.batchnorm = "frozen" takes running statistics out of the model, and devices are to keep their own: '
            'leave it out, or set it to "merge"'
        )
    if isinstance(objective, Common) and job.task.kind != "classification":
        yield (
            f"metafed chooses between models by the share of right answers, and a task of the kind {job.task.kind!r} "
            'has none: use strategy = "fedbn" or another one'
        )


def _job(strategy: Strategy, job: JobSettings) -> Iterator[str]:
    yield from _own_of_job(strategy, job)
    yield from finisher_compatibility.objections_of_job(strategy, job)
    schedule, tours = strategy.schedule, job.tours
    fixed = schedule.fixed_rounds
    if fixed is not None and job.rounds is not None and job.rounds != fixed:
        more = (
            f"set schedule.trips = {job.rounds}, as fedelmy-few-shot does"
            if isinstance(schedule, Ring)
            else f"set schedule.trips = {max(1, job.rounds - 2)}: it makes a round before the trips and one after them"
            if isinstance(schedule, PhasedRing)
            else 'set schedule.name = "every-round"'
        )
        yield (
            f"the job has rounds = {job.rounds}, and the schedule {name_of(schedule)} makes {fixed}: leave rounds out, "
            f"or {more}"
        )
    if tours.on_lost_visit == "swap" and not tours.spares:
        yield (
            'tours.on_lost_visit = "swap" needs devices to swap in, and tours.spares = 0 gives a tour none: set '
            'tours.spares = 1, or tours.on_lost_visit = "skip"'
        )
    if tours.on_lost_visit == "retry" and not tours.retries:
        yield (
            'tours.on_lost_visit = "retry" with tours.retries = 0 never tries again: set tours.retries = 1, or '
            'tours.on_lost_visit = "skip"'
        )
    if tours.visit_deadline < tours.lease:
        yield (
            f"tours.deadline = {tours.deadline:g} is over before a lease of tours.lease = {tours.lease:g} seconds is: "
            f"set it to the seconds that the slowest device may take for a visit"
        )


CHECKS = (
    _own_parts,
    _halves,
    _optimiser,
    _memory,
    _edges,
    _pools,
    _own_models,
    *arranger_compatibility.CHECKS,
    _merge,
    _window,
    *finisher_compatibility.CHECKS,
)
