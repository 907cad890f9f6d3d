"""What operators ask about the fleet: who is here and who is gone, comings and goings, visits."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.machine.paging import fitting
from sojourn import __version__
from sojourn.protocol.fleet_messages import FORM, Fleet, FleetDevice
from sojourn.protocol.messages import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from coordinator.fleet_records import DeviceHistory, FleetHistory
    from coordinator.machine.fleet_watch import FleetWatch
    from coordinator.machine.sites import Sites
    from coordinator.state import CoordinatorState
    from sojourn.protocol.fleet_messages import InspectFleet
    from sojourn.protocol.wire import Member

LARGEST_OFFER = 30_000
"""Bytes: many times what an agent says of itself; a larger one is left out, or the answer would fit in no packet."""
MOST = 500
"""Entries in one answer, if they fit."""


class FleetRequests:
    """Answers what is asked about the fleet, a page at a time; nothing is kept of a question."""

    def __init__(self, sites: Sites, watch: FleetWatch) -> None:
        self._sites = sites
        self._watch = watch

    def inspect(self, durable: CoordinatorState, message: InspectFleet, now: float) -> Fleet | Refused:
        """A page of what was asked about, or why there is none."""
        here = self._sites.here()
        if why := _unknown(durable, message, here):
            return Refused(message.ticket, why)
        found: Iterator[tuple[str, Any]]
        match message.about:
            case "devices":
                found = self._devices(durable.seen, message, here, now)
            case "changes":
                changes = ((str(n), it) for n, it in durable.seen.numbered_changes() if n < _before(message.after))
                found = ((n, it) for n, it in changes if message.device in (None, it.device))
            case "visits":
                visits = ((str(n), it) for n, it in durable.seen.notes() if n < _before(message.after))
                found = (
                    (n, it) for n, it in visits
                    if message.device in (None, it.device) and message.job in (None, it.job)
                )  # fmt: skip
        page, after = fitting(found, MOST)
        answer = Fleet(message.ticket, FORM, __version__, self._watch.moment(now), next=after)
        return msgspec.structs.replace(answer, **{message.about: page})

    def _devices(
        self, seen: FleetHistory, message: InspectFleet, here: dict[str, tuple[str, Member]], now: float
    ) -> Iterator[tuple[str, FleetDevice]]:
        names: Iterable[str] = [message.device] if message.device else sorted(seen.devices.keys() | here.keys())
        for name in names:
            if name > message.after:
                yield name, self._device(name, seen.devices.get(name), here.get(name), message, now)

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
