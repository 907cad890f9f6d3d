"""Time and quality of arranging: VISIT's greedy, exact and fast, and FedGSP's inter-cluster grouping.

Run from the root, on one core: OMP_NUM_THREADS=1 python -m benchmarks.arranging.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.icg import icg_groups
from hierarchy.arranging.measures import cpd, vts
from hierarchy.arranging.visit import visit_sets
from sojourn.parts import IcgArranger, VisitArranger
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT_CASES = [
    (100, 10, 1, 1),
    (1_000, 10, 1, 1),
    (1_000, 10, 9, 1),
    (1_000, 10, 9, 3),
    (1_000, 62, 9, 3),
    (10_000, 10, 9, 3),
]
"""Devices, classes, sites, sites that a device reaches; 9 sets of 4."""
FLEETS = [10_000, 100_000, 1_000_000]
RATIO_CASES = [(1_000, 100, 10), (5_000, 2_500, 2), (10_000, 100, 10), (11_000, 1_100, 10)]
"""Devices, sets, size; the last is the smallest round fleet that is cut into blocks."""
GROUPING_CASES = [(364, 52, 62), (10_000, 500, 10), (10_000, 500, 62), (100_000, 1_000, 10)]
"""Devices, groups, classes."""
RUNS = 21


def fleet(devices: int, classes: int, alpha: float) -> NDArray[np.float64]:
    """Return signatures of a skewed fleet: class shares from a Dirichlet distribution."""
    return generator(1, "fleet", devices, classes, str(alpha)).dirichlet([alpha] * classes, devices)


def reach_of(devices: int, sites: int, reached: int) -> NDArray[np.bool_]:
    """Draw for every device the given number of reachable sites."""
    order = np.argsort(generator(1, "reach", devices, sites).random((devices, sites)), axis=1)
    return order < reached


def arranged(
    settings: VisitArranger, signatures: NDArray[np.float64], reach: NDArray[np.bool_], seed: int
) -> tuple[float, float]:
    """Return seconds and VTS."""
    begun = time.perf_counter()
    plan = visit_sets(settings, settings.sets, signatures, reach, seed)
    return time.perf_counter() - begun, vts(signatures, [members for _, members in plan])


def print_exact() -> None:
    print("exact, 9 sets of 4\n devices  classes  sites  reached  median ms  max ms    VTS")
    for devices, classes, sites, reached in EXACT_CASES:
        signatures, reach = fleet(devices, classes, 0.1), reach_of(devices, sites, reached)
        settings = VisitArranger(sets=9, size=4, search="exact")
        times, found = zip(*(arranged(settings, signatures, reach, seed) for seed in range(RUNS)), strict=True)
        row = f"{devices:>8}{classes:>9}{sites:>7}{reached:>9}{1e3 * statistics.median(times):>11.2f}"
        print(f"{row}{1e3 * max(times):>8.2f}{np.mean(found):>7.3f}", flush=True)


def measure_all_arranged(devices: int) -> None:
    """Run in a separate process, so that its peak memory is that of one arrangement."""
    signatures = fleet(devices, 10, 0.1)
    settings = VisitArranger(sets=devices // 10, size=10, search="fast")
    seconds, found = arranged(settings, signatures, np.ones((devices, 1), bool), 1)
    print(json.dumps([seconds, found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def print_fast() -> None:
    print("\nfast, 10 classes, all devices in sets of 10\n  devices  seconds  ns / N log2 N  peak MB    VTS")
    for devices in FLEETS:
        command = [sys.executable, "-m", "benchmarks.arranging", str(devices)]
        seconds, found, peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        each = 1e9 * seconds / (devices * math.log2(devices))
        print(f"{devices:>9}{seconds:>9.2f}{each:>15.1f}{peak:>9.0f}{found:>7.3f}", flush=True)


def print_ratios() -> None:
    print("\nfast and exact, the same seed")
    print(" devices   sets  size  classes  alpha  exact s  fast s  exact VTS   ratio")
    for devices, sets, size in RATIO_CASES:
        for classes, alpha in ((10, 0.05), (10, 1.0), (62, 0.05), (62, 1.0)):
            signatures, reach = fleet(devices, classes, alpha), np.ones((devices, 1), bool)
            exact, reference = arranged(VisitArranger(sets=sets, size=size, search="exact"), signatures, reach, 1)
            fast, found = arranged(VisitArranger(sets=sets, size=size, search="fast"), signatures, reach, 1)
            row = f"{devices:>8}{sets:>7}{size:>6}{classes:>9}{alpha:>7}{exact:>9.2f}{fast:>8.2f}"
            print(f"{row}{reference:>11.4f}{found / reference:>8.4f}", flush=True)


def print_grouping() -> None:
    print("\ninter-cluster grouping, at most 10 iterations\n devices  groups  classes  seconds  CPD / random")
    icg_groups(IcgArranger(), np.eye(4), 2, 1)  # loads the solver
    for devices, groups, classes in GROUPING_CASES:
        counts = generator(1, "counts", devices).multinomial(200, fleet(devices, classes, 0.3)).astype(float)
        begun = time.perf_counter()
        found = icg_groups(IcgArranger(), counts, groups, 1)
        seconds = time.perf_counter() - begun
        order = generator(1, "random").permutation(devices)[: len(found) * len(found[0])]
        ratio = cpd(counts, found) / cpd(counts, order.reshape(len(found), -1).tolist())
        print(f"{devices:>8}{groups:>8}{classes:>9}{seconds:>9.3f}{ratio:>14.2f}", flush=True)


def main() -> None:
    """Print all tables, or measure one large fleet."""
    if len(sys.argv) > 1:
        measure_all_arranged(int(sys.argv[1]))
        return
    print_exact()
    print_fast()
    print_ratios()
    print_grouping()


if __name__ == "__main__":
    main()
