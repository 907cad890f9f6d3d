"""The class mix of tours and the visited devices, in runs of `sojourn simulate` and `sojourn papers`.

It reads the true labels, which no node of a fleet has. Folders whose names differ only in their seeds are one row. The
distance of a mix from that of all data is half of the sum of the differences: 0 the same, 0.9 one class of ten.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter, defaultdict
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fleet_sim.console.simulating import read
from fleet_sim.console.split_view import dealt_data
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import split
from sojourn.parts import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

SEED = re.compile(r"[ -]seed-\d+$")
COLUMNS = ("device", "tour", "last hop", "round", "devices used", "most, share of visits")


@dataclass(frozen=True)
class TourMix:
    """The mean distance of a visited device, a tour, the last device of a tour and a round from the mix of all data.

    used: the number of devices with equal shares of the visits that would be as concentrated (the inverse of the sum of
    squared shares), as a share of all devices; top: the share of visits of the fifth of the devices with most visits.
    """

    device: float
    tour: float
    last: float
    round: float
    used: float
    top: float


def mix_of(folder: Path) -> TourMix:
    """Return the values of a run's folder, with its data split again."""
    simulation = read(folder / "config.toml", {})
    data = load(simulation.fleet.data)
    dealt = dealt_data(data, split(simulation.split, data, simulation.fleet.devices, simulation.read().seed))
    counts = dict(zip(simulation.fleet.names, dealt.counts.astype(float), strict=True))
    whole = sum(counts.values())
    asked = len(counts) if name_of(simulation.read().parts().estimator) != "none" else 0
    tours, rounds = _tours(folder, asked), defaultdict[str, list[str]](list)
    for tour, devices in tours.items():
        rounds[tour.rsplit("/", 2)[1]] += devices
    visits = Counter(chain.from_iterable(tours.values()))
    shares = np.array([visits[device] for device in counts]) / visits.total()
    most = np.sort(shares)[::-1][: max(1, len(shares) // 5)]

    def far(of: Iterable[Iterable[str]]) -> float:
        return float(np.mean([_distance(sum(counts[device] for device in devices), whole) for devices in of]))

    return TourMix(
        far([device] for devices in tours.values() for device in devices),
        far(tours.values()),
        far([devices[-1]] for devices in tours.values()),
        far(rounds.values()),
        float(1 / (shares**2).sum() / len(shares)),
        float(most.sum()),
    )


def _tours(folder: Path, asked: int) -> dict[str, list[str]]:
    """Return the devices of each training tour, in the order of their visits; the first ones only `asked` devices."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    with (folder / "visits.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            _, round_, number = row["tour"].rsplit("/", 2)
            if row["status"] == "done" and (int(round_) > 1 or int(number) >= asked):
                found[row["tour"]].append((int(row["hop"]), row["device"]))
    return {tour: [device for _, device in sorted(hops)] for tour, hops in found.items()}


def _distance(counts: NDArray[np.float64] | float, whole: NDArray[np.float64] | float) -> float:
    mine, all_data = np.asarray(counts) / np.sum(counts), np.asarray(whole) / np.sum(whole)
    return float(np.abs(mine - all_data).sum() / 2)


def main() -> None:
    """Print one row for each group of folders: means over their seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    groups: dict[str, list[TourMix]] = defaultdict(list)
    for folder in parser.parse_args().folders:
        groups[SEED.sub("", folder.name)].append(mix_of(folder))
    print(f"{'':24}{'seeds':>6}" + "".join(f"{name:>{len(name) + 3}}" for name in COLUMNS))
    for name, mixes in groups.items():
        means = np.mean([astuple(mix) for mix in mixes], axis=0)
        cells = "".join(f"{value:>{len(column) + 3}.2f}" for value, column in zip(means, COLUMNS, strict=True))
        print(f"{name:24}{len(mixes):>6}{cells}")


if __name__ == "__main__":
    main()
