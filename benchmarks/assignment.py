"""Solvers for the equal clusters of FedGSP's grouping: ortools' flow, as it is used, and those of scipy.

Run from the root, on one core: OMP_NUM_THREADS=1 python -m benchmarks.assignment.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.icg import assign
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

CASES = [(1_000, 20), (1_000, 100), (10_000, 20)]
"""Devices and clusters."""
CLASSES = 10


def costs_of(devices: int, clusters: int) -> NDArray[np.float64]:
    """Squared distances of label counts to those of some devices, as in the first step of a clustering."""
    draw = generator(1, "assignment", devices, clusters)
    counts = draw.multinomial(200, draw.dirichlet([0.3] * CLASSES, devices)).astype(float)
    centroids = counts[draw.choice(devices, clusters, replace=False)]
    return np.stack([np.square(counts - each).sum(axis=1) for each in centroids], axis=1)


def assignment(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """The best assignment of rows to places, of which each column has the same number."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  # only one solver's memory counts

    each = len(costs) // costs.shape[1]
    return linear_sum_assignment(np.repeat(costs, each, axis=1))[1] // each


def linear_programme(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """The transport problem as a linear programme, whose corners are whole."""
    from scipy.optimize import linprog  # noqa: PLC0415
    from scipy.sparse import coo_array  # noqa: PLC0415

    devices, clusters = costs.shape
    arcs = np.arange(costs.size)
    places = np.concatenate([arcs // clusters, devices + arcs % clusters])
    table = coo_array((np.ones(2 * costs.size), (places, np.tile(arcs, 2)))).tocsr()
    supplies = np.append(np.ones(devices), np.full(clusters, devices // clusters))
    found = linprog(costs.ravel(), A_eq=table, b_eq=supplies, method="highs-ds")
    return found.x.reshape(devices, clusters).argmax(axis=1)


SOLVERS = {"ortools flow": assign, "linear_sum_assignment": assignment, "linprog": linear_programme}


def measure(solver: str, devices: int, clusters: int) -> None:
    """Measure in a separate process, whose peak memory is that of one solver."""
    small = np.arange(8.0).reshape(4, 2)
    SOLVERS[solver](small)  # loads it
    costs = costs_of(devices, clusters)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()  # what other processes take does not count
    column = SOLVERS[solver](costs)
    seconds = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert np.bincount(column).tolist() == [devices // clusters] * clusters
    total = float(costs[np.arange(devices), column].sum())
    print(json.dumps([seconds, peak / 1024, (peak - before) / 1024, total]))


def main() -> None:
    """Print the table, or measure one solver."""
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
        return
    print(" devices  clusters  solver                  CPU s  peak MB  more MB  cost / best")
    for devices, clusters in CASES:
        best = 0.0
        for solver in SOLVERS:
            command = [sys.executable, "-m", "benchmarks.assignment", solver, str(devices), str(clusters)]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            seconds, peak, more, total = json.loads(printed)
            best = best or total
            row = f"{devices:>8}{clusters:>10}  {solver:<22}{seconds:>7.2f}{peak:>9.0f}{more:>9.0f}"
            print(f"{row}{total / best:>13.9f}", flush=True)


if __name__ == "__main__":
    main()
