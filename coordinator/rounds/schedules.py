"""Which sets train in a round, from which model each departs, and when models merge.

A *departure* is a set on its way: its devices in the order of visits, the slot its model departs from and returns to
(none: the global model), and its leg. Legs follow one another within a round: a later leg departs from the model that
the earlier one brought home.

What failures do. A tour that came to nothing leaves its slot as it was: model and weight; the slot merges with what it
has seen. A set whose devices have all left has no tour; with fewer sets than slots the last slots rest. A leg that came
to nothing passes on the model it was given. A device that comes later joins when the devices are arranged the next
time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from sojourn.parts.own import load
from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Moment:
    """When a round is planned or closed: its number, the rounds since models last merged, the sets that there are."""

    round: int
    since_merge: int
    sets: int
    seed: int
    last: bool = False


@dataclass(frozen=True)
class Departure:
    """A set on its way."""

    set: ClientSet
    slot: str | None = None
    leg: int = 0


def sets_asked_for(schedule: Schedule, number: int, devices: int) -> int | None:
    """How many sets the arranger is to make in this round; None leaves it to the arranger."""
    if isinstance(schedule, SequentialToParallel):
        return min(groups(schedule, number), devices)
    if isinstance(schedule, OwnSchedule) and (asks := getattr(_own(schedule), "wanted_sets", None)):
        wanted: int | None = asks(number, devices)
        return wanted
    return None


def groups(stp: SequentialToParallel, number: int) -> int:
    """FedGSP's f(r), before it is cut to the number of devices."""
    # alpha = 0.1 and r = 11 give 1.9999999999999998 where a person counts 2.
    match stp.growth:
        case "linear":
            grown = stp.alpha * (number - 1) + 1
        case "log":
            grown = stp.alpha * math.log(number) + 1
        case "exp":
            # Far beyond the number of devices of any fleet, and a float still holds it.
            grown = math.exp(min((number - 1) * math.log1p(stp.alpha), 100.0))
    return stp.beta * math.floor(grown + 1e-9)


def rearranges(schedule: Schedule, number: int) -> bool:
    """Whether this round is arranged anew; the first always is."""
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
    """The departures of a round, in plan order."""
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
    """Whether every device is by itself in this round, before the ring or after it."""
    return not 1 < number < schedule.fixed_rounds


def _phase_departures(schedule: PhasedRing, sets: Sequence[ClientSet], number: int) -> list[Departure]:
    """All devices side by side, or the sets one after another."""
    if not is_alone(schedule, number):
        return [Departure(each, leg=leg) for leg, each in enumerate(sets)]
    homes = {device: each.site for each in reversed(sets) for device in each.devices}
    devices = dict.fromkeys(device for each in sets for device in each.devices)
    return [Departure(ClientSet(homes[device], (device,))) for device in devices]


def merges(schedule: Schedule, moment: Moment) -> bool:
    """Whether the models merge when this round closes.

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
    """The sets that train, with their numbers: in the order of the draw, or all as they are.

    Slots are drawn even when all train: a model that met its own superclient again and again would not travel.
    """
    match schedule:
        case EveryRound() | Slots():
            # 0.29 * 100 is 28.999999999999996: what a person calls 29 must not become 28.
            count = max(1, math.floor(schedule.fraction * len(sets) + 1e-9))
        case SequentialToParallel():
            # Half a group up: Python's own rounding would make 2 of 2.5.
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
