"""Reachability tables for tests, and a plain search for a matching."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

if TYPE_CHECKING:
    from numpy.typing import NDArray


def matched(reach: NDArray[np.bool_], demands: dict[int, int]) -> bool:
    """Return whether every site can have as many devices as it demands, by augmenting paths."""
    owner: dict[int, int] = {}

    def place(site: int, seen: set[int]) -> bool:
        for device in np.flatnonzero(reach[:, site]).tolist():
            if device not in seen:
                seen.add(device)
                if device not in owner or place(owner[device], seen):
                    owner[device] = site
                    return True
        return False

    return all(place(site, set()) for site, demand in demands.items() for _ in range(demand))


@st.composite
def reaches(draw: st.DrawFn) -> NDArray[np.bool_]:
    sites = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=sites, max_size=sites), min_size=1, max_size=12))
    return np.array(rows, bool)
