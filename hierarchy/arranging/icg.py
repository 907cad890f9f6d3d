"""FedGSP's inter-cluster grouping: groups of equal size, similar to each other and mixed within.

Zeng et al.: "Heterogeneous Federated Learning via Grouped Sequential-to-Parallel Training", Algorithm 2. With N devices
and f requested groups: L = floor(N / f); L·floor(N / L) random devices are used, the others rest. Their rows are put
into L clusters of equal size, alternating an assignment of least cost (a flow, eq. 10 to 13) and new centroids until
convergence. Each of floor(N / L) groups, which can be more than f, gets one random device of each cluster.

Devices with much data are clustered by how much they have, and one unlucky draw can undo the balance of the clusters.
So the groups are drawn `draws` times, and the most similar ones are kept; `draws = 1` is the paper's method.

The paper does not define the first centroids. Here they are drawn as in k-means++ (each next one a device, drawn by its
squared distance to the nearest so far); small fleets try several and keep the tightest clusters (eq. 10). Up to `ARCS`
pairs of a device and a cluster the assignment is exact. Larger fleets are split at random: the groups into blocks of
separate devices, and the clusters of a block into parts of at most `CLUSTERS` with separate devices. So a group still
gets one device of each of L clusters of equal size, but a cluster is optimal only among the few thousand devices of its
part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import Fault
from sojourn.parts import IcgArranger
from sojourn.randomness import generator

Rows = NDArray[np.float64]
Numbers = NDArray[np.int64]

ARCS = 1_500_000
"""Up to this many pairs of a device and a cluster, all devices are clustered together."""
CLUSTERS, DEVICES = 50, 2000
"""In larger fleets: about how many clusters, and devices, are clustered together."""
MAX_STARTS, CHEAP_ARCS = 10, 10_000
"""Clusters are made from several first centroids, as long as their pairs add up to at most the second number."""
UNITS = 2**40
"""The largest cost of an assignment, in the whole units that the flow solver needs.

The solver multiplies a cost by the number of nodes, which must stay below 2^63. Each cost is wrong by at most half a
unit, so the assignment of n devices costs at most n / UNITS of the largest single cost more than the best one.
"""


def icg_groups(settings: IcgArranger, rows: Rows, sets: int, seed: int) -> list[list[int]]:
    """Return the groups as row numbers, one device of each cluster in the clusters' order; unused devices rest."""
    if not len(rows):
        return []
    clusters = len(rows) // min(sets, len(rows))
    count = len(rows) // clusters
    kept = generator(seed, "kept").choice(len(rows), clusters * count, replace=False)
    groups: list[list[int]] = []
    for block, devices in enumerate(_blocks(kept, clusters, count)):
        parts = -(-clusters // (CLUSTERS if clusters * len(kept) > ARCS else clusters))
        each = len(devices) // clusters
        bounds = np.arange(parts + 1) * clusters // parts
        columns: list[Numbers] = []
        for part in range(parts):
            mine = np.sort(devices[each * bounds[part] : each * bounds[part + 1]])
            width = int(bounds[part + 1] - bounds[part])
            draw = generator(seed, "clusters", block, part)
            cluster = equal_clusters(rows[mine], width, settings.iterations, draw)
            columns += [mine[cluster == number] for number in range(width)]
        draws = settings.draws if rows.min() >= 0 else 1  # only non-negative amounts have shares
        groups += _one_of_each(columns, rows, draws, generator(seed, "groups", block)).tolist()
    return groups


def _one_of_each(clusters: list[Numbers], rows: Rows, draws: int, draw: np.random.Generator) -> Numbers:
    """Return groups with one random device of each cluster: of several draws, the one whose shares vary least."""
    tries = [np.stack([draw.permutation(each) for each in clusters], axis=1) for _ in range(draws)]
    return min(tries, key=lambda table: _spread(rows, table)) if len(tries) > 1 else tries[0]


def _spread(rows: Rows, groups: Numbers) -> float:
    """Return the summed squared distances of the groups' normalised sums from their mean."""
    sums = np.zeros((len(groups), rows.shape[1]))
    for members in groups.T:
        sums += rows[members]
    totals = sums.sum(axis=1, keepdims=True)
    shares = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
    return float(np.square(shares - shares.mean(axis=0)).sum())


def equal_clusters(rows: Rows, clusters: int, iterations: int, draw: np.random.Generator) -> Numbers:
    """Return the cluster of each row: `clusters` of equal size, the tightest of several tries if these are cheap."""
    if clusters in (1, len(rows)):
        return np.arange(len(rows)) % clusters
    starts = max(1, min(MAX_STARTS, CHEAP_ARCS // (len(rows) * clusters)))
    tries = [_converged(rows, clusters, iterations, draw) for _ in range(starts)]
    return min(tries, key=lambda found: found[0])[1]


def _converged(rows: Rows, clusters: int, iterations: int, draw: np.random.Generator) -> tuple[float, Numbers]:
    """Alternate assignment and centroids until convergence; return the sum of squared distances, and the clusters."""
    costs = _squared_distances(rows, _first_centroids(rows, clusters, draw))
    cluster = assign(costs)
    for _ in range(iterations - 1):
        centroids = np.stack([rows[cluster == number].mean(axis=0) for number in range(clusters)])
        costs = _squared_distances(rows, centroids)
        before, cluster = cluster, assign(costs)
        if np.array_equal(before, cluster):
            break
    return float(costs[np.arange(len(rows)), cluster].sum()), cluster


def assign(costs: Rows) -> Numbers:
    """Return the column of each row, equally many rows for each column, at the least sum of costs."""
    from ortools.graph.python import min_cost_flow  # noqa: PLC0415 - loaded only where devices are clustered

    devices, clusters = costs.shape
    # Only a row's extra cost over its cheapest column matters.
    more = costs - costs.min(axis=1, keepdims=True)
    units = np.rint(more * (UNITS / (more.max() or 1.0))).astype(np.int64)
    flow = min_cost_flow.SimpleMinCostFlow()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        np.repeat(np.arange(devices), clusters),
        np.tile(np.arange(devices, devices + clusters), devices),
        np.ones(units.size, np.int64),
        units.ravel(),
    )
    supplies = np.append(np.ones(devices, np.int64), np.full(clusters, -(devices // clusters)))
    flow.set_nodes_supplies(np.arange(devices + clusters), supplies)
    if (status := flow.solve()) != flow.OPTIMAL:
        raise Fault(f"no assignment of {devices} devices to {clusters} equal clusters: {status}")
    column: Numbers = flow.flows(arcs).reshape(devices, clusters).argmax(axis=1)
    return column


def _blocks(kept: Numbers, clusters: int, count: int) -> list[Numbers]:
    """Return the used devices in blocks of whole groups; a single block if all can be clustered together."""
    if clusters * len(kept) <= ARCS:
        return [kept]
    each = max(1, DEVICES // min(clusters, CLUSTERS))
    blocks = -(-count // each)
    return np.split(kept, (np.arange(1, blocks) * count // blocks) * clusters)


def _first_centroids(rows: Rows, clusters: int, draw: np.random.Generator) -> Rows:
    """Return devices' rows, each next one drawn by its squared distance to the nearest so far (k-means++)."""
    chosen = [int(draw.integers(len(rows)))]
    nearest = _squared_distances(rows, rows[chosen])[:, 0]
    while len(chosen) < clusters:
        total = nearest.sum()
        chosen.append(int(draw.choice(len(rows), p=nearest / total) if total > 0 else draw.integers(len(rows))))
        nearest = np.minimum(nearest, _squared_distances(rows, rows[chosen[-1:]])[:, 0])
    return rows[chosen]


def _squared_distances(rows: Rows, centroids: Rows) -> Rows:
    """Return the distance of every row to every centroid, by differences: products of large counts would cancel."""
    table = np.empty((len(rows), len(centroids)))
    for column, centroid in zip(table.T, centroids, strict=True):
        difference = rows - centroid
        column[:] = np.einsum("nc,nc->n", difference, difference)
    return table
