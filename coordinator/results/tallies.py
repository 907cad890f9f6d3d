"""What a simulation's visits come to for each site and each device: how long, how many bytes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.results.folder import VISITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.results.folder import ResultFolder, Rows

DEVICES, SITES = "devices.csv", "sites.csv"
_SHARED = ("visits", "lost", "seconds", "down", "up")
DEVICE_COLUMNS = ("device", "profile", "samples", *_SHARED)
SITE_COLUMNS = ("site", "devices", "rounds", *_SHARED)


@dataclass
class VisitTally:
    """Visits added up. seconds: how long the device or site was busy; bytes are the devices' payloads."""

    visits: int = 0
    lost: int = 0
    seconds: float = 0.0
    down: int = 0
    up: int = 0
    devices: set[str] = field(default_factory=set)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    """When the first visit of each round began, and the last one ended."""

    def add(self, row: Mapping[str, str]) -> None:
        """Add a visit."""
        done = row["status"] == "done"
        self.visits += done
        self.lost += not done
        self.seconds += float(row["seconds"])
        self.down += int(row["down"])
        self.up += int(row["up"])
        self.devices.add(row["device"])
        round_, end = row["tour"].rpartition("/")[0], float(row["clock"])
        first, last = self.spans.get(round_, (end, end))
        self.spans[round_] = min(first, end - float(row["seconds"])), max(last, end)

    @property
    def busy(self) -> float:
        """Seconds in which at least one visit was under way or awaited in its round."""
        return sum(last - first for first, last in self.spans.values())

    @property
    def shared(self) -> tuple[object, ...]:
        """The columns that the tables of sites and devices share."""
        return self.visits, self.lost, self.seconds, self.down, self.up


def tally(visits: Rows, by: str) -> dict[str, VisitTally]:
    """The visits of each `device` or `site`."""
    found: dict[str, VisitTally] = defaultdict(VisitTally)
    for row in visits:
        found[row[by]].add(row)
    return found


def write_tallies(
    results: ResultFolder, samples: Mapping[str, int], profiles: Mapping[str, str], sites: Sequence[str]
) -> tuple[dict[str, VisitTally], dict[str, VisitTally]]:
    """Write both tables; returns sites and devices. A device that was never visited is there too, with zeros."""
    visits = results.rows(VISITS)
    by_device, by_site = tally(visits, "device"), tally(visits, "site")
    results.table(
        DEVICES,
        DEVICE_COLUMNS,
        [(name, profiles[name], count, *by_device[name].shared) for name, count in samples.items()],
    )
    results.table(
        SITES,
        SITE_COLUMNS,
        [
            (name, len(it.devices), len(it.spans), it.visits, it.lost, it.busy, it.down, it.up)
            for name in sites
            for it in [by_site[name]]
        ],
    )
    return by_site, by_device
