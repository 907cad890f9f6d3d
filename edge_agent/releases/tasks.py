"""Work for the installer as the machine keeps it: together with the order that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edge_agent.releases.work import Install, Withdraw

if TYPE_CHECKING:
    from edge_agent.records import ServedRelease


class ReleaseTask(msgspec.Struct, frozen=True):
    """Work for the installer, and the order that it is for."""

    work: Install | Withdraw
    serial: int
    restores: bool = False
    """Whether it only makes sure of what is served anyway: then there is nothing to tell of its end."""

    @property
    def key(self) -> str:
        """The name of the work, which no other has: a late report of older work is not taken for one of this."""
        version = self.work.version if isinstance(self.work, Install) else 0
        return f"release {self.work.line} {self.serial}.{version}"

    @property
    def tries(self) -> bool:
        """Whether it takes the processor: training waits for it, and it for training."""
        return isinstance(self.work, Install) and not self.work.known


def work_for(line: str, wanted: ServedRelease | None) -> Install | Withdraw:
    """Make what was served before, or nothing, the release that is served."""
    return Install(line, wanted.version, wanted.goods, known=True) if wanted else Withdraw(line)
