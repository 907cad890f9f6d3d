"""Why an arrangement cannot be made now: sentences that say what is needed and what is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.parts import (
    ChainArranger,
    FedSeqArranger,
    HierClusterArranger,
    OwnArranger,
    RandomArranger,
    SingleArranger,
    SiteArranger,
    VisitArranger,
    name_of,
)

if TYPE_CHECKING:
    from hierarchy.arranging.candidates import ArrangeContext, Candidates
    from sojourn.parts import Arranger

MOST_HOPS = 2500
"""As many as `messages.Tour` can carry."""


def sets_to_make(settings: Arranger, candidates: Candidates, context: ArrangeContext) -> int:
    """How many sets to make: what the schedule asks for, but no more than devices, else the arranger's own number.

    0 where the devices decide.
    """
    if settings.counted and context.sets is not None:
        return min(context.sets, len(candidates.here))
    match settings:
        case SingleArranger() | ChainArranger() | SiteArranger() | OwnArranger():
            return 0
        case _:
            return settings.sets


def check(settings: Arranger, candidates: Candidates, context: ArrangeContext) -> str | None:
    """Why this arrangement cannot be made now; None if it can."""
    name, here, sets = name_of(settings), len(candidates.here), sets_to_make(settings, candidates, context)
    if not here:
        return f"{name} needs at least 1 device; none is here"
    if here < sets:
        return (
            f"{name} needs at least {sets} devices for {sets} sets; {here} are here: with arranger.sets = {here} it "
            "could make do with them"
        )
    return (
        _contradiction(settings)
        or _unknown_rows(settings, candidates)
        or _unknown_samples(settings, candidates)
        or _too_long(settings, here)
    )


def _contradiction(settings: Arranger) -> str | None:
    """What the settings say that cannot be true at once."""
    if isinstance(settings, FedSeqArranger) and settings.half_sized:
        return f"fedseq needs both sets and size, or neither; sets is {settings.sets} and size is {settings.size}"
    return None


def _unknown_rows(settings: Arranger, candidates: Candidates) -> str | None:
    """What is missing in the devices' rows."""
    name, rows = name_of(settings), candidates.signatures
    if settings.needs == "nothing":
        return None
    if rows is None:
        return f"{name} needs a signature of every device; choose an estimator"
    odd = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(odd):
        return f"{name} needs finite signatures; that of {candidates.devices[odd[0]]} is not ({len(odd)} in all)"
    if isinstance(settings, FedSeqArranger) and settings.distributions:
        name += f" with {settings.tau}"
    if (settings.needs == "classes" or settings.distributions) and not candidates.by_class:
        return f"{name} needs one number for each class of every device; these rows are of another kind"
    if settings.distributions and (low := np.flatnonzero((rows < 0).any(axis=1))).size:
        return f"{name} needs rows without numbers below 0; that of {candidates.devices[low[0]]} has some"
    return None


def _unknown_samples(settings: Arranger, candidates: Candidates) -> str | None:
    """What is missing in the devices' numbers of samples."""
    if not settings.weighs:
        return None
    if candidates.samples is None:
        return f"{name_of(settings)} needs to know how many samples each device has; choose an estimator that asks"
    if settings.draws_by_samples and not candidates.samples[candidates.here].any():
        return f"{name_of(settings)} needs devices with samples; none of those that are here has any"
    return None


def _too_long(settings: Arranger, here: int) -> str | None:
    """Whether sets of the size that is asked for are longer than a tour can be."""
    match settings:
        case VisitArranger() | RandomArranger() | FedSeqArranger() | HierClusterArranger():
            hops = min(settings.size, here)
        case _:
            hops = 0
    return (
        f"{name_of(settings)} would make tours of {hops} visits; at most {MOST_HOPS} fit in one"
        if hops > MOST_HOPS
        else None
    )
