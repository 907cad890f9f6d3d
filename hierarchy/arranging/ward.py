"""Ward's hierarchical clustering of devices' rows: what HierCluster and CluSamp cut, each in its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def ward_clusters(rows: NDArray[np.float64], clusters: int) -> list[list[int]]:
    """The rows in `clusters` clusters, by their lowest member; `clusters` is at most the number of rows."""
    if clusters == 1:
        return [list(range(len(rows)))]
    from sklearn.cluster import AgglomerativeClustering  # noqa: PLC0415  # only where an arranger needs it

    labels = AgglomerativeClustering(n_clusters=clusters, linkage="ward").fit(rows).labels_
    return sorted(np.flatnonzero(labels == label).tolist() for label in range(clusters))


def ward_merges(rows: NDArray[np.float64]) -> list[tuple[int, int]]:
    """The whole tree: merge i joins two nodes into node len(rows) + i; the rows are the first nodes."""
    if len(rows) < 2:
        return []
    from sklearn.cluster import AgglomerativeClustering  # noqa: PLC0415  # only where an arranger needs it

    tree = AgglomerativeClustering(n_clusters=None, distance_threshold=0.0, linkage="ward").fit(rows)
    return [(int(left), int(right)) for left, right in tree.children_]
