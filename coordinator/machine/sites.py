"""The connected sites and the devices that each reaches, according to their rosters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from coordinator.rounds.round_messages import names
from sojourn.errors import InvalidMessage
from sojourn.logs import About, subject
from sojourn.node.machine import Effect, Log, Present, Pull, Send, StartWork
from sojourn.protocol.data_summary import CONSENTS
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.messages import Birth, Roster, RosterSeen
from sojourn.protocol.task import MANDATE, able, leads
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Member, Ref
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    from coordinator.records import TourPlan
    from coordinator.rounds.device_signatures import NodeKeys


log = logging.getLogger(__name__)
Found = TypeVar("Found")
MAX_DEVICES = 10_000
"""Maximum devices accepted from one site."""
MAX_ROSTER_SIZE = 16 << 20
"""Maximum bytes of a roster, enough for that many devices with the longest names and normal offers."""
CLASH_TIME = 120.0
"""Seconds during which two sites must name different starts of a device before two agents seem to use its name. The
broker that a device left notices late: after 90 s with MQTT's usual keepalive."""
MAX_NAMES_LENGTH = 400
"""Maximum characters for device names in one log line."""
ROSTER_TIMEOUT = 10.0
"""Seconds that a job waits, before its first round, for sites to send their rosters."""
SETTLE_TIME = 0.5
"""Seconds without another roster after which the sites have reported the devices that just connected."""


class ReadRoster(msgspec.Struct, frozen=True):
    """Read the roster in a blob, identified by its site's boot and its number."""

    site: str
    epoch: Epoch
    revision: int
    members: Ref


class RosterRead(msgspec.Struct, frozen=True, dict=True):
    """The devices at a site."""

    site: str
    epoch: Epoch
    revision: int
    members: tuple[Member, ...]

    @cached_property
    def epochs(self) -> dict[str, Epoch]:
        """The newest start of each device that the site has seen."""
        return {member.device: member.epoch for member in self.members}


def read_roster(work: ReadRoster, blobs: BlobStore, keys: NodeKeys | None = None) -> RosterRead:
    """Read the roster in a blob; if every result must be signed, omit devices without a key."""
    members = unpack_blob(blobs.read(work.members.digest), tuple[Member, ...], MAX_ROSTER_SIZE)
    if len(members) > MAX_DEVICES:
        raise InvalidMessage(f"the roster of {work.site} has {len(members)} devices, more than {MAX_DEVICES}")
    if keys and (strange := keys.newly_without(work.site, [member.device for member in members])):
        log.warning("%s", _unverified(work.site, strange, keys), extra=subject(About(site=work.site)))
    if keys and keys.policy == "require":
        known = keys.now()
        members = tuple(member for member in members if member.device in known)
    return RosterRead(work.site, work.epoch, work.revision, _sharing_offers(members))


def _unverified(site: str, devices: list[str], keys: NodeKeys) -> str:
    """Return a warning that names the devices without a known key, the consequence, and the fix."""
    required = keys.policy == "require"
    effect = "these devices do not take part" if required else "results of these devices are not verified"
    forged = "" if required else ", so the site could forge them"
    return (
        f"site {site}: {effect}{forged}, because node_keys_file has no key for them: "
        f"{names(devices, MAX_NAMES_LENGTH)}. If the site has its own broker, run `sojourn fleet keys` with its fleet "
        "folder and add the lines to node_keys_file; a device with a bundle has no key until it joins with "
        "`sojourn agent join`"
    )


def _sharing_offers(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Return the same members, sharing equal offers to save memory."""
    found, offer = [], None
    for member in members:
        if member.offer == offer:
            found.append(Member(member.device, member.epoch, offer))
        else:
            found.append(member)
            offer = member.offer
    return tuple(found)


class Sites:
    """The connected sites and their devices. Volatile: edge servers send everything again after a restart."""

    def __init__(self) -> None:
        self._epochs: dict[str, Epoch] = {}
        self._born: dict[str, float] = {}
        """When each of them was first seen."""
        self._rosters: dict[str, RosterRead] = {}
        self._names: dict[str, frozenset[str]] = {}
        """The devices of each roster."""
        self._abilities: dict[str, tuple[str, ...]] = {}
        """The models with which each site can lead tours, as it last reported."""
        self._fetching: dict[str, ReadRoster] = {}
        self._homes: dict[str, str] = {}
        """The site at which each device was first seen, if it is still there."""
        self._cache: dict[object, Any] = {}
        """Cached results about online devices, until these change: rounds are more frequent than rosters."""
        self._at: dict[str, dict[str, tuple[str, Member]]] = {}
        self._reached: dict[str, dict[object, tuple[str, ...]]] = {}
        """The same per site, its devices and their abilities: usually only one of hundreds sends a new roster."""
        self._changed_at = float("-inf")
        """When a roster last changed its set of devices."""
        self._shared: set[str] = set()
        """The devices that more than one site has named: a change at one of these sites affects the others."""
        self._clash_since: dict[str, float] = {}
        """The devices of which sites name different starts, and since when."""

    def present(self, event: Present, now: float) -> bool:
        """Handle a birth or death; returns whether an edge server was born (again)."""
        known = self._epochs.get(event.node.name)
        self._forget()
        if isinstance(event.state, Birth):
            self._epochs[event.node.name] = event.epoch
            if known != event.epoch:
                self._born[event.node.name] = now
            return known != event.epoch
        if known == event.epoch:  # otherwise the death is outdated
            del self._epochs[event.node.name], self._born[event.node.name]
        return False

    def roster(self, sender: Address, epoch: Epoch, message: Roster) -> list[Effect]:
        """Fetch a site's announced roster, unless it is outdated; the site repeats it until it is acknowledged."""
        site, revision = sender.name, message.revision
        if message.members.size > MAX_ROSTER_SIZE:
            text = f"the roster of {site} has {message.members.size} bytes, which is too large: it is not fetched"
            return [Log(text, "warning", About(site=site))]
        if (able_to := message.abilities) != self._abilities.get(site, ()):
            self._abilities[site] = able_to
            self._cache.clear()
        known, coming = self._rosters.get(site), self._fetching.get(site)
        if known and known.epoch == epoch and known.revision >= revision:
            return [Send(sender, RosterSeen(revision))]
        if not (coming and coming.epoch == epoch and coming.revision > revision):
            self._fetching[site] = ReadRoster(site, epoch, revision, message.members)
        return [Pull(self._fetching[site].members, sender)]

    def pulled(self, digest: bytes) -> list[Effect]:
        """Read a fetched roster. Sites that reach the same devices have the same roster."""
        found = [work for work in self._fetching.values() if work.members.digest == digest]
        return [StartWork(f"roster {work.site} {work.epoch.count}.{work.revision}", work) for work in found]

    def pull_failed(self, digest: bytes) -> None:
        """A roster could not be fetched; its site announces it again."""
        self._fetching = {site: work for site, work in self._fetching.items() if work.members.digest != digest}

    def take(self, read: RosterRead, now: float) -> list[Effect]:
        """Apply a roster, unless a newer one is being fetched."""
        coming = self._fetching.get(read.site)
        if coming is None or (coming.epoch, coming.revision) != (read.epoch, read.revision):
            return []
        del self._fetching[read.site]
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
                self._clash_since.setdefault(device, now)
            else:
                self._clash_since.pop(device, None)
        return [Send(Address("edge", read.site), RosterSeen(read.revision))]

    def _forget(self, site: str | None = None) -> None:
        """Drop cached results after a change at one site, or anywhere."""
        self._cache.clear()
        for known in (self._at, self._reached):
            known.pop(site, None) if site else known.clear()

    def reach(
        self, objective: str | None = None, abilities: frozenset[str] = frozenset()
    ) -> dict[str, tuple[str, ...]]:
        """Return the devices that each connected site reaches, limited to those with this objective and abilities."""
        alive = [site for site in sorted(self._rosters) if site in self._epochs]
        return self._cached(
            ("reach", objective, abilities),
            lambda: {site: self._reached_by(site, objective, abilities) for site in alive},
        )

    def _reached_by(self, site: str, objective: str | None, abilities: frozenset[str]) -> tuple[str, ...]:
        reached = self._reached.setdefault(site, {})
        if (objective, abilities) not in reached:
            reached[objective, abilities] = self._devices(site, objective, abilities)
        return reached[objective, abilities]

    def unable(self, objective: str, abilities: frozenset[str]) -> tuple[str, ...]:
        """Return online devices that do not offer an objective with these abilities."""
        reach = self.reach(objective, abilities)
        return self._cached(
            ("unable", objective, abilities), lambda: tuple(sorted(self.here().keys() - set().union(*reach.values())))
        )

    def _cached(self, key: object, find: Callable[[], Found]) -> Found:
        """Return a cached result, computed once until the sites or their devices change."""
        if key not in self._cache:
            self._cache[key] = find()
        found: Found = self._cache[key]
        return found

    def here(self) -> dict[str, tuple[str, Member]]:
        """Return every device that a connected site reaches, by name: at its home site, if that is one of them."""
        return self._cached("here", self._here)

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
    def received(self) -> frozenset[str]:
        """The sites that have sent their roster since the start."""
        return frozenset(self._rosters)

    def has(self, site: str, device: str) -> bool:
        """Return whether a device is on a site's roster."""
        return device in self._names.get(site, ())

    def unread(self, now: float) -> list[str]:
        """Return the connected sites that were born recently and whose roster has not been read since.

        A site that never sends its roster is not waited for, since it would delay every job.
        """
        rosters = self._rosters
        young = [site for site in self._epochs if now < self._born[site] + ROSTER_TIMEOUT]
        return [site for site in young if site not in rosters or rosters[site].epoch != self._epochs[site]]

    def is_settled(self, now: float) -> bool:
        """Return whether the sites have probably reported all online devices.

        A device that several sites reach is reported by one after the other.
        """
        return not self._shared or self._changed_at + SETTLE_TIME <= now

    def unwilling(self, *asks: str | None) -> tuple[str, ...]:
        """Return devices whose owners do not share the data that an estimator or an objective requires."""
        asked = tuple(each for each in asks if each in CONSENTS)
        if len(asked) > 1:
            return tuple(sorted({device for each in asked for device in self.unwilling(each)}))
        return self._cached(("unwilling", asked[0]), lambda: self._unwilling(asked[0])) if asked else ()

    def requiring_signature(self) -> tuple[str, ...]:
        """Return the devices that accept only jobs signed by an operator."""
        offers = ((name, member.offer) for name, (_, member) in self.here().items())
        return self._cached(
            "requiring signature", lambda: tuple(sorted(name for name, it in offers if it and MANDATE in it.abilities))
        )

    def _unwilling(self, asks: str) -> tuple[str, ...]:
        members = [member for site in self._epochs if (it := self._rosters.get(site)) for member in it.members]
        return tuple(sorted({m.device for m in members if m.offer is None or asks not in m.offer.shares}))

    def count(self) -> int:
        """Return the number of online devices."""
        return self._cached("count", lambda: len({device for devices in self.reach().values() for device in devices}))

    def move(
        self, tour: TourPlan, objective: str | None = None, abilities: frozenset[str] = frozenset()
    ) -> TourPlan | None:
        """Return the tour at another connected site, the one that reaches most of its devices, or None.

        With an objective, consider only sites and devices that offer it and these abilities.
        """
        reach = {site: set(there) for site, there in self.reach(objective, abilities).items() if site != tour.site}
        kept = {site: tuple(d for d in tour.hops if d in there) for site, there in reach.items()}
        best = max(sorted(kept), key=lambda site: len(kept[site]), default=None)
        if best is None or not kept[best]:
            return None
        spares = tuple(device for device in tour.spares if device in reach[best])
        return msgspec.structs.replace(tour, site=best, hops=kept[best], spares=spares, attempt=tour.attempt + 1)

    def clashes(self, now: float) -> dict[str, str]:
        """Return the devices whose names two agents use, with a description of where they are."""
        found = self._cached("clashes", self._clashing)
        for device, since in self._clash_since.items():
            if now >= since + CLASH_TIME and len(starts := self._starts_of(device)) > 1:
                found = {**found, device: f"sites {' and '.join(sorted(starts.values()))}"}
        return found

    def clash_at(self, now: float) -> float | None:
        """When the next device will have been at two sites for too long."""
        return min(
            (since + CLASH_TIME for since in self._clash_since.values() if since + CLASH_TIME > now), default=None
        )

    def _clashing(self) -> dict[str, str]:
        return {device: f"site {site}" for device, (site, member) in self.here().items() if member.clash}

    def _starts_of(self, device: str) -> dict[Epoch, str]:
        """Return the starts of a device that connected sites name, each with one of these sites."""
        found = ((self._epoch_at(site, device), site) for site in sorted(self._epochs))
        return {epoch: site for epoch, site in found if epoch is not None}

    def live(self) -> set[bytes]:
        """The rosters that are being fetched."""
        return {work.members.digest for work in self._fetching.values()}

    def _devices(self, site: str, objective: str | None, abilities: frozenset[str]) -> tuple[str, ...]:
        if objective is not None and not leads(self._abilities.get(site, ()), abilities):
            return ()
        there = self._members_at(site)
        return tuple(d for d, (_, it) in there.items() if objective is None or able(it.offer, objective, abilities))

    def _is_at(self, site: str, member: Member) -> bool:
        """Return whether a device counts for a site that names it: its home, or a site that sees the same start of it.

        Sites that share a broker see the same devices. One that merely claims another's device does not know its nonce.
        """
        home = self._homes.get(member.device, site)
        if home == site or home not in self._epochs:
            return True
        seen = self._epoch_at(home, member.device)
        return seen is None or seen == member.epoch

    def _epoch_at(self, site: str, device: str) -> Epoch | None:
        """Return the start of a device that a site saw last."""
        roster = self._rosters.get(site)
        return roster.epochs.get(device) if roster else None
