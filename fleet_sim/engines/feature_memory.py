"""Features of simulated devices' samples, in memory: a trunk is run once for each device, as on a real one's disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edge_agent.training.features import FeatureSamples, TrunkSamples

if TYPE_CHECKING:
    from collections.abc import Hashable

    from edge_agent.training.descent import Batches
    from sojourn.model.graphs import Graphs

BYTES = 256 << 20
"""Of features in one process; those that were longest not used go first, and are made again when they are needed."""


class FeatureMemory:
    """What was made of samples before, by kit and device."""

    def __init__(self, most: int = BYTES) -> None:
        self._most, self._taken = most, 0
        self._kept: dict[Hashable, FeatureSamples] = {}

    def find(self, key: Hashable) -> FeatureSamples | None:
        """What is kept under this key."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found
        return found

    def made(self, key: Hashable, samples: Batches, graphs: Graphs, dtype: str) -> Batches:
        """The features of these samples, kept if they fit at all; else the trunk is run each time."""
        each_time = TrunkSamples(samples, graphs)
        size = len(samples) * each_time.batch(np.array([0]), dtype)[0].nbytes
        if size > self._most:
            return each_time
        while self._taken + size > self._most:
            self._taken -= self._kept.pop(next(iter(self._kept))).features.nbytes
        found = FeatureSamples(each_time.batch(np.arange(len(samples)), dtype)[0].astype(np.float32), samples.y)
        self._kept[key], self._taken = found, self._taken + size
        return found
