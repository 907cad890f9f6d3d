"""A link for nodes that only serve metrics."""

from __future__ import annotations


class SilentLink:
    """A link that never connects."""

    payload_limit = 60_000

    def open(self, *_how) -> None:
        pass

    def publish(self, *_what, **_how) -> None:
        pass

    def close(self) -> None:
        pass
