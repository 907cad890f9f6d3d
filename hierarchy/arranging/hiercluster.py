"""HierCluster, the baseline of VISIT's tables that groups like with like.

Ward's clustering of the rows into as many clusters as sets; set l is drawn at random from cluster l. VISIT does not
say what happens when a cluster is smaller than a set: it is filled from the clusters whose centroids are nearest, at
random inside each, after every set has drawn from its own cluster, so that no set takes what another finds at home.
Too few devices make sets of level size. Clusters are numbered by their lowest member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.pools import level
from hierarchy.arranging.ward import ward_clusters
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.parts import HierClusterArranger


def hiercluster_groups(
    settings: HierClusterArranger, rows: NDArray[np.float64], sets: int, seed: int
) -> list[list[int]]:
    """The groups of row numbers, disjoint."""
    clusters = ward_clusters(rows, sets)
    centroids = np.array([rows[members].mean(axis=0) for members in clusters])
    sizes = level(len(rows), sets, settings.size)
    draw = generator(seed, "hiercluster")
    left = [draw.permutation(members).tolist() for members in clusters]
    groups = [[left[own].pop() for _ in range(min(size, len(left[own])))] for own, size in enumerate(sizes)]
    for own, size in enumerate(sizes):
        for near in np.argsort(np.linalg.norm(centroids - centroids[own], axis=1), kind="stable").tolist():
            while left[near] and len(groups[own]) < size:
                groups[own].append(left[near].pop())
    return groups
