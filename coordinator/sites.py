"""Which sites there are and which devices each reaches, as their rosters say: the reachability map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sojourn.envelope import unpack_blob
from sojourn.machine import Do, Pull
from sojourn.messages import Birth, Member, Ref, RosterAsk

if TYPE_CHECKING:
    from coordinator.coordinator_records import TourPlan
    from sojourn.blobs import BlobStore
    from sojourn.machine import Effect, Present
    from sojourn.messages import Epoch, Roster
    from sojourn.outbox import Outbox
    from sojourn.topics import Address


class ReadRoster(msgspec.Struct, frozen=True):
    """Read the roster in a blob."""

    site: str
    version: tuple[int, int]
    members: Ref


class RosterRead(msgspec.Struct, frozen=True):
    """Who is at a site."""

    site: str
    version: tuple[int, int]
    members: tuple[Member, ...]


def read_roster(work: ReadRoster, blobs: BlobStore) -> RosterRead:
    """Read the roster in a blob."""
    members = unpack_blob(blobs.read(work.members.digest), tuple[Member, ...])
    return RosterRead(work.site, work.version, members)


class Sites:
    """The sites that are alive and their devices. Volatile: every edge server is asked again after a restart."""

    def __init__(self) -> None:
        self._epochs: dict[str, Epoch] = {}
        self._rosters: dict[str, RosterRead] = {}
        self._coming: dict[bytes, ReadRoster] = {}

    def present(self, event: Present, outbox: Outbox, now: float) -> list[Effect]:
        """An edge server was born, or its will says that it is gone."""
        name = event.node.name
        if isinstance(event.state, Birth):
            self._epochs[name] = event.epoch
            return [*outbox.ask(("roster", name), event.node, RosterAsk(), now)]
        if self._epochs.get(name) == event.epoch:
            del self._epochs[name]
            outbox.settle(("roster", name))
        return []

    def roster(self, sender: Address, boot: int, message: Roster) -> list[Effect]:
        """A site tells its roster: fetch it, unless it is old news."""
        known = self._rosters.get(sender.name)
        version = (boot, message.revision)
        if known and known.version >= version and sender.name in self._epochs:
            return []
        self._coming[message.members.digest] = ReadRoster(sender.name, version, message.members)
        return [Pull(message.members, sender)]

    def pulled(self, digest: bytes) -> list[Effect]:
        """A roster is here: have it read."""
        work = self._coming.get(digest)
        return [Do(f"roster {work.site}", work)] if work else []

    def pull_failed(self, digest: bytes) -> None:
        """A roster cannot be had; its site tells again."""
        self._coming.pop(digest, None)

    def take(self, read: RosterRead) -> bool:
        """A roster was read; returns whether the devices there have changed."""
        self._coming = {digest: work for digest, work in self._coming.items() if work.version > read.version}
        before = self._devices(read.site)
        self._rosters[read.site] = read
        return before != self._devices(read.site)

    def reach(self) -> dict[str, tuple[str, ...]]:
        """The devices that each living site reaches."""
        return {site: self._devices(site) for site in sorted(self._rosters) if site in self._epochs}

    def count(self) -> int:
        """How many devices are there."""
        return len({device for devices in self.reach().values() for device in devices})

    def move(self, tour: TourPlan) -> TourPlan | None:
        """The tour at another living site: the one that reaches most of its devices, if any reaches some."""
        reach = {site: set(devices) for site, devices in self.reach().items() if site != tour.site}
        kept = {site: tuple(d for d in tour.hops if d in there) for site, there in reach.items()}
        best = max(sorted(kept), key=lambda site: len(kept[site]), default=None)
        if best is None or not kept[best]:
            return None
        spares = tuple(device for device in tour.spares if device in reach[best])
        return msgspec.structs.replace(
            tour, site=best, hops=kept[best], spares=spares, attempt=tour.attempt + 1
        )

    def live(self) -> set[bytes]:
        """The rosters that are being fetched."""
        return set(self._coming)

    def _devices(self, site: str) -> tuple[str, ...]:
        roster = self._rosters.get(site)
        return tuple(member.device for member in roster.members) if roster else ()
