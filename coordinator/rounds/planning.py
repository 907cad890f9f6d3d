"""Plan a round: select online devices, use their estimates, and arrange tours. Works on names, without network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import filterfalse

import msgspec
import numpy as np

from coordinator.job_state import JobState
from coordinator.jobs.settings import JobSettings
from coordinator.records import INITIAL, RoundPlanned, TourPlan
from coordinator.rounds.estimation import ConnectedDevices, DeviceTable, known, unknown
from coordinator.rounds.merging import RELAY, departs_from
from coordinator.rounds.round_messages import (
    MAX_DEVICE_NAMES_LENGTH,
    left_out,
    names,
    offline_since,
    skipped_devices,
    too_few,
)
from coordinator.rounds.schedules import Departure, Moment, depart, rearranges, sets_asked_for
from coordinator.strategies import Strategy
from hierarchy.arranging.arrangement import (
    MAX_HOPS,
    ArrangeContext,
    Candidates,
    ClientSet,
    arrange,
    check,
    deal_spares,
    quality_of,
)
from sojourn.errors import JobError
from sojourn.model.vectors import cap_weights
from sojourn.parts import ClassCountEstimator
from sojourn.parts.two_stream import ROUND
from sojourn.randomness import derive
from sojourn.store.blobs import BlobStore

ESTIMATED_AT_ONCE = 5000
"""Maximum devices that one estimation asks; the others are asked when these have answered, so that a huge fleet needs
no tour for each device at once."""


class PlanRound(msgspec.Struct, frozen=True):
    """Plan the next round of a job for the devices that the sites have now."""

    state: JobState
    reach: dict[str, tuple[str, ...]]
    unwilling: tuple[str, ...] = ()
    """Devices whose owners do not share the data that the job's estimator requires."""
    unable: tuple[str, ...] = ()
    """Online devices that do not offer the job's objective, or something else that it requires."""
    again: bool = False
    """Whether devices that gave no answer to an estimation are asked again."""
    offline: dict[str, float] = {}
    """Devices that were online before, and since when they are offline, in seconds since 1970."""
    requiring_signature: tuple[str, ...] = ()
    """Devices that accept only signed jobs, if the job is not signed."""


class NotYet(msgspec.Struct, frozen=True):
    """The round cannot be planned with the devices that are online now."""

    reason: str


def plan_round(work: PlanRound, blobs: BlobStore, device_table: DeviceTable | None = None) -> RoundPlanned | NotYet:
    """Estimate unknown devices; if there are none, arrange the round's tours.

    With the device table of earlier rounds, only changes are processed.
    """
    state, job, strategy = work.state, work.state.settings, work.state.strategy
    device_table = device_table or DeviceTable()
    connected = device_table.here(work.reach, work.unwilling)
    here, willing = connected.devices, connected.names
    if state.begun or len(willing.union(work.unwilling)) >= job.fleet.devices:
        _consent(work, strategy)
    if reason := too_few(work, here):
        return NotYet(reason)
    unused = bool(state.failed_rounds and not state.history)  # no device has trained in the current sets
    rearrange = unused or not state.arranged or rearranges(strategy.schedule, state.round)
    # Devices that cannot join the current sets are not estimated either.
    if rearrange and (asked := unknown(strategy.estimator, state, here, again=work.again)):
        return _estimation(state, asked, connected.reach)
    estimated = known(strategy.estimator, state, here)
    if not estimated:
        why = "; ".join(state.unestimated) or "see sojourn job visits"
        return NotYet(f"{len(here)} devices are online, but none of them could be estimated: {why}")
    candidates = _candidates(state, strategy, estimated, connected, device_table, blobs)
    plan = _training(state, job, strategy, candidates, rearrange=rearrange)
    if isinstance(plan, NotYet):
        return NotYet(f"{plan.reason}{offline_since(work)}")
    # Skip devices that connected after the sets were made, and those without an estimate.
    late = sorted(willing.difference(*(each.devices for each in state.arranged))) if not rearrange else []
    unestimated = sorted(willing.difference(estimated, late)) if len(estimated) < len(here) else []
    notices = skipped_devices(work, unestimated)
    if late:
        why = "they connected after the sets were made; schedule.rearrange_every determines when these are made again"
        notices.append(left_out(why, late))
    return msgspec.structs.replace(plan, notices=tuple(notices))


def _consent(work: PlanRound, strategy: Strategy) -> None:
    """Refuse the job before any training if owners do not share what its estimator requires."""
    estimator, state = strategy.estimator, work.state
    asks = isinstance(estimator, ClassCountEstimator) and estimator.unwilling == "refuse"
    if asks and work.unwilling and not state.signatures and not state.history:
        raise JobError(
            f"this job needs class counts, and the owners of {len(work.unwilling)} devices do not share them "
            f'({names(work.unwilling, MAX_DEVICE_NAMES_LENGTH)}): set shares = ["class-counts"] in their agent.toml, '
            'skip these devices with estimator.unwilling = "leave-out", or use signatures instead with '
            'estimator.name = "signature"'
        )


def _candidates(
    state: JobState,
    strategy: Strategy,
    here: tuple[str, ...],
    connected: ConnectedDevices,
    device_table: DeviceTable,
    blobs: BlobStore,
) -> Candidates:
    sized = all(map(state.samples.__contains__, here))
    samples = None
    if sized and here:
        # A device that claims more than its share of all samples is not drawn more often for it.
        capped = cap_weights([state.samples[device] for device in here], state.settings.gate.bounds(1.0).most_share)
        samples = np.array(capped).astype(np.int64)
    estimator = strategy.estimator
    return Candidates(
        here,
        connected.reach,
        device_table.rows(estimator, state, here, blobs),
        samples,
        by_class=estimator.by_class,
        counts=isinstance(estimator, ClassCountEstimator),
        classes=state.classes or None,
        reached=connected.table if here is connected.devices else None,
    )


def _estimation(state: JobState, asked: list[str], reach: Mapping[str, frozenset[str]]) -> RoundPlanned:
    """Plan a tour for each device at the first site that reaches it; in a large fleet, unasked devices come first."""
    if len(asked) > ESTIMATED_AT_ONCE:
        asked = sorted(asked, key=lambda device: state.silent.get(device, 0))[:ESTIMATED_AT_ONCE]
    sites = {device: site for site in sorted(reach, reverse=True) for device in reach[site]}
    tours = tuple(
        TourPlan(state.next_tour + number, sites[device], (device,), start={"model": INITIAL})
        for number, device in enumerate(asked)
    )
    return RoundPlanned(state.name, "estimate", tours, {})


def _training(
    state: JobState, job: JobSettings, strategy: Strategy, candidates: Candidates, *, rearrange: bool
) -> RoundPlanned | NotYet:
    seed = _seed(state, job)
    if not rearrange:
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
        return NotYet("none of the arranged devices is online; schedule.rearrange_every = 1 lets others take part")
    going = depart(strategy.schedule, sets, moment_of(state, job, len(sets)))
    if longest := max((each for each in going if len(each.set.devices) > MAX_HOPS), key=_visits, default=None):
        raise JobError(f"a tour of {_visits(longest)} visits is planned, but at most {MAX_HOPS} fit in one")
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
    """Return the seed of a round's draws; a repeated round draws other devices."""
    again = (state.failed_rounds,) if state.failed_rounds else ()
    return derive(job.seed, "arrange", state.round, *again)


def moment_of(state: JobState, job: JobSettings, sets: int) -> Moment:
    """Return when a round is planned or closed, in the schedule's terms."""
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
    """Return the job's vector that an objective receives under a name: the one of that name, or the round's model."""
    return departs_from(None, state.vectors) if name == ROUND else name


def _visits(departure: Departure) -> int:
    return len(departure.set.devices)


def _kept(arranged: tuple[ClientSet, ...], candidates: Candidates) -> tuple[ClientSet, ...]:
    """Return the existing sets without devices that disconnected; a set whose site is offline moves to another."""
    kept = []
    for each in arranged:
        reached = {site: tuple(d for d in each.devices if d in there) for site, there in candidates.reach.items()}
        site = each.site if reached.get(each.site) else max(sorted(reached), key=lambda name: len(reached[name]))
        kept.append(ClientSet(site, tuple(device for device in reached[site] if device in candidates.devices)))
    return tuple(each for each in kept if each.devices)
