"""How long arranging takes: VISIT's exact greedy, 9 sets of 4. Run from the root: python -m benchmarks.arranging."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np

from hierarchy.arrangement import Roll, arrange, deal_spares, quality_of
from sojourn.parts import VisitArranger
from sojourn.randomness import generator

SETTINGS = VisitArranger(sets=9, size=4)
CASES = [
    (100, 10, 1, 1),
    (1_000, 10, 1, 1),
    (1_000, 10, 9, 1),
    (1_000, 10, 9, 3),
    (1_000, 62, 9, 3),
    (10_000, 10, 9, 3),
]
RUNS = 21


def a_roll(devices: int, classes: int, sites: int, reached: int) -> Roll:
    """A skewed fleet (Dirichlet, alpha = 0.1) in which every device reaches `reached` of the sites."""
    draw = generator(1, "fleet", devices, classes, sites, reached)
    names = tuple(f"d{number:05}" for number in range(devices))
    homes = [draw.choice(sites, reached, replace=False) for _ in names]
    reach = {
        f"s{site}": frozenset(n for n, home in zip(names, homes, strict=True) if site in home) for site in range(sites)
    }
    return Roll(names, reach, draw.dirichlet([0.1] * classes, devices))


def main() -> None:
    """Print the median and the slowest of some runs, each with its own seed."""
    print(" devices  classes  sites  reached  median ms  max ms  spares ms    VTS")
    for case in CASES:
        fleet = a_roll(*case)
        times, spares, similarity = [], [], []
        for seed in range(RUNS):
            roll = replace(fleet)  # a roll remembers its table; every run builds its own
            begun = time.perf_counter()
            sets = arrange(SETTINGS, roll, seed)
            arranged = time.perf_counter()
            deal_spares(sets, roll, 1, seed)
            spares.append(1e3 * (time.perf_counter() - arranged))
            times.append(1e3 * (arranged - begun))
            similarity.append(quality_of(sets, roll)["vts"])
        row = f"{case[0]:>8}{case[1]:>9}{case[2]:>7}{case[3]:>9}{statistics.median(times):>11.2f}{max(times):>8.2f}"
        print(f"{row}{statistics.median(spares):>11.2f}{np.mean(similarity):>7.3f}")


if __name__ == "__main__":
    main()
