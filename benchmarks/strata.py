"""VISIT with strata, FedAvg and random tours on tasks without classes: rounds to FedAvg's loss after fifty rounds."""

from __future__ import annotations

import argparse
import logging
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import fleet_sim

ROUNDS = 50
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Setting:
    """A data set, its split and training; `rates` are tried for FedAvg, and all runs use the best one."""

    name: str
    data: str
    split: dict[str, Any]
    devices: int
    sets: int
    model: dict[str, Any]
    rates: tuple[float, ...]
    gate: bool = False


SETTINGS = (
    Setting(
        "regression split by range of the target",
        "houses",
        {"by": "range"},
        20,
        5,
        {"name": "mlp", "options": {"hidden": [64, 32]}},
        (0.003, 0.005, 0.01, 0.02, 0.05),
    ),
    Setting(
        "reconstruction split by machine",
        "pumps",
        {"by": "user"},
        24,
        6,
        {"name": "autoencoder", "options": {"hidden": [48, 24]}},
        (0.2, 0.5, 1.0, 2.0),
    ),
)
SIZE = 4
"""Devices of a tour. By default all devices are in one; every strategy makes equally many visits in a round."""


def strategies(setting: Setting) -> dict[str, dict[str, Any]]:
    """Return the tables that differ, by name."""
    shape = {"sets": setting.sets, "size": SIZE}
    return {
        "fedavg": {"strategy": "fedavg", "arranger": {"fraction": setting.sets * SIZE / setting.devices}},
        "visit": {"strategy": "visit", "arranger": shape},
        "random": {"strategy": "visit", "estimator": {"name": "none"}, "arranger": {"name": "random", **shape}},
    }


def losses(setting: Setting, tables: dict[str, Any], rate: float, seed: int, rounds: int) -> tuple[list[float], int]:
    """Return the loss on the test set after each round, and the number of refused visits.

    All devices are honest, but the gate refuses some that know only one range, so it is off by default.
    """
    job = {
        "name": "study",
        "seed": seed,
        "rounds": rounds,
        "threads": 1,
        "model": setting.model,
        "training": {"lr": rate, "batch": 32, "epochs": 1},
        "split": setting.split,
        "simulation": {"data": setting.data, "devices": setting.devices, "engine": "serial", "reach": "all"},
        "gate": {"on": setting.gate},
        **tables,
    }
    with tempfile.TemporaryDirectory(prefix="sojourn-strata-") as folder:
        result = fleet_sim.simulate(job, Path(folder) / "run")
        rows = result.rounds
    return [float(row["loss"]) for row in rows], sum(int(row["lost"]) for row in rows)


def reached(found: list[float], goal: float) -> int | None:
    """Return the first round with such a loss."""
    return next((at for at, loss in enumerate(found, 1) if loss <= goal), None)


def study(setting: Setting, seeds: tuple[int, ...], rounds: int) -> None:
    """Find FedAvg's best rate, train all with it, and print a line for each run and one for all seeds."""
    ways = strategies(setting)
    print(f"\n{setting.name}: {setting.data}, {setting.devices} devices, {setting.sets} tours of {SIZE}", flush=True)
    tried = {rate: losses(setting, ways["fedavg"], rate, seeds[0], rounds)[0][-1] for rate in setting.rates}
    rate = min(tried, key=lambda each: tried[each])
    print(f"FedAvg's loss after {rounds} rounds by rate: {', '.join(f'{k:g}: {v:.4f}' for k, v in tried.items())}")
    print("seed  goal    " + "".join(f"{way:>28}" for way in ways), flush=True)
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for seed in seeds:
        runs = {way: losses(setting, tables, rate, seed, rounds) for way, tables in ways.items()}
        goal = runs["fedavg"][0][-1]
        line = f"{seed:4}  {goal:.4f}  "
        for way, (found, lost) in runs.items():
            at = reached(found, goal)
            ratios[way].append((at or float("inf")) / rounds)
            line += f"  round {at or '-':>3}, last {found[-1]:.4f}, {lost:3} lost"
        print(line, flush=True)
    print("rounds / FedAvg's: " + ", ".join(f"{way} {fmean(each):.2f}" for way, each in ratios.items()), flush=True)


def main() -> None:
    """Run the study or a part of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", action="append", help="only this set; repeatable")
    options.add_argument("--seeds", type=int, default=len(SEEDS))
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--sets", type=int, help="tours of a round, in which not all devices are then")
    options.add_argument("--gate", action="store_true", help="with the gate as it is by default")
    given = options.parse_args()
    logging.basicConfig(level=logging.ERROR)
    for setting in SETTINGS:
        if not given.data or setting.data in given.data:
            chosen = replace(setting, gate=given.gate, sets=given.sets or setting.sets)
            study(chosen, SEEDS[: given.seeds], given.rounds)


if __name__ == "__main__":
    main()
