"""Planning a round: who is here, what is known of them, which tours depart. Work on names; no role, no network."""

from __future__ import annotations

from itertools import filterfalse
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.records import INITIAL, RoundPlanned, TourPlan
from coordinator.rounds.census import Census
from coordinator.rounds.estimation import known, unknown
from coordinator.rounds.failure_lines import names
from coordinator.rounds.lacking import NAMES_ROOM, away, left_aside, left_out, too_few
from coordinator.rounds.merging import RELAY, departs_from
from coordinator.rounds.schedules import Departure, Moment, depart, rearranges, sets_asked_for
from coordinator.state import JobState
from hierarchy.arranging.arrangement import (
    MOST_HOPS,
    ArrangeContext,
    Candidates,
    ClientSet,
    arrange,
    check,
    deal_spares,
    quality_of,
)
from sojourn.errors import JobError
from sojourn.model.weights import within_share
from sojourn.parts import ClassCountEstimator
from sojourn.parts.two_stream import ROUND
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.jobs.settings import JobSettings
    from coordinator.rounds.census import WhoIsHere
    from coordinator.strategies import Strategy
    from sojourn.store.blobs import BlobStore


ESTIMATED_AT_ONCE = 5000
"""Devices that one estimation asks, at most; the others are asked when these have answered, so that nobody has to lead
and hold a tour for each device of a huge fleet at once."""


class PlanRound(msgspec.Struct, frozen=True):
    """Plan the next round of a job for the devices that the sites have now."""

    state: JobState
    reach: dict[str, tuple[str, ...]]
    unwilling: tuple[str, ...] = ()
    """The devices whose owners do not share what the job's estimator asks for."""
    unable: tuple[str, ...] = ()
    """The devices that are here and do not offer the job's objective, or something else that it asks for."""
    again: bool = False
    """Whether devices that gave no answer to an estimation are asked once more."""
    gone: dict[str, float] = {}
    """The devices that were here before, and when they went, in seconds since 1970."""
    demanding: tuple[str, ...] = ()
    """The devices that do only what was signed, where the job is not."""


class NotYet(msgspec.Struct, frozen=True):
    """The round cannot be planned with the devices that are here now."""

    reason: str


def plan_round(work: PlanRound, blobs: BlobStore, census: Census | None = None) -> RoundPlanned | NotYet:
    """Estimate the devices that are not known yet, else arrange the round's tours.

    With the `census` of the rounds before, only what has changed is looked at again.
    """
    state, job, strategy, census = work.state, work.state.settings, work.state.strategy, census or Census()
    who = census.here(work.reach, work.unwilling)
    here, willing = who.devices, who.names
    if state.begun or len(willing.union(work.unwilling)) >= job.fleet.devices:
        _consent(work, strategy)
    if reason := too_few(work, here):
        return NotYet(reason)
    unused = bool(state.failed_rounds and not state.history)  # nothing was trained in the sets that there are
    anew = unused or not state.arranged or rearranges(strategy.schedule, state.round)
    # Who cannot join the sets that there are is not asked either.
    if anew and (asked := unknown(strategy.estimator, state, here, again=work.again)):
        return _estimation(state, asked, who.reach)
    heard = known(strategy.estimator, state, here)
    if not heard:
        why = "; ".join(state.unestimated or ()) or "sojourn job visits says why"
        return NotYet(f"{len(here)} devices are here, and none of them could be estimated: {why}")
    plan = _training(state, job, strategy, _candidates(state, strategy, heard, who, census, blobs), anew=anew)
    if isinstance(plan, NotYet):
        return NotYet(f"{plan.reason}{away(work)}")
    # Who came after the sets were made was not asked, and who was asked and is not known is left out.
    late = sorted(willing.difference(*(each.devices for each in state.arranged))) if not anew else []
    mute = sorted(willing.difference(heard, late)) if len(heard) < len(here) else []
    notices = left_aside(work, mute)
    if late:
        why = "they came after the sets were made, and schedule.rearrange_every says when these are made anew"
        notices.append(left_out(why, late))
    return msgspec.structs.replace(plan, notices=tuple(notices))


def _consent(work: PlanRound, strategy: Strategy) -> None:
    """Before anything trains: an estimator that owners refuse is not for this fleet."""
    estimator, state = strategy.estimator, work.state
    asks = isinstance(estimator, ClassCountEstimator) and estimator.unwilling == "refuse"
    if asks and work.unwilling and not state.signatures and not state.history:
        raise JobError(
            f"this job needs class counts, and the owners of {len(work.unwilling)} devices do not share them "
            f'({names(work.unwilling, NAMES_ROOM)}): set shares = ["class-counts"] in their agent.toml, or leave '
            'them out with estimator.unwilling = "leave-out", or let signatures stand in with estimator.name = '
            '"signature"'
        )


def _candidates(
    state: JobState, strategy: Strategy, here: tuple[str, ...], who: WhoIsHere, census: Census, blobs: BlobStore
) -> Candidates:
    sized = all(map(state.samples.__contains__, here))
    samples = None
    if sized and here:
        # Who says that it has more than its share of all samples is not drawn for more than that.
        told = within_share([state.samples[device] for device in here], state.settings.gate.bounds(1.0).most_share)
        samples = np.array(told).astype(np.int64)
    estimator = strategy.estimator
    return Candidates(
        here,
        who.reach,
        census.rows(estimator, state, here, blobs),
        samples,
        by_class=estimator.by_class,
        counts=isinstance(estimator, ClassCountEstimator),
        classes=state.classes or None,
        reached=who.table if here is who.devices else None,
    )


def _estimation(state: JobState, asked: list[str], reach: Mapping[str, frozenset[str]]) -> RoundPlanned:
    """Every device by itself, each at the first site that reaches it; of very many, first those never asked."""
    if len(asked) > ESTIMATED_AT_ONCE:
        asked = sorted(asked, key=lambda device: state.silent.get(device, 0))[:ESTIMATED_AT_ONCE]
    sites = {device: site for site in sorted(reach, reverse=True) for device in reach[site]}
    tours = tuple(
        TourPlan(state.next_tour + number, sites[device], (device,), start={"model": INITIAL})
        for number, device in enumerate(asked)
    )
    return RoundPlanned(state.name, "estimate", tours, {})


def _training(
    state: JobState, job: JobSettings, strategy: Strategy, candidates: Candidates, *, anew: bool
) -> RoundPlanned | NotYet:
    seed = _seed(state, job)
    if not anew:
        sets, arranged, memo = _kept(state.arranged, candidates), None, state.memo
    else:
        context = ArrangeContext(
            seed, state.round, sets_asked_for(strategy.schedule, state.round, len(candidates.devices)), state.memo
        )
        if reason := check(strategy.arranger, candidates, context):
            return NotYet(reason)
        made = arrange(strategy.arranger, candidates, context)
        sets, arranged, memo = made.sets, made.sets, made.memo
    if not sets:
        return NotYet("none of the arranged devices is here; with schedule.rearrange_every = 1 others could take part")
    going = depart(strategy.schedule, sets, moment_of(state, job, len(sets)))
    if longest := max((each for each in going if len(each.set.devices) > MOST_HOPS), key=_visits, default=None):
        raise JobError(f"a tour of {_visits(longest)} visits is planned; at most {MOST_HOPS} fit in one")
    tours = _tours(state, job, strategy, going, candidates)
    chosen = list(dict.fromkeys(each.set for each in going))
    return RoundPlanned(
        state.name,
        "train",
        tours,
        quality_of(chosen, candidates),
        tuple(filterfalse(state.fleet.__contains__, candidates.devices)),
        arranged=arranged,
        memo=memo,
    )


def _seed(state: JobState, job: JobSettings) -> int:
    """Where a round's draws come from; planned again after one without a result, other devices are drawn."""
    again = (state.failed_rounds,) if state.failed_rounds else ()
    return derive(job.seed, "arrange", state.round, *again)


def moment_of(state: JobState, job: JobSettings, sets: int) -> Moment:
    """When a round is planned or closed."""
    seed = _seed(state, job)
    return Moment(state.round, state.since_merge, sets, seed, last=state.round >= job.all_rounds)


def _tours(
    state: JobState, job: JobSettings, strategy: Strategy, going: Sequence[Departure], candidates: Candidates
) -> tuple[TourPlan, ...]:
    seed = _seed(state, job)
    per_tour = job.tours.spares if job.tours.on_lost_visit == "swap" else 0
    spares = deal_spares([each.set for each in going], candidates, per_tour, seed)
    received = {name: _vector_called(name, state) for name in strategy.objective.receives}
    return tuple(
        TourPlan(
            state.next_tour + number,
            each.set.site,
            each.set.devices,
            extra,
            start={"model": RELAY if each.leg else departs_from(each.slot, state.vectors), **received},
            slot=each.slot,
            leg=each.leg,
        )
        for number, (each, extra) in enumerate(zip(going, spares, strict=True))
    )


def _vector_called(name: str, state: JobState) -> str:
    """The job's vector that an objective receives under a name: its own of that name, or the round's model."""
    return departs_from(None, state.vectors) if name == ROUND else name


def _visits(departure: Departure) -> int:
    return len(departure.set.devices)


def _kept(arranged: tuple[ClientSet, ...], candidates: Candidates) -> tuple[ClientSet, ...]:
    """The sets of before, less the devices that are no longer there; one whose site is gone finds another."""
    kept = []
    for each in arranged:
        reached = {site: tuple(d for d in each.devices if d in there) for site, there in candidates.reach.items()}
        site = each.site if reached.get(each.site) else max(sorted(reached), key=lambda name: len(reached[name]))
        kept.append(ClientSet(site, tuple(device for device in reached[site] if device in candidates.devices)))
    return tuple(each for each in kept if each.devices)
