"""Which devices a site has now, as their presence says, and telling the coordinator so."""

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

SETTLE = 0.2
"""Births come in flocks: wait this long for more before telling."""


class SiteRoster:
    """The members of a site. Volatile: presence is retained by the broker and heard again after a restart."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.revision = 0
        self.blob: bytes | None = None
        self.tell_at: float | None = None

    def present(self, event: Present, now: float) -> bool:
        """Take a birth or a death; returns whether a device was born (again)."""
        name, known = event.node.name, self.members.get(event.node.name)
        if isinstance(event.state, Birth):
            self.members[name] = Member(name, event.epoch, event.state.offer)
            changed = born = known is None or known.epoch != event.epoch
        else:
            # A death that is not of the boot we know is old news: wills lie.
            changed, born = known is not None and known.epoch == event.epoch, False
            if changed:
                del self.members[name]
        if changed:
            self.tell_soon(now)
        return born

    def tell_soon(self, now: float) -> None:
        """The coordinator should hear."""
        self.tell_at = self.tell_at or now + SETTLE

    def tell(self, cloud: Address, outbox: Outbox, now: float) -> list[Effect]:
        """Tell the coordinator, if it is time to."""
        if self.tell_at is None or self.tell_at > now:
            return []
        self.tell_at = None
        self.revision += 1
        data = pack_blob([self.members[name] for name in sorted(self.members)])
        ref = ref_of(data)
        self.blob = ref.digest
        return [Keep(ref.digest, data), *outbox.ask("roster", cloud, Roster(self.revision, ref), now)]
