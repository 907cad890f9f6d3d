"""A device's name that leads to its page."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_web.drawing.markup import Markup, name_of, tag
from fleet_web.words import address


@dataclass(frozen=True)
class DeviceLink:
    """Makes links to the devices of a source; `of` is its name in addresses, empty for the coordinator."""

    of: str

    def __call__(self, device: str) -> Markup:
        """The name as a link."""
        return tag("a", name_of(device), href=address("device", device, **({"of": self.of} if self.of else {})))
