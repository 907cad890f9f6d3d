"""Who waits for which blobs."""

from __future__ import annotations

from sojourn.node.fetches import Fetches


def test_who_has_all_is_told_in_the_order_of_asking() -> None:
    fetches: Fetches[str] = Fetches()
    fetches.wait("b", [b"1", b"2"])
    fetches.wait("a", [b"2", b"2"])
    assert fetches.waiting(b"2") == ["b", "a"]
    assert fetches.arrived(b"1") == []
    assert fetches.arrived(b"2") == ["b", "a"]
    assert fetches.arrived(b"2") == []
    assert (fetches._waiting, fetches._lacking) == ({}, {})


def test_who_asks_anew_or_is_forgotten_waits_for_nothing_else() -> None:
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
