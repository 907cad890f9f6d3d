"""Checks that an arranger gets the estimates that it needs, and that all devices can train.

When a round is planned, `hierarchy.arranging.arrangement` repeats these checks for the connected devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.parts import CluSampArranger, FedCatArranger, FedSeqArranger, SingleArranger, SiteArranger, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.strategies import Strategy


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


CHECKS = (_rows, _samples, _fedseq, _updates, _fixed_draw)
