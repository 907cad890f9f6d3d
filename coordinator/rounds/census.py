"""Who is here and what arrangers see of them, kept from one round to the next: of a large fleet nearly all stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.rounds.estimation import rows_of
from hierarchy.arranging.candidates import reach_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from coordinator.state import JobState
    from sojourn.parts import Estimator
    from sojourn.store.blobs import BlobStore

    Reach = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class WhoIsHere:
    """The devices that may take part, by sorted name, and which site reaches whom."""

    devices: tuple[str, ...]
    names: frozenset[str]
    """The same."""
    reach: dict[str, frozenset[str]]
    table: NDArray[np.bool_]
    """A row for each device, a column for each site by sorted name."""


class Census:
    """Looks again only at what has changed since the round before."""

    def __init__(self) -> None:
        self._asked: tuple[Reach, Sequence[str]] | None = None
        self._here = who_is_here({}, ())
        self._known: list[tuple[float, ...]] = []
        self._rows: tuple[Estimator, NDArray[np.float64]] | None = None

    def here(self, reach: Reach, unwilling: Sequence[str]) -> WhoIsHere:
        """Who is here; a reach that is the very one of before has not changed."""
        if self._asked is None or self._asked[0] is not reach or self._asked[1] != unwilling:
            self._here, self._asked = who_is_here(reach, unwilling), (reach, unwilling)
        return self._here

    def rows(
        self, estimator: Estimator, state: JobState, here: Sequence[str], blobs: BlobStore
    ) -> NDArray[np.float64] | None:
        """What the arranger sees of each device; None where nothing was asked."""
        if estimator.weights or not estimator.rows:
            return rows_of(estimator, state, here, blobs)
        known = [state.signatures[device] for device in here]
        # Signatures that were not told anew are the same objects: this is quick.
        if self._rows is None or self._rows[0] != estimator or known != self._known:
            rows = rows_of(estimator, state, here, blobs)
            if rows is None:
                return None
            self._known, self._rows = known, (estimator, rows)
        return self._rows[1]


def who_is_here(reach: Reach, unwilling: Sequence[str]) -> WhoIsHere:
    """The devices that sites reach, but for some."""
    names = frozenset().union(*reach.values()).difference(unwilling)
    devices = tuple(sorted(names))
    reached = {site: names.intersection(there) for site, there in reach.items()}
    return WhoIsHere(devices, names, reached, reach_table(devices, reached))
