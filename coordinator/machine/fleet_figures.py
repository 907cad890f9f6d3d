"""What a coordinator tells Prometheus of its fleet: how many devices are where and how they are, never which.

Five thousand devices are a few numbers for each site, counted when who is where has changed. Sites are told apart as
long as there are not too many: whoever can connect as an edge server names itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sojourn.metrics.catalogue import DEVICES, SITE_UP

if TYPE_CHECKING:
    from coordinator.machine.coordinator import Coordinator
    from coordinator.machine.tours import RoundTours
    from sojourn.metrics.reading import Reading
    from sojourn.protocol.wire import Member

    Here = dict[str, tuple[str, Member]]

SITES = 100
"""Sites that are told apart; further ones are counted together."""
OTHERS = "_others"
"""What those are called: no site can have this name."""
DAY = 86_400.0
"""Seconds after which a device that went counts as absent, and a site that went is not told of any more."""
COUNTED_AGAIN = 60.0
"""Seconds after which devices are counted again though nobody came or went: some have been gone for a day then."""
STATES = ("idle", "visiting", "gone", "absent")


class FleetFigures:
    """Devices by site and state, and which sites are up."""

    def __init__(self, coordinator: Coordinator, tours: RoundTours) -> None:
        self._coordinator = coordinator
        self._tours = tours
        self._labels: dict[str, str] = {}
        """The sites that have a label of their own, those that were seen first."""
        self._up_at: dict[str, float] = {}
        """When each site was last up, as far as that is known."""
        self._here: Here | None = None
        self._changes = -1
        self._count_at = 0.0
        self._counts: Counter[tuple[str, str]] = Counter()

    def read(self, into: Reading, now: float) -> None:
        """Put what is known now."""
        self._count(now)
        self._forget_labels(now)
        visiting = self._visiting()
        counts = Counter({(self._label(site), state): 0 for site in self._sites(now) for state in STATES})
        for (site, state), count in self._counts.items():
            counts[self._label(site), state] += count
        for site, count in visiting.items():
            counts[self._label(site), "idle"] -= count
            counts[self._label(site), "visiting"] += count
        for (site, state), count in counts.items():
            into.put(DEVICES, max(0, count), site, state)
        self._read_sites(into, now)

    def _read_sites(self, into: Reading, now: float) -> None:
        alive, up = self._coordinator.sites.alive, dict[str, bool]()
        for site in self._sites(now):
            label = self._label(site)
            up[label] = up.get(label, True) and site in alive  # of those together: whether all are up
        for label, each in up.items():
            into.put(SITE_UP, float(each), label)

    def _sites(self, now: float) -> list[str]:
        """The sites that are up, or were within a day."""
        self._up_at |= dict.fromkeys(sorted(self._coordinator.sites.alive), now)
        self._up_at = {site: at for site, at in self._up_at.items() if now - at < DAY}
        return list(self._up_at)

    def _forget_labels(self, now: float) -> None:
        """Labels are for the sites that are told of; of others, room."""
        told = {*self._sites(now), *(site for site, _ in self._counts)}
        self._labels = {site: label for site, label in self._labels.items() if site in told}

    def _label(self, site: str) -> str:
        if site not in self._labels and len(self._labels) < SITES:
            self._labels[site] = site
        return self._labels.get(site, OTHERS)

    def _visiting(self) -> Counter[str]:
        """How many tours are at a device now, by site."""
        found: Counter[str] = Counter()
        if not self._tours.progress or self._here is None:
            return found
        devices = {it.device for it in self._tours.progress.values() if it.device is not None}
        for device in devices:
            if at := self._here.get(device):
                found[at[0]] += 1
        return found

    def _count(self, now: float) -> None:
        """Count devices anew if some came or went, or might count as absent by now."""
        here, seen = self._coordinator.sites.here(), self._coordinator.state.seen
        changes = seen.changes_dropped + len(seen.changes)
        if here is self._here and changes == self._changes and now < self._count_at:
            return
        self._here, self._changes, self._count_at = here, changes, now + COUNTED_AGAIN
        self._counts = Counter((site, "idle") for site, _ in here.values())
        for device, it in seen.devices.items():
            if device in here:
                continue
            # One that was here when the coordinator ended, and is not heard of since, goes now.
            went = now if it.here else it.since
            self._counts[it.site, "gone" if now - went < DAY else "absent"] += 1
            self._up_at[it.site] = max(went, self._up_at.get(it.site, 0.0))
