"""Keys that wait for blobs."""

from __future__ import annotations

from sojourn.node.pending import Fetches


def test_waiters_are_returned_in_request_order() -> None:
    fetches: Fetches[str] = Fetches()
    fetches.wait("b", [b"1", b"2"])
    fetches.wait("a", [b"2", b"2"])
    assert fetches.waiting(b"2") == ["b", "a"]
    assert fetches.arrived(b"1") == []
    assert fetches.arrived(b"2") == ["b", "a"]
    assert fetches.arrived(b"2") == []
    assert (fetches._waiting, fetches._lacking) == ({}, {})


def test_new_request_or_forget_replaces_earlier_waits() -> None:
    fetches: Fetches[str] = Fetches()
    fetches.wait("a", [b"1", b"2"])
    fetches.wait("b", [b"1"])
    fetches.wait("a", [b"3"])
    assert fetches.arrived(b"1") == ["b"]
    assert fetches.waiting(b"2") == []
    fetches.forget("a")
    fetches.forget("a")
    assert fetches.arrived(b"3") == []
    assert (fetches._waiting, fetches._lacking) == ({}, {})
