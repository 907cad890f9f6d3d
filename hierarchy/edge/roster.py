"""Which devices a site has now, as their presence at the broker says, and reporting them to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sojourn.about import About
from sojourn.node.machine import Keep, Say, soonest
from sojourn.node.name_clashes import CLASH_SECONDS
from sojourn.node.quotas import Quota, SpeakingRate
from sojourn.protocol.abilities import OF_MODELS
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Birth, Roster
from sojourn.protocol.wire import Member
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from sojourn.node.machine import Effect, Present
    from sojourn.node.outbox import Outbox
    from sojourn.protocol.topics import Address
    from sojourn.protocol.wire import Offer

ANNOUNCED = Quota(0, 0, 0, 0.2, 50.0)
"""How many comings and goings have a line in the log: 50 at once, then one in five seconds."""
REPORT_DELAY = 0.2
"""Seconds to wait for more after a device came or went: after a power cut all devices of a site come at once."""


class SiteRoster:
    """The members of a site. Volatile: presence is retained by the broker and heard again after a restart."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.revision = 0
        self.blob: bytes | None = None
        self.report_at: float | None = None
        self._rate = SpeakingRate()
        self._offer: Offer | None = None
        """The last one: devices that are alike share it."""
        self._clash_ends: dict[str, float] = {}
        """When a name that two agents use no longer counts as such, if they stop to push each other off."""
        self._untold = 0
        """How many came or went without a line since the last one."""

    def present(self, event: Present, now: float) -> tuple[bool, list[Effect]]:
        """Take a birth or a death; returns whether a device was born (again), and a line about it for the log."""
        name, known = event.node.name, self.members.get(event.node.name)
        if isinstance(event.state, Birth):
            if event.state.offer != self._offer:
                self._offer = event.state.offer
            if event.clash:
                self._clash_ends[name] = now + CLASH_SECONDS
            member = self.members[name] = Member(name, event.epoch, self._offer, name in self._clash_ends)
            # A device that has looked at its data is born again with the same epoch, and a fuller offer.
            changed, born = known != member, known is None or known.epoch != event.epoch
        else:
            # A broker may publish a will late: a death that is not of the start we know is old news.
            changed, born = known is not None and known.epoch == event.epoch, False
            if changed:
                del self.members[name]
        if changed:
            self.report_soon(now)
        gone = changed and not isinstance(event.state, Birth)
        return born, self._announced(event, now) if born or gone else []

    def _announced(self, event: Present, now: float) -> list[Effect]:
        """A line about who came or went, unless there were too many: then the next line counts them."""
        if not self._rate.allows("devices", ANNOUNCED, now):
            self._untold += 1
            return []
        name, offer = event.node.name, event.state.offer if isinstance(event.state, Birth) else None
        what = f" ({offer.version}, {offer.machine})" if offer else ""
        state = f"is here{what}" if isinstance(event.state, Birth) else "is gone"
        more, self._untold = self._untold, 0
        untold = f"; before it, {more} more came or went" if more else ""
        return [Say(f"device {name} {state}; {len(self.members)} are here{untold}", about=About(device=name))]

    def wake_at(self) -> float | None:
        """When to report, or when the first name clash is over."""
        return soonest(self.report_at, min(self._clash_ends.values(), default=None))

    def _end_clashes(self, now: float) -> None:
        for name in [name for name, end in self._clash_ends.items() if end <= now]:
            del self._clash_ends[name]
            if (member := self.members.get(name)) is not None:
                self.members[name] = msgspec.structs.replace(member, clash=False)
                self.report_soon(now)

    def report_soon(self, now: float) -> None:
        """Something has changed that the coordinator should hear of."""
        self.report_at = self.report_at or now + REPORT_DELAY

    def report(self, cloud: Address, outbox: Outbox, now: float) -> list[Effect]:
        """Ask the coordinator to take the roster, if it is time to, until it says that it has seen it."""
        self._end_clashes(now)
        if self.report_at is None or self.report_at > now:
            return []
        self.report_at = None
        self.revision += 1
        data = pack_blob([self.members[name] for name in sorted(self.members)])
        ref = ref_of(data)
        self.blob = ref.digest
        return [Keep(ref.digest, data), *outbox.ask("roster", cloud, Roster(self.revision, ref, OF_MODELS), now)]
