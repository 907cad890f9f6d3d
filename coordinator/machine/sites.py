"""Which sites there are and which devices each reaches, as their rosters say: the reachability map."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from coordinator.rounds.failure_lines import names
from sojourn.about import About
from sojourn.errors import InvalidMessage
from sojourn.logs import subject
from sojourn.node.machine import Do, Pull, Say, Send
from sojourn.protocol.abilities import MANDATE, able, leads
from sojourn.protocol.data_summary import CONSENTS
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.messages import Birth, RosterSeen
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Member, Ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.records import TourPlan
    from coordinator.rounds.node_keys import NodeKeys
    from sojourn.node.machine import Effect, Present
    from sojourn.protocol.messages import Roster
    from sojourn.store.blobs import BlobStore


log = logging.getLogger(__name__)
Found = TypeVar("Found")
DEVICES = 10_000
"""At most this many devices are taken from one site."""
ROSTER_BYTES = 16 << 20
"""Of a roster: the longest names and offers of as many devices are less, where offers are honest."""
APART = 120.0
"""Seconds for which two sites name different starts of one device until two agents seem to use its name. The broker
that a device left finds out later: with MQTT's usual keepalive after 90 s."""
NAMED = 400
"""Characters for the names of devices in one line of the log."""
ROSTER_PATIENCE = 10.0
"""Seconds that a job waits, before its first round, for sites to say which devices they have."""
SETTLED = 0.5
"""Seconds without another roster after which the sites have said of the devices that just came what they know."""


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


def read_roster(work: ReadRoster, blobs: BlobStore, keys: NodeKeys | None = None) -> RosterRead:
    """Read the roster in a blob; where every result must be signed, without devices that have no key."""
    members = unpack_blob(blobs.read(work.members.digest), tuple[Member, ...], ROSTER_BYTES)
    if len(members) > DEVICES:
        raise InvalidMessage(f"the roster of {work.site} has {len(members)} devices, more than {DEVICES}")
    if keys and (strange := keys.newly_without(work.site, [member.device for member in members])):
        log.warning("%s", _unverified(work.site, strange, keys), extra=subject(About(site=work.site)))
    if keys and keys.policy == "require":
        known = keys.now()
        members = tuple(member for member in members if member.device in known)
    return RosterRead(work.site, work.epoch, work.revision, _sharing_offers(members))


def _unverified(site: str, devices: list[str], keys: NodeKeys) -> str:
    """Which devices have no key that is known here, what that means, and what to do."""
    required = keys.policy == "require"
    what = "these devices do not take part" if required else "results of these devices are not verified"
    invented = "" if required else ", so the site could invent them"
    return (
        f"site {site}: {what}{invented}, because node_keys_file has no key of them: {names(devices, NAMED)}. If the "
        "site has its own broker, run `sojourn fleet keys` with its fleet folder and add the lines to node_keys_file; "
        "a device with a bundle has no key until it joins with `sojourn agent join`"
    )


def _sharing_offers(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The same members; those that are alike share one offer, of which there would be thousands."""
    found, offer = [], None
    for member in members:
        if member.offer == offer:
            found.append(Member(member.device, member.epoch, offer))
        else:
            found.append(member)
            offer = member.offer
    return tuple(found)


class Sites:
    """The sites that are alive and their devices. Volatile: every edge server is asked again after a restart."""

    def __init__(self) -> None:
        self._epochs: dict[str, Epoch] = {}
        self._born: dict[str, float] = {}
        """When each of them was first heard of."""
        self._rosters: dict[str, RosterRead] = {}
        self._names: dict[str, frozenset[str]] = {}
        """The devices of each roster."""
        self._abilities: dict[str, tuple[str, ...]] = {}
        """Of which models each of them can lead tours, as it said last."""
        self._coming: dict[str, ReadRoster] = {}
        self._homes: dict[str, str] = {}
        """The site that each device was first seen at, and is still."""
        self._found: dict[object, Any] = {}
        """What was found out about who is where, until that changes: rounds come more often than rosters."""
        self._at: dict[str, dict[str, tuple[str, Member]]] = {}
        self._reached: dict[str, dict[object, tuple[str, ...]]] = {}
        """The same for single sites, who is there and who can do what: of hundreds, one tells another roster."""
        self._changed_at = float("-inf")
        """When a roster last named others than before."""
        self._shared: set[str] = set()
        """The devices that more than one site has named: what one of these sites says counts for the others, too."""
        self._apart: dict[str, float] = {}
        """The devices of which sites name different starts, and since when."""

    def present(self, event: Present, now: float) -> bool:
        """Take a birth or a death; returns whether an edge server was born (again)."""
        known = self._epochs.get(event.node.name)
        self._forget()
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
            text = f"the roster of {site} has {message.members.size} bytes: it is not fetched"
            return [Say(text, "warning", About(site=site))]
        if (able_to := message.abilities or ()) != self._abilities.get(site, ()):
            self._abilities[site] = able_to
            self._found.clear()
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

    def take(self, read: RosterRead, now: float) -> list[Effect]:
        """A roster was read: it counts, if no newer one is on its way."""
        coming = self._coming.get(read.site)
        if coming is None or (coming.epoch, coming.revision) != (read.epoch, read.revision):
            return []
        del self._coming[read.site]
        if (known := self._rosters.get(read.site)) is None or known.members != read.members:
            self._changed_at = now
        self._rosters[read.site] = read
        before, names = self._names.get(read.site, frozenset()), frozenset(member.device for member in read.members)
        self._names[read.site] = names
        self._shared.update(device for device in names if self._homes.get(device, read.site) != read.site)
        self._forget(read.site if self._shared.isdisjoint(before | names) else None)
        for device in before - names:
            if self._homes.get(device) == read.site:
                del self._homes[device]
        for device in names:
            if self._homes.get(device) not in self._epochs:
                self._homes[device] = read.site
        for device in (before | names) & self._shared:
            if len(self._starts_of(device)) > 1:
                self._apart.setdefault(device, now)
            else:
                self._apart.pop(device, None)
        return [Send(Address("edge", read.site), RosterSeen(read.revision))]

    def _forget(self, site: str | None = None) -> None:
        """Who is where has changed: at one site, or anywhere."""
        self._found.clear()
        for known in (self._at, self._reached):
            known.pop(site, None) if site else known.clear()

    def reach(
        self, objective: str | None = None, abilities: frozenset[str] = frozenset()
    ) -> dict[str, tuple[str, ...]]:
        """The devices that each living site reaches; with an objective, those that offer it and these abilities."""
        alive = [site for site in sorted(self._rosters) if site in self._epochs]
        return self._once(
            ("reach", objective, abilities),
            lambda: {site: self._reached_by(site, objective, abilities) for site in alive},
        )

    def _reached_by(self, site: str, objective: str | None, abilities: frozenset[str]) -> tuple[str, ...]:
        reached = self._reached.setdefault(site, {})
        if (objective, abilities) not in reached:
            reached[objective, abilities] = self._devices(site, objective, abilities)
        return reached[objective, abilities]

    def unable(self, objective: str, abilities: frozenset[str]) -> tuple[str, ...]:
        """The devices that are here and do not offer an objective with these abilities."""
        reach = self.reach(objective, abilities)
        return self._once(
            ("unable", objective, abilities), lambda: tuple(sorted(self.here().keys() - set().union(*reach.values())))
        )

    def _once(self, what: object, find: Callable[[], Found]) -> Found:
        """What is found out, once until the sites or their devices change."""
        if what not in self._found:
            self._found[what] = find()
        found: Found = self._found[what]
        return found

    def here(self) -> dict[str, tuple[str, Member]]:
        """Every device that a living site reaches, by name: at its home, if that is one of them."""
        return self._once("here", self._here)

    def _here(self) -> dict[str, tuple[str, Member]]:
        found: dict[str, tuple[str, Member]] = {}
        for site in sorted(self._rosters):
            if site not in self._epochs:
                continue
            there = self._members_at(site)
            if found.keys().isdisjoint(there):
                found.update(there)
            else:
                found.update({d: it for d, it in there.items() if d not in found or self._homes[d] == site})
        return found

    def _members_at(self, site: str) -> dict[str, tuple[str, Member]]:
        if site not in self._at:
            members = [member for member in self._rosters[site].members if self._is_at(site, member)]
            self._at[site] = {member.device: (site, member) for member in members}
        return self._at[site]

    @property
    def alive(self) -> frozenset[str]:
        """The sites that are connected."""
        return frozenset(self._epochs)

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

    def is_settled(self, now: float) -> bool:
        """Whether the sites have told all they know of who is here, as far as one can tell.

        A device that several sites reach is told of by one after the other.
        """
        return not self._shared or self._changed_at + SETTLED <= now

    def unwilling(self, *asks: str | None) -> tuple[str, ...]:
        """The devices whose owners do not share what an estimator or an objective asks for."""
        asked = tuple(each for each in asks if each in CONSENTS)
        if len(asked) > 1:
            return tuple(sorted({device for each in asked for device in self.unwilling(each)}))
        return self._once(("unwilling", asked[0]), lambda: self._unwilling(asked[0])) if asked else ()

    def demanding(self) -> tuple[str, ...]:
        """The devices that do only what an operator signed."""
        offers = ((name, member.offer) for name, (_, member) in self.here().items())
        return self._once(
            "demanding", lambda: tuple(sorted(name for name, it in offers if it and MANDATE in (it.abilities or ())))
        )

    def _unwilling(self, asks: str) -> tuple[str, ...]:
        members = [member for site in self._epochs if (it := self._rosters.get(site)) for member in it.members]
        return tuple(sorted({m.device for m in members if m.offer is None or asks not in m.offer.shares}))

    def count(self) -> int:
        """How many devices are there."""
        return self._once("count", lambda: len({device for devices in self.reach().values() for device in devices}))

    def move(
        self, tour: TourPlan, objective: str | None = None, abilities: frozenset[str] = frozenset()
    ) -> TourPlan | None:
        """The tour at another living site: the one that reaches most of its devices, if any reaches some.

        With an objective, only a site and devices that offer it and these abilities.
        """
        reach = {site: set(there) for site, there in self.reach(objective, abilities).items() if site != tour.site}
        kept = {site: tuple(d for d in tour.hops if d in there) for site, there in reach.items()}
        best = max(sorted(kept), key=lambda site: len(kept[site]), default=None)
        if best is None or not kept[best]:
            return None
        spares = tuple(device for device in tour.spares if device in reach[best])
        return msgspec.structs.replace(tour, site=best, hops=kept[best], spares=spares, attempt=tour.attempt + 1)

    def clashes(self, now: float) -> dict[str, str]:
        """The devices whose names two agents use: where they are, for people."""
        found = self._once("clashes", self._clashing)
        for device, since in self._apart.items():
            if now >= since + APART and len(starts := self._starts_of(device)) > 1:
                found = {**found, device: f"sites {' and '.join(sorted(starts.values()))}"}
        return found

    def clash_at(self, now: float) -> float | None:
        """When the next device will have been at two sites for too long."""
        return min((since + APART for since in self._apart.values() if since + APART > now), default=None)

    def _clashing(self) -> dict[str, str]:
        return {device: f"site {site}" for device, (site, member) in self.here().items() if member.clash}

    def _starts_of(self, device: str) -> dict[Epoch, str]:
        """The starts of a device that living sites name, each with one of these sites."""
        found = ((self._epoch_at(site, device), site) for site in sorted(self._epochs))
        return {epoch: site for epoch, site in found if epoch is not None}

    def live(self) -> set[bytes]:
        """The rosters that are being fetched."""
        return {work.members.digest for work in self._coming.values()}

    def _devices(self, site: str, objective: str | None, abilities: frozenset[str]) -> tuple[str, ...]:
        if objective is not None and not leads(self._abilities.get(site, ()), abilities):
            return ()
        there = self._members_at(site)
        return tuple(d for d, (_, it) in there.items() if objective is None or able(it.offer, objective, abilities))

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
