"""When complaints suffice: which devices complained, through which site, and which are left to ask."""

from __future__ import annotations

import pytest

from coordinator.machine.quorum import Complaints, Verdict

BACK, WAIT = Verdict(back=True), Verdict(back=False)


def verdict(against: str, ordered: str, others: str = "", silent: str = "", quorum: int = 2) -> Verdict:
    """Parse devices written as a letter and the number of their site: "a1 b1 c2"."""
    complaints = Complaints(
        {device: device[1] for device in against.split()},
        ordered.split(),
        silent.split(),
        others.split,
        lambda device: device[1],
    )
    return complaints.verdict(quorum)


def ask(*devices: str) -> Verdict:
    return Verdict(back=False, ask=devices)


@pytest.mark.parametrize(
    ("against", "ordered", "others", "expected"),
    [
        ("a1", "a1", "", BACK),  # a fleet of one device is that device
        ("a1", "a1", "b1 c1", ask("b1")),
        ("a1", "a1", "b1 c2", ask("c2")),  # through another site, if it may be
        ("a1", "a1 b1", "", WAIT),
        ("a1 b1", "a1 b1", "", BACK),
        ("a1 b1", "a1 b1 c1", "d1", BACK),
        ("a1 b1", "a1 b1", "c2", ask("c2")),
        ("a1 b1", "a1 b1 c2", "d2", WAIT),
        ("a1 c2", "a1 b1 c2", "d2", BACK),
        ("a1 b1 c1 d1 e1", "a1 b1 c1 d1 e1 f2", "", WAIT),
    ],
)
def test_rollback_needs_two_complaints_from_different_sites(against, ordered, others, expected) -> None:
    assert verdict(against, ordered, others) == expected


def test_silent_devices_do_not_count() -> None:
    assert verdict("a1", "a1 b1", silent="b1") == BACK
    assert verdict("a1", "a1 b2", "c1", silent="b2") == ask("c1")
    assert verdict("a1 b1", "a1 b1 c2", silent="c2") == BACK
    assert verdict("a1", "a1 b1 c1", silent="b1") == WAIT


@pytest.mark.parametrize("ordered", ["a1", "a1 b1", "a1 b2"])
def test_single_complaint_is_enough_for_quorum_of_one(ordered) -> None:
    assert verdict("a1", ordered, "c2", quorum=1) == BACK


def test_large_quorum_asks_more_devices_up_to_whole_fleet() -> None:
    assert verdict("a1", "a1", "b1 c1 d2", quorum=3) == ask("d2", "b1")
    assert verdict("a1", "a1 b2", "c1", quorum=3) == ask("c1")
    assert verdict("a1 b2", "a1 b2 c1", quorum=9) == WAIT
    assert verdict("a1 b2 c1", "a1 b2 c1", quorum=9) == BACK


def test_unneeded_candidates_are_not_looked_up() -> None:
    def never() -> list[str]:
        raise AssertionError

    complaints = Complaints({"a1": "1"}, ["a1", "b2"], (), never, lambda device: device[1])
    assert complaints.verdict(2) == WAIT
