"""Which devices a site has now, as their presence at the broker says, and reporting them to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.node.machine import Keep
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Birth, Roster
from sojourn.protocol.wire import Member
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from sojourn.node.machine import Effect, Present
    from sojourn.node.outbox import Outbox
    from sojourn.protocol.topics import Address

REPORT_DELAY = 0.2
"""Seconds to wait for more after a device came or went: after a power cut all devices of a site come at once."""


class SiteRoster:
    """The members of a site. Volatile: presence is retained by the broker and heard again after a restart."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.revision = 0
        self.blob: bytes | None = None
        self.report_at: float | None = None

    def present(self, event: Present, now: float) -> bool:
        """Take a birth or a death; returns whether a device was born (again)."""
        name, known = event.node.name, self.members.get(event.node.name)
        if isinstance(event.state, Birth):
            member = self.members[name] = Member(name, event.epoch, event.state.offer)
            # A device that has looked at its data is born again with the same epoch, and a fuller offer.
            changed, born = known != member, known is None or known.epoch != event.epoch
        else:
            # A broker may publish a will late: a death that is not of the start we know is old news.
            changed, born = known is not None and known.epoch == event.epoch, False
            if changed:
                del self.members[name]
        if changed:
            self.report_soon(now)
        return born

    def report_soon(self, now: float) -> None:
        """Something has changed that the coordinator should hear of."""
        self.report_at = self.report_at or now + REPORT_DELAY

    def report(self, cloud: Address, outbox: Outbox, now: float) -> list[Effect]:
        """Ask the coordinator to take the roster, if it is time to, until it says that it has seen it."""
        if self.report_at is None or self.report_at > now:
            return []
        self.report_at = None
        self.revision += 1
        data = pack_blob([self.members[name] for name in sorted(self.members)])
        ref = ref_of(data)
        self.blob = ref.digest
        return [Keep(ref.digest, data), *outbox.ask("roster", cloud, Roster(self.revision, ref), now)]
