"""Totals of visits: time and bytes by site and by device, and why visits failed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.results.folder import VISITS, ResultFolder, Rows
from sojourn.protocol.visit_outcomes import WOULD_REFUSE, is_flagged

DEVICES, SITES = "devices.csv", "sites.csv"
_SHARED = ("visits", "lost", "seconds", "down", "up")
DEVICE_COLUMNS = ("device", "profile", "samples", *_SHARED)
SITE_COLUMNS = ("site", "devices", "rounds", *_SHARED)
MAX_REASONS = 4
"""The maximum number of reasons for lost visits that are listed."""
MAX_NAMED = 4
"""More devices than this are counted instead of named."""
_NUMBER = re.compile(r"[0-9][0-9.,]*")


@dataclass
class VisitTally:
    """Totals of visits. seconds: how long the device or site was busy; bytes are the devices' payloads."""

    visits: int = 0
    lost: int = 0
    seconds: float = 0.0
    down: int = 0
    up: int = 0
    devices: set[str] = field(default_factory=set)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The start of the first visit and the end of the last one, by round."""

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
        """The seconds in which a visit of a round was running or pending."""
        return sum(last - first for first, last in self.spans.values())

    @property
    def shared(self) -> tuple[object, ...]:
        """The columns that the tables of sites and devices share."""
        return self.visits, self.lost, self.seconds, self.down, self.up


def tally(visits: Rows, by: str) -> dict[str, VisitTally]:
    """Return the totals for each `device` or `site`."""
    found: dict[str, VisitTally] = defaultdict(VisitTally)
    for row in visits:
        found[row[by]].add(row)
    return found


def write_tallies(
    results: ResultFolder, samples: Mapping[str, int], profiles: Mapping[str, str], sites: Sequence[str]
) -> tuple[dict[str, VisitTally], dict[str, VisitTally]]:
    """Write both tables and return sites and devices; devices without visits are included, with zeros."""
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


@dataclass
class Loss:
    """Visits that were lost for the same reason: the first text, their number, and their devices."""

    status: str
    reason: str
    visits: int = 0
    alike: bool = True
    """Whether all texts are equal, including the numbers."""
    devices: dict[str, None] = field(default_factory=dict)
    """The names of the devices, in the order of the losses."""

    @property
    def description(self) -> str:
        """The status and the reason."""
        if not self.reason:
            return self.status
        return f"{self.status}: {self.reason}" if self.alike else f"{self.status}, for instance: {self.reason}"


def losses(visits: Rows) -> list[Loss]:
    """Return why visits failed, the most frequent reason first; reasons that differ only in numbers are merged."""
    return _by_reason((row, row["status"], _without_name(row)) for row in visits if row["status"] != "done")


def flagged(visits: Rows) -> list[Loss]:
    """Return what the gate would have refused in its report mode, the most frequent reason first."""
    kept = (row for row in visits if is_flagged(row["status"], row["reason"]))
    status = WOULD_REFUSE.strip()
    return _by_reason((row, status, _without_name(row).removeprefix(WOULD_REFUSE)) for row in kept)


def _by_reason(visits: Iterable[tuple[Mapping[str, str], str, str]]) -> list[Loss]:
    """Count rows with a status and a reason, ignoring numbers."""
    found: dict[str, Loss] = {}
    for row, status, reason in visits:
        loss = found.setdefault(f"{status} {_NUMBER.sub('#', reason)}", Loss(status, reason))
        loss.visits += 1
        loss.alike &= reason == loss.reason
        loss.devices[row["device"]] = None
    return sorted(found.values(), key=lambda loss: -loss.visits)


def describe_losses(visits: Rows) -> str:
    """Describe how many visits were lost and how many the gate would have refused, and why; empty if none."""
    lost, flags = losses(visits), flagged(visits)
    parts = [f"{_counted(lost, visits)} visits were lost: {_reasons(lost)}."] if lost else []
    parts += [f"The gate would have refused {_counted(flags, visits)} visits: {_reasons(flags)}."] if flags else []
    return " ".join(parts)


def _counted(found: Sequence[Loss], visits: Rows) -> str:
    return f"{sum(loss.visits for loss in found):,} of {len(visits):,}"


def _reasons(found: Sequence[Loss]) -> str:
    reasons = [f"{loss.visits} {loss.description} ({names(list(loss.devices))})" for loss in found[:MAX_REASONS]]
    if rest := sum(loss.visits for loss in found[MAX_REASONS:]):
        reasons.append(f"{rest} for other reasons")
    return "; ".join(reasons)


def names(devices: Sequence[str]) -> str:
    """Return the names of a few devices, or the number of many."""
    return ", ".join(devices) if len(devices) <= MAX_NAMED else f"{len(devices):,} devices"


def _without_name(row: Mapping[str, str]) -> str:
    """Return why a visit was lost, without the name of the device."""
    reason = row["reason"].replace(f"{row['device']}'s", "its").replace(row["device"], "it")
    return reason.removeprefix("failed: ").removeprefix("data: ")  # the kind adds nothing to the reason
