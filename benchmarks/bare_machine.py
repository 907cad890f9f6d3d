"""A machine without state and offer: a benchmark adds its replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sojourn.node.machine import Effect
    from sojourn.protocol.topics import Address, Role


class BareMachine:
    """A machine with one peer; the subclass implements `handle`."""

    offer = None
    watches: tuple[Role, ...] = ()
    record_form: Any = None

    def __init__(self, address: Address, peer: Address) -> None:
        self.address = address
        self._peer = peer
        self._live: set[bytes] = set()
        """The blobs that stay in the store."""

    def role_of(self, _sender: str) -> Role:
        return self._peer.role

    def start(self, _now: float) -> list[Effect]:
        return []

    def on_traffic(self, peer: Address, traffic: int, now: float, *, sign_of_life: bool) -> None:
        pass

    def wake_at(self) -> None:
        return None

    def live(self) -> set[bytes]:
        return self._live

    def snapshot(self) -> bytes:
        return b""
