"""Arrangers based on Ward's hierarchical clustering of devices: HierCluster and CluSamp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierarchy.arranging.pools import level
from sojourn.parts import HierClusterArranger
from sojourn.randomness import generator


def ward_clusters(rows: NDArray[np.float64], clusters: int) -> list[list[int]]:
    """Return the rows in `clusters` clusters, by their lowest member; `clusters` is at most the number of rows."""
    if clusters == 1:
        return [list(range(len(rows)))]
    from sklearn.cluster import AgglomerativeClustering  # noqa: PLC0415  # only where an arranger needs it

    labels = AgglomerativeClustering(n_clusters=clusters, linkage="ward").fit(rows).labels_
    return sorted(np.flatnonzero(labels == label).tolist() for label in range(clusters))


def ward_merges(rows: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the whole tree: merge i joins two nodes into node len(rows) + i; the rows are the first nodes."""
    if len(rows) < 2:
        return []
    from sklearn.cluster import AgglomerativeClustering  # noqa: PLC0415  # only where an arranger needs it

    tree = AgglomerativeClustering(n_clusters=None, distance_threshold=0.0, linkage="ward").fit(rows)
    return [(int(left), int(right)) for left, right in tree.children_]


# HierCluster, the baseline of VISIT's tables that groups similar devices.
#
# Ward's clustering of the rows into as many clusters as sets; set l is drawn at random from cluster l. VISIT leaves
# open what happens if a cluster is smaller than a set. Here it is filled from the clusters with the nearest centroids,
# at random within each, after every set has drawn from its own cluster, so that no set takes devices that another
# set's cluster needs. Too few devices make sets of level size. Clusters are numbered by their lowest member.


def hiercluster_groups(
    settings: HierClusterArranger, rows: NDArray[np.float64], sets: int, seed: int
) -> list[list[int]]:
    """Return disjoint groups of row numbers."""
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


# CluSamp: one draw from each of m distributions of equal mass, made of clusters of similar devices.
#
# Fraboni, Vidal, Kameni, Lorenzi: "Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection
# in Federated Learning", Algorithm 2. Device k has p_k = n_k / n of all data, and m·p_k is its mass. Over the m
# distributions each device has exactly its mass and each distribution has exactly 1, so a uniform mean of the drawn
# devices is unbiased. All masses are whole numbers here, m·n_k of n.
#
# - A device of mass 1 or more fills floor(m·p_k) distributions alone; its remaining mass is clustered.
# - Ward's tree of the rows is cut at the largest subtrees of mass at most 1. Rows of zeros (devices that were never
#   visited) have no distance from each other, so they merge first.
# - The heaviest clusters start the remaining distributions, one each. The devices of the other clusters, lightest
#   cluster first, in random order within, fill up the distributions, the lightest first. A device that does not fit
#   into a distribution is split.


def clusamp_picks(rows: NDArray[np.float64], samples: NDArray[np.int64], draws: int, seed: int) -> list[int]:
    """Return the drawn devices, one from each distribution; a device with much data can be drawn more than once."""
    draw = generator(seed, "clusamp")
    table = distributions(rows, samples, draws, draw)
    return [int(draw.choice(len(rows), p=masses / masses.sum())) for masses in table]


def distributions(
    rows: NDArray[np.float64], samples: NDArray[np.int64], draws: int, draw: np.random.Generator
) -> NDArray[np.int64]:
    """Return the mass of each device (column) in each distribution (row), in units of 1 / all samples."""
    full = int(samples.sum())
    whole, rest = np.divmod(draws * samples, full)
    table = np.zeros((draws, len(rows)), np.int64)
    alone = np.repeat(np.arange(len(rows)), whole)
    table[np.arange(len(alone)), alone] = full
    clusters = sorted(_light_clusters(ward_merges(rows), rest, full), key=lambda each: (-rest[each].sum(), each))
    kept = draws - len(alone)
    for masses, members in zip(table[len(alone) :], clusters[:kept], strict=True):
        masses[members] = rest[members]
    number = draws - 1
    for members in reversed(clusters[kept:]):
        for device in draw.permutation(members).tolist():
            number = _fill(table, device, int(rest[device]), number, full)
    return table


def _fill(table: NDArray[np.int64], device: int, mass: int, number: int, full: int) -> int:
    """Add a device's mass to distribution `number` and, once that is full, to those before it; return the last one."""
    while mass:
        room = full - int(table[number].sum())
        added = min(room, mass)
        table[number, device] += added
        mass -= added
        if added == room:
            number -= 1
    return number


def _light_clusters(merges: Sequence[tuple[int, int]], masses: NDArray[np.int64], limit: int) -> list[list[int]]:
    """Return the largest subtrees whose mass is at most `limit`."""
    nodes: list[list[int] | None] = [[device] for device in range(len(masses))]
    for left, right in merges:
        first, second = nodes[left], nodes[right]
        joined = None if first is None or second is None else sorted(first + second)
        if joined is not None and masses[joined].sum() > limit:
            joined = None
        if joined is not None:
            nodes[left] = nodes[right] = None
        nodes.append(joined)
    return [members for members in nodes if members]
