"""Which sites there are and which devices each reaches, as their rosters say: the reachability map."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from sojourn.errors import InvalidMessage
from sojourn.node.machine import Do, Pull, Say, Send
from sojourn.protocol.abilities import able
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.messages import Birth, RosterSeen
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Member, Ref

if TYPE_CHECKING:
    from coordinator.records import TourPlan
    from sojourn.node.machine import Effect, Present
    from sojourn.protocol.messages import Roster
    from sojourn.store.blobs import BlobStore


DEVICES = 10_000
"""At most this many devices are taken from one site."""
ROSTER_BYTES = 16 << 20
"""Of a roster: the longest names and offers of as many devices are less, where offers are honest."""
ROSTER_PATIENCE = 10.0
"""Seconds that a job waits for a new site to say which devices it has."""
CONSENT = ("class-counts",)
"""The estimators that ask for what an owner must agree to share."""


class ReadRoster(msgspec.Struct, frozen=True):
    """Read the roster in a blob: which one it is, by the boot of its site and its number."""

    site: str
    epoch: Epoch
    revision: int
    members: Ref


class RosterRead(msgspec.Struct, frozen=True, dict=True):
    """Who is at a site."""

    site: str
    epoch: Epoch
    revision: int
    members: tuple[Member, ...]

    @cached_property
    def epochs(self) -> dict[str, Epoch]:
        """The newest start of each device that the site has seen."""
        return {member.device: member.epoch for member in self.members}


def read_roster(work: ReadRoster, blobs: BlobStore) -> RosterRead:
    """Read the roster in a blob."""
    members = unpack_blob(blobs.read(work.members.digest), tuple[Member, ...], ROSTER_BYTES)
    if len(members) > DEVICES:
        raise InvalidMessage(f"the roster of {work.site} has {len(members)} devices, more than {DEVICES}")
    return RosterRead(work.site, work.epoch, work.revision, members)


class Sites:
    """The sites that are alive and their devices. Volatile: every edge server is asked again after a restart."""

    def __init__(self) -> None:
        self._epochs: dict[str, Epoch] = {}
        self._born: dict[str, float] = {}
        """When each of them was first heard of."""
        self._rosters: dict[str, RosterRead] = {}
        self._names: dict[str, frozenset[str]] = {}
        """The devices of each roster."""
        self._coming: dict[str, ReadRoster] = {}
        self._homes: dict[str, str] = {}
        """The site that each device was first seen at, and is still."""

    def present(self, event: Present, now: float) -> bool:
        """Take a birth or a death; returns whether an edge server was born (again)."""
        known = self._epochs.get(event.node.name)
        if isinstance(event.state, Birth):
            self._epochs[event.node.name] = event.epoch
            if known != event.epoch:
                self._born[event.node.name] = now
            return known != event.epoch
        if known == event.epoch:  # else the death is old news
            del self._epochs[event.node.name], self._born[event.node.name]
        return False

    def roster(self, sender: Address, epoch: Epoch, message: Roster) -> list[Effect]:
        """A site announces its roster, until it hears that it was seen: fetch it, unless it is old news."""
        site, revision = sender.name, message.revision
        if message.members.size > ROSTER_BYTES:
            return [Say(f"the roster of {site} has {message.members.size} bytes: it is not fetched", "warning")]
        known, coming = self._rosters.get(site), self._coming.get(site)
        if known and known.epoch == epoch and known.revision >= revision:
            return [Send(sender, RosterSeen(revision))]
        if not (coming and coming.epoch == epoch and coming.revision > revision):
            self._coming[site] = ReadRoster(site, epoch, revision, message.members)
        return [Pull(self._coming[site].members, sender)]

    def pulled(self, digest: bytes) -> list[Effect]:
        """A roster is here: have it read. Sites that reach the same devices have the same roster."""
        found = [work for work in self._coming.values() if work.members.digest == digest]
        return [Do(f"roster {work.site} {work.epoch.count}.{work.revision}", work) for work in found]

    def pull_failed(self, digest: bytes) -> None:
        """A roster cannot be had; its site announces it again."""
        self._coming = {site: work for site, work in self._coming.items() if work.members.digest != digest}

    def take(self, read: RosterRead) -> list[Effect]:
        """A roster was read: it counts, if no newer one is on its way."""
        coming = self._coming.get(read.site)
        if coming is None or (coming.epoch, coming.revision) != (read.epoch, read.revision):
            return []
        del self._coming[read.site]
        self._rosters[read.site] = read
        self._names[read.site] = frozenset(member.device for member in read.members)
        homes = {device: site for device, site in self._homes.items() if self._epoch_at(site, device) is not None}
        for member in read.members:
            if homes.get(member.device) not in self._epochs:
                homes[member.device] = read.site
        self._homes = homes
        return [Send(Address("edge", read.site), RosterSeen(read.revision))]

    def reach(
        self, objective: str | None = None, abilities: frozenset[str] = frozenset()
    ) -> dict[str, tuple[str, ...]]:
        """The devices that each living site reaches; with an objective, those that offer it and these abilities."""
        alive = [site for site in sorted(self._rosters) if site in self._epochs]
        return {site: self._devices(site, objective, abilities) for site in alive}

    def here(self) -> dict[str, tuple[str, Member]]:
        """Every device that a living site reaches, by name: at its home, if that is one of them."""
        found: dict[str, tuple[str, Member]] = {}
        for site in sorted(self._rosters):
            if site not in self._epochs:
                continue
            for member in self._rosters[site].members:
                if self._is_at(site, member) and (member.device not in found or self._homes[member.device] == site):
                    found[member.device] = site, member
        return found

    @property
    def heard(self) -> frozenset[str]:
        """The sites that have told their roster since the start."""
        return frozenset(self._rosters)

    def has(self, site: str, device: str) -> bool:
        """Whether a device is on a site's roster."""
        return device in self._names.get(site, ())

    def unread(self, now: float) -> list[str]:
        """The living sites that were born a moment ago, and whose roster has not been read since.

        One that is there and does not say whom it has is not waited for: it would hold every job.
        """
        rosters = self._rosters
        young = [site for site in self._epochs if now < self._born[site] + ROSTER_PATIENCE]
        return [site for site in young if site not in rosters or rosters[site].epoch != self._epochs[site]]

    def unwilling(self, asks: str) -> tuple[str, ...]:
        """The devices whose owners do not share what an estimator asks for."""
        if asks not in CONSENT:
            return ()
        members = [member for site in self._epochs if (it := self._rosters.get(site)) for member in it.members]
        return tuple(sorted({m.device for m in members if m.offer is None or asks not in m.offer.shares}))

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
        return msgspec.structs.replace(tour, site=best, hops=kept[best], spares=spares, attempt=tour.attempt + 1)

    def live(self) -> set[bytes]:
        """The rosters that are being fetched."""
        return {work.members.digest for work in self._coming.values()}

    def _devices(self, site: str, objective: str | None, abilities: frozenset[str]) -> tuple[str, ...]:
        members = [member for member in self._rosters[site].members if self._is_at(site, member)]
        return tuple(m.device for m in members if objective is None or able(m.offer, objective, abilities))

    def _is_at(self, site: str, member: Member) -> bool:
        """Whether a device counts for a site that names it: its home, or one that sees the same start of it there.

        Sites that share a broker see the same devices. One that only claims another's device does not know its nonce.
        """
        home = self._homes.get(member.device, site)
        if home == site or home not in self._epochs:
            return True
        seen = self._epoch_at(home, member.device)
        return seen is None or seen == member.epoch

    def _epoch_at(self, site: str, device: str) -> Epoch | None:
        """The start of a device that a site saw last."""
        roster = self._rosters.get(site)
        return roster.epochs.get(device) if roster else None
