"""The input and output of arrangers, and the call and check of a custom arranger."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import lt

import msgspec
import numpy as np
from numpy.typing import NDArray

from sojourn.errors import Fault, JobError
from sojourn.parts import CustomArranger
from sojourn.parts.custom_code import load

Memo = dict[str, tuple[int, ...]]
"""The state of an arranger between rounds, by device name."""


class ClientSet(msgspec.Struct, frozen=True):
    """One planned tour: its site, and its devices in the order of visits."""

    site: str
    devices: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The devices that may be arranged, by sorted name, and their known properties.

    reach: the devices that each site reaches. signatures: a row for each device from the estimator. samples: the sample
    count of each device; None if not measured. by_class: the columns of the rows are classes. counts: the rows are true
    label counts. classes: the number of classes, if the columns do not show it. reached: the reachability table, if it
    was computed before.
    """

    devices: tuple[str, ...]
    reach: Mapping[str, frozenset[str]]
    signatures: NDArray[np.float64] | None = None
    samples: NDArray[np.int64] | None = None
    by_class: bool = True
    counts: bool = False
    classes: int | None = None
    reached: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if not all(map(lt, self.devices, islice(self.devices, 1, None))):
            raise Fault("the candidate devices are not sorted and unique")
        if self.signatures is not None and (self.signatures.ndim != 2 or len(self.signatures) != len(self.devices)):
            raise Fault(f"signatures of shape {self.signatures.shape} for {len(self.devices)} devices")
        if self.samples is not None and (self.samples.shape != (len(self.devices),) or (self.samples < 0).any()):
            raise Fault(f"samples of shape {self.samples.shape}, or below 0, for {len(self.devices)} devices")

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the sites by sorted name."""
        return tuple(sorted(self.reach))

    @cached_property
    def table(self) -> NDArray[np.bool_]:
        """The reachability table: a row for each device, a column for each site."""
        return reach_table(self.devices, self.reach) if self.reached is None else self.reached

    def rows_of(self, devices: Iterable[str]) -> list[int]:
        """Return the row numbers of these devices, without devices that are not candidates."""
        places = ((device, bisect_left(self.devices, device)) for device in devices)
        return [at for device, at in places if at < len(self.devices) and self.devices[at] == device]

    @cached_property
    def online(self) -> NDArray[np.int64]:
        """The row numbers of the devices that reach a site."""
        return np.flatnonzero(self.table.any(axis=1))


def reach_table(devices: Sequence[str], reach: Mapping[str, frozenset[str]]) -> NDArray[np.bool_]:
    """Return the reachability table: a row for each device, a column for each site by sorted name."""
    row = {device: number for number, device in enumerate(devices)}
    columns = np.zeros((len(reach), len(row)), bool)
    for column, site in zip(columns, sorted(reach), strict=True):
        column[[row[device] for device in reach[site] if device in row]] = True
    return columns.T


@dataclass(frozen=True)
class ArrangeContext:
    """The round to arrange.

    seed: of this round only; sets: how many the schedule asks for, instead of the arranger's number; memo: the
    arranger's state after the previous round.
    """

    seed: int
    round: int = 1
    sets: int | None = None
    memo: Memo = field(default_factory=dict)


@dataclass(frozen=True)
class Arranged:
    """The client sets of a round in plan order, and the memo for the next round."""

    sets: tuple[ClientSet, ...]
    memo: Memo


def custom_sets(settings: CustomArranger, candidates: Candidates, context: ArrangeContext) -> Arranged:
    """Call `arrange(candidates, context)` of the user's class; if it returns only sets, the memo is unchanged."""
    returned = load(settings, "arrange").arrange(candidates, context)
    sets, memo = (returned.sets, returned.memo) if isinstance(returned, Arranged) else (returned, context.memo)
    if not isinstance(sets, (list, tuple)) or not sets:
        raise JobError(f"{settings.part} arranged no sets; it must return Arranged, or a list of ClientSet")
    for number, each in enumerate(sets):
        if flaw := _flaw(each, candidates):
            raise JobError(f"set {number} that {settings.part} arranged {flaw}")
    uses = Counter(device for each in sets for device in each.devices)
    if settings.once and (repeated := [device for device, times in uses.items() if times > 1]):
        raise JobError(f"{settings.part} arranged {repeated[0]} twice; to allow this, set arranger.once = false")
    try:
        return Arranged(tuple(sets), msgspec.convert(memo, Memo))
    except msgspec.ValidationError as error:
        raise JobError(f"the memo of {settings.part} must map device names to whole numbers: {error}") from error


def _flaw(each: object, candidates: Candidates) -> str | None:
    """Return what is wrong with a set; None if it is valid."""
    if not isinstance(each, ClientSet):
        return f"is a {type(each).__name__}, not a ClientSet"
    if each.site not in candidates.reach:
        return f"is at {each.site}, which is not a site"
    if not isinstance(each.devices, (list, tuple)) or not each.devices:
        return "has no devices"
    if len(set(each.devices)) < len(each.devices):
        return "has a device twice; to repeat visits, set the schedule's passes"
    if unknown := [device for device in each.devices if device not in candidates.devices]:
        return f"has {unknown[0]}, which is not a candidate device"
    if unreachable := [device for device in each.devices if device not in candidates.reach[each.site]]:
        return f"has {unreachable[0]}, which does not reach {each.site}"
    return None
