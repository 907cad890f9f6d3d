"""Who comes and who goes: what the sites' rosters say now is compared with what was written down, and told.

However often devices come and go, little is written: one record in a few seconds, and of one device a change in a
minute, after the first ones. What is shown of a device that is here goes by the rosters and is never late.
"""

from __future__ import annotations

from itertools import filterfalse
from typing import TYPE_CHECKING

from coordinator.fleet_records import DEVICES, FleetChanged, joined
from coordinator.machine.waiting_jobs import Awaited
from coordinator.rounds.failure_lines import names
from sojourn.about import About
from sojourn.node.machine import Append, Say, soonest
from sojourn.node.quotas import Quota, SpeakingRate

if TYPE_CHECKING:
    from coordinator.fleet_records import DeviceHistory, DeviceJoined, FleetHistory
    from coordinator.machine.sites import Sites
    from coordinator.state import CoordinatorState, JobState
    from sojourn.node.machine import Effect
    from sojourn.protocol.wire import Member

RECORDS = Quota(0, 0, 0, 0.2, 20.0)
"""How many records: 20 at once, then one in five seconds."""
CHANGES = Quota(0, 0, 0, 1 / 60, 20.0)
"""How many changes of one device: 20 at once, then one in a minute."""
LATER = 5.0
"""Seconds until what was too much is looked at again."""
SETTLED = 30.0
"""Seconds after a start until whoever was here before it and has not been heard of since counts as gone."""
RETURN = 10.0
"""Seconds in which a device that went may be back."""
LINES = 10
"""At most this many devices of a record have a line of their own in the log; the others share one."""


class FleetWatch:
    """Compares who is here with who was, and takes down the difference."""

    def __init__(self, sites: Sites, wall: float) -> None:
        """`wall` is what a clock on the wall shows, in seconds since 1970, when `now` is 0."""
        self._sites = sites
        self._wall = wall
        self._rate = SpeakingRate()
        self._settled_at = float("-inf")
        self._clashing: frozenset[str] = frozenset()
        """The devices of whose names the log has a warning."""
        self.look_at: float | None = None
        """When to look again, if nothing happens before."""

    def start(self, durable: CoordinatorState, now: float) -> None:
        """Sites are heard again one after another; nobody is gone because its site has not spoken yet."""
        self._settled_at = now + SETTLED
        if any(it.here for it in durable.seen.devices.values()):
            self.look_at = self._settled_at

    def woke(self, durable: CoordinatorState, now: float) -> list[Effect]:
        """Look again, if it is time to."""
        return self.look(durable, now) if self.look_at is not None and self.look_at <= now else []

    def look(self, durable: CoordinatorState, now: float) -> list[Effect]:
        """The sites or their devices may have changed."""
        self.look_at = self._sites.clash_at(now)
        return [*self._warn_of_clashes(now), *self._compare(durable, now)]

    def _warn_of_clashes(self, now: float) -> list[Effect]:
        """A line for each device whose name two agents use, once until that is over."""
        clashes = self._sites.clashes(now)
        new = sorted(clashes.keys() - self._clashing)
        self._clashing = frozenset(clashes)
        return [Say(clash_notice(device, clashes[device]), "warning", About(device=device)) for device in new[:LINES]]

    def _compare(self, durable: CoordinatorState, now: float) -> list[Effect]:
        """Take down who came and who went."""
        here = self._sites.here()
        coming, going = _coming(durable.seen, here), self._going(durable.seen, here, now)
        if not coming and not going:
            return []
        if not self._rate.allows("a record", RECORDS, now):
            self.look_at = soonest(self.look_at, now + LATER)
            return []
        record = FleetChanged(
            self.moment(now),
            tuple(it for it in coming if self._allows(it.device, now)),
            tuple(device for device in going if self._allows(device, now)),
        )
        if not record.joined and not record.left:
            return []
        durable.apply(record)
        return [Append(record), *_lines(record, durable.seen)]

    def awaited(self, durable: CoordinatorState, job: JobState, waited: float, now: float) -> Awaited | None:
        """Why the next round of a job waits a moment for devices that were here just now; None if it need not.

        waited: for how many seconds it does. An edge server that is started anew, or a device whose line was cut for a
        second, must not cost a round that happens to be planned then.
        """
        here, seen = self._sites.here(), durable.seen.devices
        if now < self._settled_at:
            # Of devices that the job had, and of which an earlier version took down nothing, the same is hoped.
            before = {device for device, it in seen.items() if it.here} | (job.fleet.keys() - seen.keys())
            if not before <= here.keys():
                reason = "the coordinator was restarted, and not all devices are heard of again yet"
                return Awaited(reason, RETURN)
        recently = self.moment(now) - RETURN
        missing = filterfalse(here.__contains__, job.fleet)
        left = [device for device in missing if _went_after(seen.get(device), recently)]
        return Awaited(f"{names(left)} went just now, and may be back", RETURN) if left and waited < RETURN else None

    def moment(self, now: float) -> float:
        """What a clock on the wall shows."""
        return max(0.0, self._wall + now)

    def _going(self, seen: FleetHistory, here: dict[str, tuple[str, Member]], now: float) -> list[str]:
        gone = sorted(device for device, it in seen.devices.items() if it.here and device not in here)
        if gone and now < self._settled_at:
            self.look_at = soonest(self.look_at, self._settled_at)
            return [device for device in gone if seen.devices[device].site in self._sites.heard]
        return gone

    def _allows(self, device: str, now: float) -> bool:
        allowed = self._rate.allows(device, CHANGES, now)
        if not allowed:
            self.look_at = soonest(self.look_at, now + 1 / CHANGES.messages)
        return allowed


def clash_notice(device: str, where: str) -> str:
    """What is wrong where two agents use the name of a device, and what to do."""
    return (
        f"two agents use the name {device!r} ({where}): only one counts at a time, and its visits are lost when the "
        "other connects. Stop one of them, or give it another name (and its own certificate, in a fleet with "
        "certificates)"
    )


def _went_after(it: DeviceHistory | None, moment: float) -> bool:
    return it is not None and not it.here and it.since > moment


def _coming(seen: FleetHistory, here: dict[str, tuple[str, Member]]) -> list[DeviceJoined]:
    """Who is here and was not, or was elsewhere or another: as many as there is room for."""
    found, room = [], DEVICES - sum(it.here for it in seen.devices.values())
    # Where there is no room for more, only those count that were written down before.
    for device in sorted(here if room > 0 else here.keys() & seen.devices.keys()):
        site, member = here[device]
        offer, known = member.offer, seen.devices.get(device)
        it = joined(device, site, offer.version if offer else "", offer.machine if offer else "")
        same = known and known.here and (known.site, known.version, known.machine) == (it.site, it.version, it.machine)
        new = known is None or not known.here
        if same or (new and room <= 0):
            continue
        room -= new
        found.append(it)
    return found


def _lines(record: FleetChanged, seen: FleetHistory) -> list[Say]:
    came = [
        Say(f"device {it.device} is here (site {it.site}{_version(it)})", about=About(device=it.device, site=it.site))
        for it in record.joined
    ]
    left = {device: seen.devices[device].site for device in record.left}
    went = [
        Say(f"device {device} is gone from site {site}", about=About(device=device, site=site))
        for device, site in left.items()
    ]
    lines = [*came[:LINES], *went[:LINES]]
    for more, word in ((len(came) - LINES, "are here"), (len(went) - LINES, "are gone")):
        lines += [Say(f"and {more} more devices {word}: sojourn fleet status")] if more > 0 else []
    return lines


def _version(it: DeviceJoined) -> str:
    words = [word for word in (it.version, it.machine) if word]
    return f", {', '.join(words)}" if words else ""
