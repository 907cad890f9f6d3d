"""Which devices form which tours: what an arranger knows, and the client sets it makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, assert_never

import msgspec
import numpy as np

from hierarchy.measures import quality
from hierarchy.single_arranger import single_sets
from hierarchy.visit_arranger import Seats, deal, visit_sets
from sojourn.errors import Fault, JobError
from sojourn.parts import Arranger, SingleArranger, VisitArranger
from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

MOST_HOPS = 2500
"""As many as `messages.Tour` can carry."""


class ClientSet(msgspec.Struct, frozen=True):
    """One tour in the making: its site, and its devices in the order of visits."""

    site: str
    devices: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Roll:
    """What an arranger knows: devices by sorted name, which of them each site reaches, a signature row for each."""

    devices: tuple[str, ...]
    reach: Mapping[str, frozenset[str]]
    signatures: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if list(self.devices) != sorted(set(self.devices)):
            raise Fault("the devices of a roll are not sorted and unique")
        if self.signatures is not None and (self.signatures.ndim != 2 or len(self.signatures) != len(self.devices)):
            raise Fault(f"signatures of shape {self.signatures.shape} for {len(self.devices)} devices")

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites by sorted name."""
        return tuple(sorted(self.reach))

    @cached_property
    def table(self) -> NDArray[np.bool_]:
        """Who reaches whom: a row for each device, a column for each site."""
        columns = [[device in self.reach[site] for device in self.devices] for site in self.sites]
        return np.array(columns, bool).reshape(len(columns), len(self.devices)).T


def check(settings: Arranger, roll: Roll) -> str | None:
    """Why this arrangement cannot be made now; None if it can."""
    here = int(roll.table.any(axis=1).sum())
    match settings:
        case SingleArranger():
            return None if here else "single needs at least 1 device; none is here"
        case VisitArranger():
            return _check_visit(settings, roll, here)
        case _:
            assert_never(settings)


def arrange(settings: Arranger, roll: Roll, seed: int) -> tuple[ClientSet, ...]:
    """The client sets, in plan order; the same for the same seed."""
    if (reason := check(settings, roll)) is not None:
        raise JobError(reason)
    match settings:
        case SingleArranger():
            plan = single_sets(settings, roll.table, seed)
        case VisitArranger():
            plan = visit_sets(settings, _known(roll), roll.table, seed)
        case _:
            assert_never(settings)
    return tuple(ClientSet(roll.sites[site], tuple(roll.devices[row] for row in rows)) for site, rows in plan)


def deal_spares(sets: Sequence[ClientSet], roll: Roll, per_tour: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """The spares of each tour: up to `per_tour` devices of no set that reach its site, dealt in turn, never twice."""
    used = {device for each in sets for device in each.devices}
    order = generator(seed, "spares").permutation(len(roll.devices)).tolist()
    idle = [row for row in order if roll.devices[row] not in used]
    # A site may have left the roll since the sets were made: then no one reaches it.
    table = np.pad(roll.table[idle], [(0, 0), (0, 1)])
    column = {site: number for number, site in enumerate(roll.sites)}
    sites = [column.get(each.site, len(column)) for each in sets]
    seats = Seats(table)
    counts = deal(seats, sites, per_tour)
    stock = {site: iter(seats.promised(site)) for site in set(sites)}
    return tuple(
        tuple(roll.devices[idle[spare]] for spare in islice(stock[site], count))
        for site, count in zip(sites, counts, strict=True)
    )


def quality_of(sets: Sequence[ClientSet], roll: Roll) -> dict[str, float]:
    """VTS, Intra-CS and Inter-CS of client sets; nothing where there are no signatures to see them through."""
    if roll.signatures is None:
        return {}
    row = {device: number for number, device in enumerate(roll.devices)}
    # Several passes over a set repeat its devices; each counts once.
    return quality(_known(roll), [[row[device] for device in dict.fromkeys(each.devices)] for each in sets])


def _check_visit(settings: VisitArranger, roll: Roll, here: int) -> str | None:
    """Why VISIT's sets cannot be made now."""
    if here < settings.sets:
        return f"visit needs at least {settings.sets} devices for {settings.sets} sets; {here} are here"
    if roll.signatures is None:
        return "visit needs a signature of every device; choose an estimator"
    odd = np.flatnonzero(~np.isfinite(roll.signatures).all(axis=1))
    if len(odd):
        return f"visit needs finite signatures; that of {roll.devices[odd[0]]} is not ({len(odd)} in all)"
    hops = min(settings.size, here) * settings.passes
    if hops > MOST_HOPS:
        return f"visit would make tours of {hops} visits; at most {MOST_HOPS} fit in one"
    return None


def _known(roll: Roll) -> NDArray[np.float64]:
    """The signatures of a roll that has them."""
    if roll.signatures is None:
        raise Fault("this roll has no signatures")
    return np.asarray(roll.signatures, np.float64)
