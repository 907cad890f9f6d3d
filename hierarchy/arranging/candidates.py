"""What an arranger gets and gives: the candidate devices, the context of the round, and the client sets it makes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sojourn.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

Memo = dict[str, tuple[int, ...]]
"""What an arranger remembers between rounds, by device name."""


class ClientSet(msgspec.Struct, frozen=True):
    """One tour in the making: its site, and its devices in the order of visits."""

    site: str
    devices: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The devices that may be arranged, by sorted name, and what is known of them.

    reach: the devices that each site reaches. signatures: a row for each device, whatever the estimator gives; samples:
    how many each device has; None where nobody asked. by_class: the columns of the rows are classes; counts: the rows
    are true label counts; classes: how many classes there are, where the columns do not show it; reached: the table of
    who reaches whom, where it was made before.
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
        """The sites by sorted name."""
        return tuple(sorted(self.reach))

    @cached_property
    def table(self) -> NDArray[np.bool_]:
        """Who reaches whom: a row for each device, a column for each site."""
        return reach_table(self.devices, self.reach) if self.reached is None else self.reached

    def rows_of(self, devices: Iterable[str]) -> list[int]:
        """The numbers of some of the devices, without those that are not among them."""
        places = ((device, bisect_left(self.devices, device)) for device in devices)
        return [at for device, at in places if at < len(self.devices) and self.devices[at] == device]

    @cached_property
    def here(self) -> NDArray[np.int64]:
        """The numbers of the devices that reach a site."""
        return np.flatnonzero(self.table.any(axis=1))


def reach_table(devices: Sequence[str], reach: Mapping[str, frozenset[str]]) -> NDArray[np.bool_]:
    """A row for each device, a column for each site by sorted name."""
    row = {device: number for number, device in enumerate(devices)}
    columns = np.zeros((len(reach), len(row)), bool)
    for column, site in zip(columns, sorted(reach), strict=True):
        column[[row[device] for device in reach[site] if device in row]] = True
    return columns.T


@dataclass(frozen=True)
class ArrangeContext:
    """The round that is arranged.

    seed: of this round alone; sets: how many the schedule asks for, instead of the arranger's own number; memo: what
    the arranger remembered in the round before.
    """

    seed: int
    round: int = 1
    sets: int | None = None
    memo: Memo = field(default_factory=dict)


@dataclass(frozen=True)
class Arranged:
    """The client sets of a round in plan order, and what to remember for the next."""

    sets: tuple[ClientSet, ...]
    memo: Memo
