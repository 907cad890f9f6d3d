"""What operators ask about the fleet: who is here and who is gone, comings and goings, visits."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.fleet_records import DeviceForgotten
from coordinator.machine.fleet_watch import clash_notice
from coordinator.machine.paging import ALONE, ROOM, fitting
from sojourn import __version__
from sojourn.node.machine import Append, Send
from sojourn.protocol.fleet_messages import FORM, DeviceNow, Fleet, FleetDevice, InspectFleet, ReleaseNow, VisitNow
from sojourn.protocol.limits import LABEL
from sojourn.protocol.messages import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coordinator.fleet_records import DeviceHistory, FleetHistory
    from coordinator.machine.change_watch import ChangeWatch
    from coordinator.machine.fleet_watch import FleetWatch
    from coordinator.machine.sites import Sites
    from coordinator.machine.tours import RoundTours
    from coordinator.rollout_records import LineState
    from coordinator.state import CoordinatorState
    from sojourn.node.machine import Effect
    from sojourn.protocol.fleet_messages import ForgetDevice
    from sojourn.protocol.topics import Address
    from sojourn.protocol.wire import Member

LARGEST_OFFER = 30_000
"""Bytes: many times what an agent says of itself; a larger one is left out, or the answer would fit in no packet."""
RELEASES = 20
"""Model lines that are told of one device: the newest."""
MOST = 500
"""Entries in one answer, if they fit."""


FORGOTTEN = 4
"""Answers about devices that were forgotten which can be asked for again."""


class FleetRequests:
    """Answers what is asked about the fleet, a page at a time; nothing is kept of a question."""

    def __init__(self, sites: Sites, watch: FleetWatch, tours: RoundTours, changes: ChangeWatch) -> None:
        self._sites = sites
        self._watch = watch
        self._tours = tours
        self._changes = changes
        self._forgotten: dict[str, Fleet] = {}
        """The newest answers to `forget-device` by ticket: a question may come again."""

    def inspect(self, durable: CoordinatorState, message: InspectFleet, now: float) -> Fleet | Refused:
        """A page of what was asked about, or why there is none."""
        here = self._sites.here()
        if why := _unknown(durable, message, here):
            return Refused(message.ticket, why)
        found: Iterator[tuple[str, Any]]
        match message.about:
            case "devices":
                found = self._devices(durable, message, here, now)
            case "changes":
                changes = ((str(n), it) for n, it in durable.seen.numbered_changes() if n < _before(message.after))
                found = ((n, it) for n, it in changes if message.device in (None, it.device))
            case "visits":
                visits = ((str(n), it) for n, it in durable.seen.notes() if n < _before(message.after))
                found = (
                    (n, it) for n, it in visits
                    if message.device in (None, it.device) and message.job in (None, it.job)
                )  # fmt: skip
        page, after = fitting(found, MOST, ALONE if message.form >= 2 else ROOM)
        answer = Fleet(message.ticket, min(FORM, message.form), __version__, self._watch.moment(now), next=after)
        return msgspec.structs.replace(answer, **{message.about: page})

    def forget(self, durable: CoordinatorState, sender: Address, message: ForgetDevice, now: float) -> list[Effect]:
        """Forget a device that is gone; the answer shows it as it was."""
        if (again := self._forgotten.get(message.ticket)) is not None:
            return [Send(sender, again)]
        found = self.inspect(durable, InspectFleet(message.ticket, "devices", message.device), now)
        if isinstance(found, Refused):
            return [Send(sender, found)]
        device = found.devices[0]
        if device.here:
            why = (
                f"device {device.device!r} is connected at site {device.site}: stop its agent first, or it would be "
                "listed again at once (in a fleet with certificates, `sojourn fleet remove` disconnects it)"
            )
            return [Send(sender, Refused(message.ticket, why))]
        record = DeviceForgotten(device.device)
        durable.apply(record)
        self._forgotten[message.ticket] = found
        if len(self._forgotten) > FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        return [Append(record, sync=True), Send(sender, found)]

    def changed_devices(self, durable: CoordinatorState, since: int, now: float) -> tuple[FleetDevice, ...] | None:
        """The devices that changed after a mark; None if they do not fit in one answer."""
        message = InspectFleet("changed", "devices", since=since)
        found = self._devices(durable, message, self._sites.here(), now)
        page, after = fitting(found, MOST, ALONE)
        return None if after else page

    def _devices(
        self, durable: CoordinatorState, message: InspectFleet, here: dict[str, tuple[str, Member]], now: float
    ) -> Iterator[tuple[str, FleetDevice]]:
        seen = durable.seen
        visits = self._visits_now() if message.form >= 2 else {}
        clashes = self._sites.clashes(now)
        for name in self._wanted(seen, message, here):
            if name > message.after:
                known, at = seen.devices.get(name), here.get(name)
                found = self._device(name, known, at, message, now)
                if message.form >= 2:
                    doing = _doing(name, at[1] if at else None, visits.get(name), durable.lines)
                    found = msgspec.structs.replace(found, doing=doing)
                if name in clashes:
                    found = msgspec.structs.replace(found, notice=clash_notice(name, clashes[name]))
                yield name, found

    def _wanted(self, seen: FleetHistory, message: InspectFleet, here: Mapping[str, object]) -> Iterable[str]:
        """The devices that are asked for, by name."""
        if message.device:
            return [message.device]
        every = seen.devices.keys() | here.keys()
        changed = None if message.since is msgspec.UNSET else self._changes.changed_since(message.since, every)
        return sorted(every if changed is None else changed)

    def _visits_now(self) -> dict[str, VisitNow]:
        """The visits that are under way, by device, as the sites said last."""
        return {
            it.device: VisitNow(it.tour.job, it.tour.round, it.tour.number, it.hop, it.step, it.steps)
            for it in self._tours.progress.values()
            if it.device is not None
        }

    def _device(
        self, name: str, known: DeviceHistory | None, at: tuple[str, Member] | None, message: InspectFleet, now: float
    ) -> FleetDevice:
        """A device as it is; who is here goes by the rosters, which may be ahead of what was written down."""
        site, member = at or (known.site if known else "", None)
        offer = member.offer if member else None
        moment = self._watch.moment(now)
        since = known.since if known and known.here == (at is not None) else moment
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
            offer if message.device and len(msgspec.msgpack.encode(offer)) < LARGEST_OFFER else None,
        )


def _doing(device: str, member: Member | None, visit: VisitNow | None, lines: Mapping[str, LineState]) -> DeviceNow:
    """What a device does just now, and with what."""
    offer = member.offer if member else None
    releases = [_release(line, device) for line in lines.values() if device in line.members or device in line.reports]
    return DeviceNow(
        visit if member else None,
        tuple(releases[-RELEASES:]),
        offer.threads if offer else 0,
        offer.memory if offer else 0,
        len(offer.objectives) if offer else 0,
    )


def _release(line: LineState, device: str) -> ReleaseNow:
    report = line.reports.get(device)
    if report is None:
        return ReleaseNow(line.line, 0, "told")
    why = line.aside.get(device) or report.detail
    return ReleaseNow(line.line, report.version, report.state, why[:LABEL])


def _before(after: str) -> float:
    """The number below which a page begins; whatever is no number is the first page."""
    return int(after) if after.isascii() and after.isdigit() and len(after) < 16 else float("inf")


def _unknown(durable: CoordinatorState, message: InspectFleet, here: dict[str, tuple[str, Member]]) -> str | None:
    """Why nothing can be said of the device or the job that was named."""
    device, job = message.device, message.job
    if device is not None and device not in durable.seen.devices and device not in here:
        near = difflib.get_close_matches(device, [*durable.seen.devices, *here], 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"no device {device!r} was ever seen here; {hint}All that were: sojourn fleet status"
    if job is not None and job not in durable.jobs and all(it.job != job for it in durable.seen.rounds):
        known = ", ".join(durable.jobs) or "none"
        return f"there is no job {job!r}; the jobs are: {known}"
    return None
