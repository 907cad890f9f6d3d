"""Whether the parts of a strategy fit together: every combination that would train for a night and mean nothing.

Whether it fits the fleet (who shares class counts, how many devices there are) is found when a round is planned.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from hierarchy.arranging.metrics import OF_DISTRIBUTIONS
from sojourn.errors import ConfigError
from sojourn.parts import (
    Adagrad,
    Adam,
    CluSampArranger,
    Dyn,
    DynServer,
    EdgeCloud,
    Elmy,
    EveryRound,
    FedCatArranger,
    FedSeqArranger,
    Ida,
    NoEstimator,
    OneShot,
    Own,
    OwnAggregator,
    OwnArranger,
    OwnEstimator,
    OwnObjective,
    OwnSchedule,
    Ring,
    Scaffold,
    ScaffoldServer,
    SequentialToParallel,
    SingleArranger,
    SiteArranger,
    SizeEstimator,
    Slots,
    UpdateEstimator,
    WeightedMean,
    Yogi,
    fixed_rounds,
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
        OwnEstimator: ("estimate",), OwnArranger: ("arrange",), OwnSchedule: ("depart", "merges"),
        OwnAggregator: ("aggregate",),
    }  # fmt: skip
    for part in (strategy.estimator, strategy.arranger, strategy.schedule, strategy.aggregator):
        if isinstance(part, Own):
            try:
                load(part, *methods[type(part)])
            except ConfigError as error:
                yield str(error)


def _halves(strategy: Strategy) -> Iterator[str]:
    """Objectives and aggregators that are two halves of one algorithm."""
    objective, aggregator = strategy.objective, strategy.aggregator
    if isinstance(objective, Scaffold) and not isinstance(aggregator, ScaffoldServer):
        yield (
            f"the objective scaffold steps along the server's control variate, and the aggregator "
            f'{name_of(aggregator)} keeps none: set aggregator.name = "scaffold"'
        )
    if isinstance(aggregator, ScaffoldServer) and not isinstance(objective, Scaffold):
        yield (
            f"the aggregator scaffold sums what the objective scaffold returns, and {name_of(objective)} returns "
            f'nothing: set objective.name = "scaffold", or aggregator.name = "uniform-mean"'
        )
    if isinstance(aggregator, DynServer) and not isinstance(objective, Dyn):
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
    if isinstance(strategy.objective, Scaffold) and (training.momentum or training.optimiser != "sgd"):
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
    if not strategy.arranger.once and not isinstance(strategy.schedule, Ring):
        yield (
            f"the objective {name} remembers from visit to visit, and the arranger {arranger} may put a device on two "
            f"tours at once, which would not know of each other: choose another arranger, or set "
            f'objective.name = "prox"'
        )
    if isinstance(strategy.schedule, EdgeCloud):
        yield (
            f"the objective {name} remembers from visit to visit, and edge-cloud merges at the edge, where neither "
            f'that memory nor what it returns is merged: set objective.name = "prox", or schedule.name = "every-round"'
        )
    if fixed_rounds(strategy.schedule) == 1 and not isinstance(objective, OwnObjective):
        yield (
            f"what the objective {name} remembers helps from the second round on, and {schedule} has one: choose "
            f'objective.name = "prox", or another schedule'
        )


def _edges(strategy: Strategy) -> Iterator[str]:
    if isinstance(strategy.schedule, EdgeCloud) and strategy.arranger.alone:
        yield (
            f"edge-cloud merges the devices of a set at its site, and the arranger {name_of(strategy.arranger)} makes "
            f'sets of one device: set arranger.name = "site"'
        )


def _pools(strategy: Strategy) -> Iterator[str]:
    objective = strategy.objective
    if isinstance(objective, Elmy) and objective.start == "own" and isinstance(strategy.schedule, Ring):
        yield (
            'elmy with start = "own" begins a tour with another random model, and ring hands one model from tour to '
            'tour, so that what a site learnt would be lost at the next: set objective.start = "received", or '
            'schedule.name = "one-shot"'
        )


def _rows(strategy: Strategy) -> Iterator[str]:
    """What the arranger must know of devices."""
    arranger, estimator = strategy.arranger, strategy.estimator
    what, given = name_of(arranger), name_of(estimator)
    if isinstance(arranger, FedSeqArranger) and arranger.grouping == "random":
        return
    if arranger.needs != "nothing" and isinstance(estimator, NoEstimator | SizeEstimator):
        yield (
            f"the arranger {what} goes by what is known of each device's data, and the estimator {given} asks for "
            f'nothing of that: set estimator.name = "signature"'
        )
    elif arranger.needs == "classes" and not estimator.by_class:
        yield (
            f"the arranger {what} needs one number for each class, and the estimator {given} gives rows of another "
            f'kind: set estimator.name = "signature", "confidence" or "class-counts"'
        )


def _samples(strategy: Strategy) -> Iterator[str]:
    """Whether the arranger hears how many samples each device has; every estimator but `none` asks."""
    arranger = strategy.arranger
    weighs = arranger.weighs
    if isinstance(arranger, FedSeqArranger) and arranger.sets and arranger.size:
        weighs = arranger.grouping == "greedy" and arranger.estimate == "weighted-mean"
    if weighs and isinstance(strategy.estimator, NoEstimator):
        yield (
            f"the arranger {name_of(arranger)} must know how many samples each device has, and the estimator none does "
            f'not ask: set estimator.name = "sizes", or one that says more'
        )


def _fedseq(strategy: Strategy) -> Iterator[str]:
    arranger = strategy.arranger
    if not isinstance(arranger, FedSeqArranger):
        return
    if bool(arranger.sets) != bool(arranger.size):
        yield (
            f"fedseq makes sets x size superclients or closes them by min_samples and max_devices, and sets = "
            f"{arranger.sets} with size = {arranger.size} says neither: set both, or neither"
        )
    by_class = arranger.grouping == "greedy" and arranger.tau in OF_DISTRIBUTIONS
    if by_class and not strategy.estimator.by_class and not isinstance(strategy.estimator, NoEstimator | SizeEstimator):
        yield (
            f"fedseq's tau = {arranger.tau} compares distributions over classes, and the estimator "
            f'{name_of(strategy.estimator)} gives other rows: set arranger.tau = "cosine" or "euclidean", or '
            f'estimator.name = "confidence"'
        )


def _updates(strategy: Strategy) -> Iterator[str]:
    """Updates are known of a device that was alone on its tour."""
    estimator, schedule = strategy.estimator, strategy.schedule
    if not isinstance(estimator, UpdateEstimator) or estimator.epochs:
        return
    if not strategy.arranger.alone or getattr(schedule, "passes", 1) > 1:
        yield (
            "the estimator updates with epochs = 0 knows a device by its last visit, and on a tour of several visits "
            "only the tour's end is seen: set estimator.epochs = 1"
        )
    if _arranges_once(strategy):
        yield (
            f"the estimator updates with epochs = 0 knows nothing before the first round, and {name_of(schedule)} "
            f"arranges devices only then: set estimator.epochs = 1, or {_anew(strategy)}"
        )


def _rests(strategy: Strategy) -> Iterator[str]:
    """Arrangers that draw some devices for a round, under a schedule that keeps the draw for ever."""
    arranger = strategy.arranger
    some = isinstance(arranger, SingleArranger | SiteArranger) and arranger.fraction < 1
    draws = some or isinstance(arranger, FedCatArranger | CluSampArranger)
    if draws and _arranges_once(strategy) and fixed_rounds(strategy.schedule) != 1:
        yield (
            f"the arranger {name_of(arranger)} draws the devices of a round, and {name_of(strategy.schedule)} as it is "
            f"set keeps the first draw for ever, so that the others never train: set {_anew(strategy)}"
        )


def _merge(strategy: Strategy) -> Iterator[str]:
    """Schedules and aggregators that work against the arranger, or do nothing."""
    arranger, schedule, aggregator = strategy.arranger, strategy.schedule, strategy.aggregator
    if isinstance(schedule, SequentialToParallel) and not arranger.counted:
        yield (
            f"stp asks for another number of groups in each round, and the arranger {name_of(arranger)} cannot be "
            f'told a number: set arranger.name = "icg", "random", "visit" or "hiercluster"'
        )
    plain = isinstance(aggregator, WeightedMean)
    way_out = 'aggregator.name = "uniform-mean"' if plain else 'aggregator.weighting = "uniform"'
    if isinstance(arranger, CluSampArranger) and (plain or getattr(aggregator, "weighting", "") == "samples"):
        yield (
            f"clusamp draws devices in proportion to their samples, and the aggregator {name_of(aggregator)} would "
            f"weigh them by samples again: set {way_out}"
        )
    if fixed_rounds(schedule) == 1 and isinstance(aggregator, Adagrad | Adam | Yogi):
        yield (
            f"the aggregator {name_of(aggregator)} moves each number by about its lr in a round, and "
            f"{name_of(schedule)} has one, so that what devices learnt would be lost: set "
            f'aggregator.name = "weighted-mean"'
        )
    if isinstance(schedule, Ring) and isinstance(aggregator, Ida):
        yield (
            "ida weighs models by their distance to the mean, and ring brings one model home, so that it would do "
            'nothing: set aggregator.name = "weighted-mean"'
        )


def _job(strategy: Strategy, job: JobSettings) -> Iterator[str]:
    schedule, tours = strategy.schedule, job.tours
    fixed = fixed_rounds(schedule)
    if fixed is not None and job.rounds is not None and job.rounds != fixed:
        more = (
            f"set schedule.trips = {job.rounds}, as fedelmy-few-shot does"
            if isinstance(schedule, Ring)
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


def _arranges_once(strategy: Strategy) -> bool:
    match strategy.schedule:
        case EveryRound() | Slots() | EdgeCloud():
            return strategy.schedule.rearrange_every == 0
        case Ring() | OneShot():
            return True
        case _:
            return False


def _anew(strategy: Strategy) -> str:
    """How devices are arranged in every round instead."""
    settled = isinstance(strategy.schedule, Ring | OneShot)
    return 'schedule.name = "every-round"' if settled else "schedule.rearrange_every = 1"


CHECKS = (
    _own_parts, _halves, _optimiser, _memory, _edges, _pools, _rows, _samples, _fedseq, _updates, _rests, _merge
)  # fmt: skip
