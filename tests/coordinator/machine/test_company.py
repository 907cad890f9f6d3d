"""When complaints are enough: exact cases of who spoke, through which site, and who is left to be asked."""

from __future__ import annotations

import pytest

from coordinator.machine.company import Verdict, Voices

BACK, WAIT = Verdict(back=True), Verdict(back=False)


def verdict(against: str, told: str, others: str = "", silent: str = "", quorum: int = 2) -> Verdict:
    """Devices are a letter and the number of their site: "a1 b1 c2"."""
    voices = Voices(
        {device: device[1] for device in against.split()},
        told.split(),
        silent.split(),
        others.split,
        lambda device: device[1],
    )
    return voices.verdict(quorum)


def ask(*devices: str) -> Verdict:
    return Verdict(back=False, ask=devices)


@pytest.mark.parametrize(
    ("against", "told", "others", "expected"),
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
def test_two_must_complain_and_not_through_one_site_where_there_are_several(against, told, others, expected) -> None:
    assert verdict(against, told, others) == expected


def test_the_silent_have_no_voice() -> None:
    assert verdict("a1", "a1 b1", silent="b1") == BACK
    assert verdict("a1", "a1 b2", "c1", silent="b2") == ask("c1")
    assert verdict("a1 b1", "a1 b1 c2", silent="c2") == BACK
    assert verdict("a1", "a1 b1 c1", silent="b1") == WAIT


@pytest.mark.parametrize("told", ["a1", "a1 b1", "a1 b2"])
def test_with_a_quorum_of_one_every_word_counts(told) -> None:
    assert verdict("a1", told, "c2", quorum=1) == BACK


def test_a_larger_quorum_asks_more_and_a_fleet_that_is_smaller_must_agree() -> None:
    assert verdict("a1", "a1", "b1 c1 d2", quorum=3) == ask("d2", "b1")
    assert verdict("a1", "a1 b2", "c1", quorum=3) == ask("c1")
    assert verdict("a1 b2", "a1 b2 c1", quorum=9) == WAIT
    assert verdict("a1 b2 c1", "a1 b2 c1", quorum=9) == BACK


def test_nobody_is_looked_for_who_is_not_needed() -> None:
    def never() -> list[str]:
        raise AssertionError

    voices = Voices({"a1": "1"}, ["a1", "b2"], (), never, lambda device: device[1])
    assert voices.verdict(2) == WAIT
