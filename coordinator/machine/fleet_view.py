"""The fleet as operators see it: which devices connect and disconnect, their history and their visits."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import filterfalse
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.fleet_records import (
    DEVICES,
    DeviceForgotten,
    DeviceHistory,
    DeviceJoined,
    FleetChanged,
    FleetHistory,
    joined,
)
from coordinator.machine.answers import MAX_SINGLE_LIST_SIZE, drop_oldest, fitting, refuse
from coordinator.machine.sites import Sites
from coordinator.machine.waiting_jobs import Awaited
from coordinator.rollout_records import LineState
from coordinator.rounds.round_messages import names
from sojourn import __version__
from sojourn.logs import About
from sojourn.node.machine import Append, Effect, Log, Send, earliest
from sojourn.protocol.limits import LABEL
from sojourn.protocol.operator_messages import (
    DeviceNow,
    Fleet,
    FleetDevice,
    ForgetDevice,
    InspectFleet,
    Refused,
    ReleaseNow,
    VisitNow,
)
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Member
from sojourn.rate_limiter import Rate, RateLimiter

if TYPE_CHECKING:
    from coordinator.job_state import JobState
    from coordinator.machine.change_watch import ChangeWatch
    from coordinator.machine.job_queue import JobQueue
    from coordinator.machine.tours import RoundTours
    from coordinator.state import CoordinatorState


# The sites' rosters are compared with the recorded devices, and differences are logged.
#
# Writes are rate-limited however often devices connect: one record in a few seconds and, after a burst, one change per
# device and minute. The view of an online device uses the rosters and is always current.

RECORD_RATE = Rate(0.2, 20.0)
"""Rate of records: a burst of 20, then one in five seconds."""
CHANGE_RATE = Rate(1 / 60, 20.0)
"""Rate of changes per device: a burst of 20, then one in a minute."""
RECHECK_DELAY = 5.0
"""Seconds until changes that exceeded a rate are checked again."""
STARTUP_GRACE = 30.0
"""Seconds after a start before devices that were online earlier, and are not reported since, count as offline."""
RECONNECT_GRACE = 10.0
"""Seconds to wait for a device that disconnected to return."""
MAX_LOG_LINES = 10
"""Maximum devices of a record with a separate log line; the others share one."""


class FleetWatch:
    """Compares online devices with the recorded ones, and records the differences."""

    def __init__(self, sites: Sites, wall: float) -> None:
        """`wall` is the time in seconds since 1970 at which `now` is 0."""
        self._sites = sites
        self._wall = wall
        self._rate = RateLimiter()
        self._settled_at = float("-inf")
        self._clashing: frozenset[str] = frozenset()
        """The devices whose name clash was logged."""
        self.look_at: float | None = None
        """When to compare again if nothing happens before."""

    def start(self, durable: CoordinatorState, now: float) -> None:
        """Sites report their rosters one after another: no device is offline because its site has not reported yet."""
        self._settled_at = now + STARTUP_GRACE
        if any(it.online for it in durable.seen.devices.values()):
            self.look_at = self._settled_at

    def woke(self, durable: CoordinatorState, now: float) -> list[Effect]:
        """Compare again, if it is time."""
        return self.look(durable, now) if self.look_at is not None and self.look_at <= now else []

    def look(self, durable: CoordinatorState, now: float) -> list[Effect]:
        """Handle a possible change of sites or devices."""
        self.look_at = self._sites.clash_at(now)
        return [*self._warn_of_clashes(now), *self._compare(durable, now)]

    def _warn_of_clashes(self, now: float) -> list[Effect]:
        """Log each device whose name two agents use, once per clash."""
        clashes = self._sites.clashes(now)
        new = sorted(clashes.keys() - self._clashing)
        self._clashing = frozenset(clashes)
        return [
            Log(clash_notice(device, clashes[device]), "warning", About(device=device))
            for device in new[:MAX_LOG_LINES]
        ]

    def _compare(self, durable: CoordinatorState, now: float) -> list[Effect]:
        """Record which devices connected and disconnected."""
        here = self._sites.here()
        coming, going = _joined(durable.seen, here), self._left(durable.seen, here, now)
        if not coming and not going:
            return []
        if not self._rate.allows("a record", RECORD_RATE, now):
            self.look_at = earliest(self.look_at, now + RECHECK_DELAY)
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
        """Return why the next round should wait for devices that just disconnected; None if it need not.

        waited: seconds that the job has already waited. A restarted edge server or a connection lost for a second must
        not cost the round that is planned at that moment.
        """
        here, seen = self._sites.here(), durable.seen.devices
        if now < self._settled_at:
            # Devices that took part in the job but were never recorded may return, too.
            before = {device for device, it in seen.items() if it.online} | (job.fleet.keys() - seen.keys())
            if not before <= here.keys():
                reason = "the coordinator was restarted, and not all devices have reconnected yet"
                return Awaited(reason, RECONNECT_GRACE)
        recently = self.moment(now) - RECONNECT_GRACE
        missing = filterfalse(here.__contains__, job.fleet)
        left = [device for device in missing if _left_after(seen.get(device), recently)]
        return (
            Awaited(f"{names(left)} just disconnected and may return", RECONNECT_GRACE)
            if left and waited < RECONNECT_GRACE
            else None
        )

    def moment(self, now: float) -> float:
        """Return `now` in seconds since 1970."""
        return max(0.0, self._wall + now)

    def _left(self, seen: FleetHistory, here: dict[str, tuple[str, Member]], now: float) -> list[str]:
        gone = sorted(device for device, it in seen.devices.items() if it.online and device not in here)
        if gone and now < self._settled_at:
            self.look_at = earliest(self.look_at, self._settled_at)
            return [device for device in gone if seen.devices[device].site in self._sites.received]
        return gone

    def _allows(self, device: str, now: float) -> bool:
        allowed = self._rate.allows(device, CHANGE_RATE, now)
        if not allowed:
            self.look_at = earliest(self.look_at, now + 1 / CHANGE_RATE.per_second)
        return allowed


def clash_notice(device: str, where: str) -> str:
    """Describe a clash of two agents with the same device name, and how to resolve it."""
    return (
        f"two agents use the name {device!r} ({where}): only one can be active at a time, and its visits are lost when "
        "the other connects. Stop one of them, or give it another name (and its own certificate, in a fleet with "
        "certificates)"
    )


def _left_after(it: DeviceHistory | None, moment: float) -> bool:
    return it is not None and not it.online and it.since > moment


def _joined(seen: FleetHistory, here: dict[str, tuple[str, Member]]) -> list[DeviceJoined]:
    """Return the devices to record as joined: new ones within the limit, or those with another site or version."""
    found, room = [], DEVICES - sum(it.online for it in seen.devices.values())
    # If there is no room for more devices, only those already recorded count.
    for device in sorted(here if room > 0 else here.keys() & seen.devices.keys()):
        site, member = here[device]
        offer, known = member.offer, seen.devices.get(device)
        it = joined(device, site, offer.version if offer else "", offer.machine if offer else "")
        same = (
            known and known.online and (known.site, known.version, known.machine) == (it.site, it.version, it.machine)
        )
        new = known is None or not known.online
        if same or (new and room <= 0):
            continue
        room -= new
        found.append(it)
    return found


def _lines(record: FleetChanged, seen: FleetHistory) -> list[Log]:
    came = [
        Log(f"device {it.device} is online (site {it.site}{_version(it)})", about=About(device=it.device, site=it.site))
        for it in record.joined
    ]
    left = {device: seen.devices[device].site for device in record.left}
    went = [
        Log(f"device {device} is offline (site {site})", about=About(device=device, site=site))
        for device, site in left.items()
    ]
    lines = [*came[:MAX_LOG_LINES], *went[:MAX_LOG_LINES]]
    for more, word in ((len(came) - MAX_LOG_LINES, "online"), (len(went) - MAX_LOG_LINES, "offline")):
        lines += [Log(f"and {more} more devices are {word}: sojourn fleet status")] if more > 0 else []
    return lines


def _version(it: DeviceJoined) -> str:
    words = [word for word in (it.version, it.machine) if word]
    return f", {', '.join(words)}" if words else ""


MAX_OFFER_SIZE = 30_000
"""Maximum bytes of a device's offer, many times the usual size; larger offers are omitted so that answers fit."""
MAX_RELEASES = 20
"""Maximum model lines shown for one device: the newest."""
MAX_ENTRIES = 500
"""Maximum entries in one answer."""


MAX_FORGOTTEN = 4
"""Number of answers about forgotten devices kept for repeated requests."""


class FleetRequests:
    """Answers requests about the fleet, a page at a time, without keeping state between requests."""

    def __init__(
        self, queue: JobQueue, sites: Sites, watch: FleetWatch, tours: RoundTours, changes: ChangeWatch
    ) -> None:
        self._queue = queue
        self._sites = sites
        self._watch = watch
        self._tours = tours
        self._changes = changes
        self._forgotten: dict[str, Fleet] = {}
        """The newest answers to `forget-device` by ticket, since a request may be repeated."""

    def inspect(self, sender: Address, message: InspectFleet, now: float) -> list[Effect]:
        """Send a page of the requested entries."""
        return [Send(sender, self.page(message, now))]

    def page(self, message: InspectFleet, now: float) -> Fleet | Refused:
        """Return a page of the requested entries, or why there is none."""
        durable, here = self._queue.durable, self._sites.here()
        if why := _unknown(durable, message, here):
            return Refused(message.ticket, why)
        found: Iterator[tuple[str, Any]]
        match message.about:
            case "devices":
                found = self._devices(message, here, now)
            case "changes":
                changes = ((str(n), it) for n, it in durable.seen.numbered_changes() if n < _before(message.after))
                found = ((n, it) for n, it in changes if message.device in (None, it.device))
            case "visits":
                visits = ((str(n), it) for n, it in durable.seen.notes() if n < _before(message.after))
                found = (
                    (n, it) for n, it in visits
                    if message.device in (None, it.device) and message.job in (None, it.job)
                )  # fmt: skip
        page, after = fitting(found, MAX_ENTRIES, MAX_SINGLE_LIST_SIZE)
        answer = Fleet(message.ticket, __version__, self._watch.moment(now), next=after)
        return msgspec.structs.replace(answer, **{message.about: page})

    def forget(self, sender: Address, message: ForgetDevice, now: float) -> list[Effect]:
        """Forget an offline device; the answer shows its last state."""
        if (again := self._forgotten.get(message.ticket)) is not None:
            return [Send(sender, again)]
        found = self.page(InspectFleet(message.ticket, "devices", message.device), now)
        if isinstance(found, Refused):
            return [Send(sender, found)]
        device = found.devices[0]
        if device.online:
            why = (
                f"device {device.device!r} is online at site {device.site}: stop its agent first, otherwise it is "
                "listed again at once (in a fleet with certificates, `sojourn fleet remove` disconnects it)"
            )
            return refuse(sender, message.ticket, why)
        record = DeviceForgotten(device.device)
        self._queue.durable.apply(record)
        self._forgotten[message.ticket] = found
        drop_oldest(self._forgotten, MAX_FORGOTTEN)
        return [Append(record, sync=True), Send(sender, found)]

    def changed_devices(self, since: int, now: float) -> tuple[FleetDevice, ...] | None:
        """Return the devices that changed after a mark; None if they do not fit in one answer."""
        message = InspectFleet("changed", "devices", since=since)
        found = self._devices(message, self._sites.here(), now)
        page, after = fitting(found, MAX_ENTRIES, MAX_SINGLE_LIST_SIZE)
        return None if after else page

    def _devices(
        self, message: InspectFleet, here: dict[str, tuple[str, Member]], now: float
    ) -> Iterator[tuple[str, FleetDevice]]:
        durable = self._queue.durable
        seen, visits = durable.seen, self._visits_now()
        clashes = self._sites.clashes(now)
        for name in self._requested(seen, message, here):
            if name > message.after:
                known, at = seen.devices.get(name), here.get(name)
                found = self._device(name, known, at, message, now)
                doing = _activity(name, at[1] if at else None, visits.get(name), durable.lines)
                found = msgspec.structs.replace(found, doing=doing)
                if name in clashes:
                    found = msgspec.structs.replace(found, notice=clash_notice(name, clashes[name]))
                yield name, found

    def _requested(self, seen: FleetHistory, message: InspectFleet, here: Mapping[str, object]) -> Iterable[str]:
        """Return the names of the requested devices."""
        if message.device:
            return [message.device]
        every = seen.devices.keys() | here.keys()
        changed = None if message.since is None else self._changes.changed_since(message.since, every)
        return sorted(every if changed is None else changed)

    def _visits_now(self) -> dict[str, VisitNow]:
        """Return the visits in progress by device, as last reported by the sites."""
        return {
            it.device: VisitNow(it.tour.job, it.tour.round, it.tour.number, it.hop, it.step, it.steps)
            for it in self._tours.progress.values()
            if it.device is not None
        }

    def _device(
        self, name: str, known: DeviceHistory | None, at: tuple[str, Member] | None, message: InspectFleet, now: float
    ) -> FleetDevice:
        """Return the view of a device; its connection status comes from the rosters, which may be newer."""
        site, member = at or (known.site if known else "", None)
        offer = member.offer if member else None
        moment = self._watch.moment(now)
        since = known.since if known and known.online == (at is not None) else moment
        return FleetDevice(
            name,
            at is not None,
            since,
            known.first if known else moment,
            site,
            offer.version if offer else known.version if known else "",
            offer.machine if offer else known.machine if known else "",
            known.visits if known else 0,
            known.failed if known else 0,
            known.last if known else None,
            offer if message.device and len(msgspec.msgpack.encode(offer)) < MAX_OFFER_SIZE else None,
        )


def _activity(device: str, member: Member | None, visit: VisitNow | None, lines: Mapping[str, LineState]) -> DeviceNow:
    """Return what a device does now, with the model or release that it uses."""
    offer = member.offer if member else None
    releases = [_release(line, device) for line in lines.values() if device in line.members or device in line.reports]
    return DeviceNow(
        visit if member else None,
        tuple(releases[-MAX_RELEASES:]),
        offer.threads if offer else 0,
        offer.memory if offer else 0,
        len(offer.objectives) if offer else 0,
    )


def _release(line: LineState, device: str) -> ReleaseNow:
    report = line.reports.get(device)
    if report is None:
        return ReleaseNow(line.line, 0, "sent")
    why = line.set_aside.get(device) or report.detail
    return ReleaseNow(line.line, report.version, report.state, why[:LABEL])


def _before(after: str) -> float:
    """Return the number below which a page begins; anything that is not a number means the first page."""
    return int(after) if after.isascii() and after.isdigit() and len(after) < 16 else float("inf")


def _unknown(durable: CoordinatorState, message: InspectFleet, here: dict[str, tuple[str, Member]]) -> str | None:
    """Return why nothing is known of the named device or job, or None."""
    device, job = message.device, message.job
    if device is not None and device not in durable.seen.devices and device not in here:
        near = difflib.get_close_matches(device, [*durable.seen.devices, *here], 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"no device {device!r} has ever connected; {hint}all known devices: sojourn fleet status"
    if job is not None and job not in durable.jobs and all(it.job != job for it in durable.seen.rounds):
        return durable.no_such_job(job)
    return None
