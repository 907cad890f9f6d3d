"""The devices of a site, read from their presence at the broker, and the report of them to the coordinator."""

from __future__ import annotations

import msgspec

from sojourn.logs import About
from sojourn.node.machine import Effect, Log, Present, StoreBlob, earliest
from sojourn.node.peers import CLASH_SECONDS
from sojourn.node.pending import Outbox
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Birth, Roster
from sojourn.protocol.task import OF_MODELS
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Member, Offer
from sojourn.rate_limiter import Rate, RateLimiter
from sojourn.store.blobs import ref_of

LOG_RATE = Rate(0.2, 50.0)
"""How many changes of presence are logged: a burst of 50, then one in five seconds."""
REPORT_DELAY = 0.2
"""Seconds to wait for further changes before a report: after a power cut all devices of a site come online at once."""


class SiteRoster:
    """The members of a site. Volatile: the broker retains presence and sends it again after a restart."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.revision = 0
        self.blob: bytes | None = None
        self.report_at: float | None = None
        self._rate = RateLimiter()
        self._offer: Offer | None = None
        """The last offer: equal devices share it."""
        self._clash_ends: dict[str, float] = {}
        """When each name that two agents used stops being reported as a clash, if no further clash occurs."""
        self._unlogged = 0
        """The number of changes of presence since the last logged one."""

    def present(self, event: Present, now: float) -> tuple[bool, list[Effect]]:
        """Take a birth or a death; return whether a device was born (again), and a log line about it."""
        name, known = event.node.name, self.members.get(event.node.name)
        if isinstance(event.state, Birth):
            if event.state.offer != self._offer:
                self._offer = event.state.offer
            if event.clash:
                self._clash_ends[name] = now + CLASH_SECONDS
            member = self.members[name] = Member(name, event.epoch, self._offer, name in self._clash_ends)
            # A device that has profiled its data sends another birth with the same epoch and a fuller offer.
            changed, born = known != member, known is None or known.epoch != event.epoch
        else:
            # A broker may publish a will late: ignore a death that is not from the device's current start.
            changed, born = known is not None and known.epoch == event.epoch, False
            if changed:
                del self.members[name]
        if changed:
            self.report_soon(now)
        gone = changed and not isinstance(event.state, Birth)
        return born, self._log(event, now) if born or gone else []

    def _log(self, event: Present, now: float) -> list[Effect]:
        """Log a device's new presence, unless the rate is exceeded; then the next line counts the skipped ones."""
        if not self._rate.allows("devices", LOG_RATE, now):
            self._unlogged += 1
            return []
        name, offer = event.node.name, event.state.offer if isinstance(event.state, Birth) else None
        version = f" ({offer.version}, {offer.machine})" if offer else ""
        state = f"is online{version}" if isinstance(event.state, Birth) else "is offline"
        more, self._unlogged = self._unlogged, 0
        skipped = f"; {more} more devices went online or offline before it" if more else ""
        return [Log(f"device {name} {state}; {len(self.members)} online{skipped}", about=About(device=name))]

    def wake_at(self) -> float | None:
        """Return when to report, or when the first name clash ends."""
        return earliest(self.report_at, min(self._clash_ends.values(), default=None))

    def _end_clashes(self, now: float) -> None:
        for name in [name for name, end in self._clash_ends.items() if end <= now]:
            del self._clash_ends[name]
            if (member := self.members.get(name)) is not None:
                self.members[name] = msgspec.structs.replace(member, clash=False)
                self.report_soon(now)

    def report_soon(self, now: float) -> None:
        """Schedule a report of a change to the coordinator."""
        self.report_at = self.report_at or now + REPORT_DELAY

    def report(self, cloud: Address, outbox: Outbox, now: float) -> list[Effect]:
        """Send the roster to the coordinator, if it is due, until the coordinator confirms it."""
        self._end_clashes(now)
        if self.report_at is None or self.report_at > now:
            return []
        self.report_at = None
        self.revision += 1
        data = pack_blob([self.members[name] for name in sorted(self.members)])
        ref = ref_of(data)
        self.blob = ref.digest
        return [StoreBlob(ref.digest, data), *outbox.ask("roster", cloud, Roster(self.revision, ref, OF_MODELS), now)]
