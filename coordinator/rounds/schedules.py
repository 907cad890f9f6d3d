"""Decide which sets train in a round, from which model each departs, and when models merge.

A *departure* is a set with its devices in the order of visits, the slot from which its model departs and to which it
returns (none: the global model), and its leg. Legs run one after another within a round: a later leg departs from the
model that the earlier one brought back.

Failures: a failed tour leaves its slot's model and weight unchanged, and the slot merges with what it has seen. A set
whose devices have all disconnected has no tour; with fewer sets than slots, the last slots pause. A failed leg passes
on its input. A device that connects later joins at the next arrangement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hierarchy.arranging.arrangement import ClientSet
from sojourn.parts import (
    EdgeCloud,
    EveryRound,
    OneShot,
    OwnSchedule,
    PhasedRing,
    Ring,
    Schedule,
    SequentialToParallel,
    Slots,
)
from sojourn.parts.custom_code import load
from sojourn.randomness import generator


@dataclass(frozen=True)
class Moment:
    """When a round is planned or closed: its number, the rounds since the last merge, and the number of sets."""

    round: int
    since_merge: int
    sets: int
    seed: int
    last: bool = False


@dataclass(frozen=True)
class Departure:
    """A set that departs in a round."""

    set: ClientSet
    slot: str | None = None
    leg: int = 0


def sets_asked_for(schedule: Schedule, number: int, devices: int) -> int | None:
    """Return how many sets the arranger must make in this round; None lets the arranger decide."""
    if isinstance(schedule, SequentialToParallel):
        return min(groups(schedule, number), devices)
    if isinstance(schedule, OwnSchedule) and (asks := getattr(_own(schedule), "wanted_sets", None)):
        wanted: int | None = asks(number, devices)
        return wanted
    return None


def groups(stp: SequentialToParallel, number: int) -> int:
    """Return FedGSP's f(r), before it is limited to the number of devices."""
    # In floats, alpha = 0.1 and r = 11 give 1.9999999999999998 instead of 2.
    match stp.growth:
        case "linear":
            grown = stp.alpha * (number - 1) + 1
        case "log":
            grown = stp.alpha * math.log(number) + 1
        case "exp":
            # Far beyond the number of devices of any fleet, but still within a float.
            grown = math.exp(min((number - 1) * math.log1p(stp.alpha), 100.0))
    return stp.beta * math.floor(grown + 1e-9)


def rearranges(schedule: Schedule, number: int) -> bool:
    """Return whether this round is arranged again; the first always is."""
    match schedule:
        case EveryRound() | Slots() | EdgeCloud():
            every = schedule.rearrange_every
            return number == 1 or (every > 0 and (number - 1) % every == 0)
        case Ring() | PhasedRing():
            return number == 1
        case OwnSchedule():
            asks = getattr(_own(schedule), "rearranges", None)
            return number == 1 or asks is None or bool(asks(number))
        case _:
            return True


def depart(schedule: Schedule, sets: Sequence[ClientSet], moment: Moment) -> list[Departure]:
    """Return the departures of a round, in plan order."""
    if isinstance(schedule, OwnSchedule):
        return list(_own(schedule).depart(sets, moment))
    if isinstance(schedule, EdgeCloud):
        return [Departure(each) for each in sets]
    if isinstance(schedule, PhasedRing):
        return _phase_departures(schedule, sets, moment.round)
    going = [
        ClientSet(each.site, _ordered(each.devices, schedule.order, moment.seed, number) * schedule.passes)
        for number, each in _chosen(schedule, sets, moment.seed)
    ]
    match schedule:
        case Slots():
            shift = moment.since_merge if schedule.rotate else 0
            return [Departure(going[(number + shift) % len(going)], f"slot-{number}") for number in range(len(going))]
        case Ring():
            return [Departure(each, leg=leg) for leg, each in enumerate(going)]
        case _:
            return [Departure(each) for each in going]


def is_alone(schedule: PhasedRing, number: int) -> bool:
    """Return whether every device trains alone in this round, before or after the ring."""
    return not 1 < number < schedule.fixed_rounds


def _phase_departures(schedule: PhasedRing, sets: Sequence[ClientSet], number: int) -> list[Departure]:
    """Return departures of all devices in parallel, or of the sets one after another."""
    if not is_alone(schedule, number):
        return [Departure(each, leg=leg) for leg, each in enumerate(sets)]
    homes = {device: each.site for each in reversed(sets) for device in each.devices}
    devices = dict.fromkeys(device for each in sets for device in each.devices)
    return [Departure(ClientSet(homes[device], (device,))) for device in devices]


def merges(schedule: Schedule, moment: Moment) -> bool:
    """Return whether the models merge when this round closes.

    An unfinished last cycle of FedCat merges too; FedSeqInter ends with the mean that is evaluated between merges.
    """
    match schedule:
        case Slots():
            over = moment.last and schedule.rotate
            return over or moment.since_merge + 1 >= (schedule.merge_every or moment.sets)
        case OwnSchedule():
            return bool(_own(schedule).merges(moment))
        case _:
            return True


def _chosen(
    schedule: EveryRound | Slots | SequentialToParallel | Ring | OneShot, sets: Sequence[ClientSet], seed: int
) -> list[tuple[int, ClientSet]]:
    """Return the sets that train, with their numbers: in the order of the draw, or all as they are.

    Slots are drawn even if all train: otherwise a model would meet the same superclient again and again.
    """
    match schedule:
        case EveryRound() | Slots():
            # In floats, 0.29 * 100 is 28.999999999999996 and must count as 29.
            count = max(1, math.floor(schedule.fraction * len(sets) + 1e-9))
        case SequentialToParallel():
            # Round half a group up: Python's rounding would turn 2.5 into 2.
            count = max(1, math.floor(schedule.kappa * len(sets) + 0.5 + 1e-9))
        case _:
            count = len(sets)
    drawn = count < len(sets) or (isinstance(schedule, Slots) and not schedule.rotate)
    numbers = generator(seed, "sets").permutation(len(sets))[:count] if drawn else range(len(sets))
    return [(int(number), sets[int(number)]) for number in numbers]


def _ordered(devices: tuple[str, ...], order: str, seed: int, number: int) -> tuple[str, ...]:
    if order == "arranged":
        return devices
    return tuple(devices[at] for at in generator(seed, "order", number).permutation(len(devices)))


def _own(schedule: OwnSchedule) -> Any:
    return load(schedule, "depart", "merges")
