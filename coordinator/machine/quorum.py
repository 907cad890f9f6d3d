"""Decide whether complaints about a release suffice to roll it back, and otherwise which other devices to ask.

A single broken or lying device must not stop every release. A fleet rolls back when as many devices complain as the
rules require (the quorum) and, if several sites could report, not all through one of them. Until then other devices are
asked. Devices that remain alone with their complaint are outvoted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Verdict:
    """Whether the fleet rolls back; if not, which more devices to ask: none if enough others were asked already."""

    back: bool
    ask: tuple[str, ...] = ()


@dataclass(frozen=True)
class Complaints:
    """The complaints about a release. Fleets are large: devices are examined only if necessary.

    against: the devices that complain, or did, and through which site. ordered: all devices that got the order.
    silent: those of them that did not answer in time; they have no vote. find_others: the online devices that did
    not get the order, in the order in which they would be asked. site_of: the site through which a device would report.
    """

    against: Mapping[str, str]
    ordered: Collection[str]
    silent: Collection[str]
    find_others: Callable[[], Sequence[str]]
    site_of: Callable[[str], str | None]

    def verdict(self, quorum: int) -> Verdict:
        """Return the verdict; if no other device is left to ask, a complaint counts alone."""
        count = len(self.ordered) - len(self.against) - len(self.silent)
        short = quorum - len(self.against) - count
        elsewhere = quorum > 1 and len(self._sites) == 1 and not any(map(self._through_other_site, self._supporters()))
        if elsewhere and (asked := [device for device in self._others if self._through_other_site(device)]):
            rest = [device for device in self._others if device not in asked]
            return Verdict(back=False, ask=(*asked, *rest)[: max(short, 1)])
        if short > 0 and self._others:
            return Verdict(back=False, ask=tuple(self._others[:short]))
        enough = len(self.against) >= quorum or count <= 0
        one_site = quorum > 1 and len(self._sites) == 1 and not elsewhere
        return Verdict(back=enough and not one_site)

    @cached_property
    def _sites(self) -> frozenset[str]:
        return frozenset(self.against.values())

    @cached_property
    def _others(self) -> Sequence[str]:
        return self.find_others()

    def _supporters(self) -> Iterator[str]:
        """Yield the devices that got the order and do not complain: they are healthy, or may still answer."""
        return (device for device in self.ordered if device not in self.against and device not in self.silent)

    def _through_other_site(self, device: str) -> bool:
        """Return whether a device would report through another site; a site can forge its devices' reports."""
        return self.site_of(device) not in self._sites
