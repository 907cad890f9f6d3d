"""Whether the complaints about a release are enough to turn a fleet back, and who else is asked where they are not.

One device's word needs company: a broken or lying one must not stop every release. A fleet turns back when as many
devices complain as the rules ask for (the quorum) and, where several sites could speak, not all through one of them.
Until then others are asked. Those that stay alone with their complaint are outvoted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence


@dataclass(frozen=True)
class Verdict:
    """Whether the fleet turns back; if not, whom to ask besides: nobody where enough others were asked already."""

    back: bool
    ask: tuple[str, ...] = ()


@dataclass(frozen=True)
class Voices:
    """Who says what of a release. Fleets are large: nobody is looked at who need not be.

    against: the devices that complain, or did, and through which site. told: all that were told, those included.
    silent: those that were told and waited for in vain; they have no voice. find_others: the devices that are here and
    were not told, in the order in which they would be asked. site_of: through which site a device would be heard.
    """

    against: Mapping[str, str]
    told: Collection[str]
    silent: Collection[str]
    find_others: Callable[[], Sequence[str]]
    site_of: Callable[[str], str | None]

    def verdict(self, quorum: int) -> Verdict:
        """What follows from these voices: where nobody is left to keep a complaint company, it counts alone."""
        count = len(self.told) - len(self.against) - len(self.silent)
        short = quorum - len(self.against) - count
        elsewhere = quorum > 1 and len(self._sites) == 1 and not any(map(self._elsewhere, self._company()))
        if elsewhere and (asked := [device for device in self._others if self._elsewhere(device)]):
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

    def _company(self) -> Iterator[str]:
        """Those that were told and do not complain: they are well, or may still answer."""
        return (device for device in self.told if device not in self.against and device not in self.silent)

    def _elsewhere(self, device: str) -> bool:
        """Whether the device would be heard through another site: who runs one can speak for all its devices."""
        return self.site_of(device) not in self._sites
