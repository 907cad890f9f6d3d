"""Whether an arranger learns what it must know of devices, and whether what it draws can train.

What is found here is found again, for the devices that are there, when a round is planned
(`hierarchy.arranging.refusals`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.parts import CluSampArranger, FedCatArranger, FedSeqArranger, SingleArranger, SiteArranger, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.strategies import Strategy


def _rows(strategy: Strategy) -> Iterator[str]:
    """What the arranger must know of devices."""
    arranger, estimator = strategy.arranger, strategy.estimator
    what, given = name_of(arranger), name_of(estimator)
    if arranger.needs != "nothing" and not estimator.rows:
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
    if arranger.weighs and not strategy.estimator.sizes:
        yield (
            f"the arranger {name_of(arranger)} must know how many samples each device has, and the estimator none does "
            f'not ask: set estimator.name = "sizes", or one that says more'
        )


def _fedseq(strategy: Strategy) -> Iterator[str]:
    arranger = strategy.arranger
    if not isinstance(arranger, FedSeqArranger):
        return
    if arranger.half_sized:
        yield (
            f"fedseq makes sets x size superclients or closes them by min_samples and max_devices, and sets = "
            f"{arranger.sets} with size = {arranger.size} says neither: set both, or neither"
        )
    if arranger.distributions and strategy.estimator.rows and not strategy.estimator.by_class:
        yield (
            f"fedseq's tau = {arranger.tau} compares distributions over classes, and the estimator "
            f'{name_of(strategy.estimator)} gives other rows: set arranger.tau = "cosine" or "euclidean", or '
            f'estimator.name = "confidence"'
        )


def _updates(strategy: Strategy) -> Iterator[str]:
    """Updates are known of a device that was alone on its tour."""
    estimator, schedule = strategy.estimator, strategy.schedule
    if not estimator.from_visits:
        return
    if not strategy.arranger.alone or getattr(schedule, "passes", 1) > 1:
        yield (
            "the estimator updates with epochs = 0 knows a device by its last visit, and on a tour of several visits "
            "only the tour's end is seen: set estimator.epochs = 1"
        )
    if schedule.arranges_once:
        yield (
            f"the estimator updates with epochs = 0 knows nothing before the first round, and {name_of(schedule)} "
            f"arranges devices only then: set estimator.epochs = 1, or {_anew(strategy)}"
        )


def _rests(strategy: Strategy) -> Iterator[str]:
    """Arrangers that draw some devices for a round, under a schedule that keeps the draw for ever."""
    arranger = strategy.arranger
    some = isinstance(arranger, SingleArranger | SiteArranger) and arranger.fraction < 1
    draws = some or isinstance(arranger, FedCatArranger | CluSampArranger)
    if draws and strategy.schedule.arranges_once and strategy.schedule.fixed_rounds != 1:
        yield (
            f"the arranger {name_of(arranger)} draws the devices of a round, and {name_of(strategy.schedule)} as it is "
            f"set keeps the first draw for ever, so that the others never train: set {_anew(strategy)}"
        )


def _anew(strategy: Strategy) -> str:
    """How devices are arranged in every round instead."""
    kept = hasattr(strategy.schedule, "rearrange_every")
    return "schedule.rearrange_every = 1" if kept else 'schedule.name = "every-round"'


CHECKS = (_rows, _samples, _fedseq, _updates, _rests)
