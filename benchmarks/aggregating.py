"""The time of a merge: 100 models of 1 M parameters, by every aggregator, and one numpy pass over the same bytes.

Run from the root: OMP_NUM_THREADS=1 python -m benchmarks.aggregating.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, get_args

import numpy as np

from coordinator.aggregators.aggregating import Contribution, MergeContext, Vector, aggregate, first_state
from sojourn.parts import (
    Aggregator,
    Dyn,
    DynServer,
    Objective,
    OwnAggregator,
    Scaffold,
    ScaffoldServer,
    Sgd,
    name_of,
)
from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS, SIZE, RUNS = 100, 1_000_000, 15
KINDS: list[type[Aggregator]] = [kind for kind in get_args(Aggregator) if kind is not OwnAggregator]
OBJECTIVES: dict[type[Aggregator], Objective] = {DynServer: Dyn(), ScaffoldServer: Scaffold()}
"""What devices follow; with the other aggregators the plain loss."""


def added_up(models: list[Vector], precision: type[np.floating]) -> Callable[[], object]:
    """Run a plain pass: read every byte once and add it to a sum."""

    def one_pass() -> object:
        total = np.zeros(SIZE, precision)
        for model in models:
            np.add(total, model, out=total)
        return total

    return one_pass


def main() -> None:
    """Run all in turns, so that the machine's load affects all, and print times and the ratios of medians."""
    draw = generator(1, "models")
    models = [draw.standard_normal(SIZE, np.float32) for _ in range(MODELS)]
    brought = [Contribution(model, 1.0 + number) for number, model in enumerate(models)]
    runs: dict[str, Callable[[], object]] = {
        "pass in float32": added_up(models, np.float32),
        "pass in float64": added_up(models, np.float64),
    }
    for settings in (kind() for kind in KINDS):
        merge = MergeContext(MODELS, OBJECTIVES.get(type(settings), Sgd()), {"control_delta": models[1]})
        # The second merge counts: the first one has no state to read yet.
        _, state = aggregate(settings, models[0], brought[:2], first_state(settings, SIZE), merge)
        runs[name_of(settings)] = partial(aggregate, settings, models[0], brought, state, merge)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(RUNS):
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begun))
    narrow, wide = (times[name] for name in list(times)[:2])
    print(f"{'':16} median ms  min ms  / float32 pass  / float64 pass")
    for name, taken in times.items():
        middle = statistics.median(taken)
        ratios = f"{middle / statistics.median(narrow):>16.2f}{middle / statistics.median(wide):>16.2f}"
        print(f"{name:16}{middle:>10.1f}{min(taken):>8.1f}{ratios}")


if __name__ == "__main__":
    main()
