"""A device that looks after its certificate: at its start, when the door said, and with whatever clock it has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.joining import renewals
from edge_agent.joining.looked import DAY, HOUR, MINUTE, Looked
from edge_agent.joining.renewals import Renewals, look_outside
from edge_agent.joining.renewing import look
from sojourn.joining.identity import NodeIdentity
from tests.sojourn.joining.open_door import OpenDoor, enrol, open_door
from tests.waiting import wait_until


@pytest.fixture
def door(tmp_path: Path) -> Iterator[OpenDoor]:
    with open_door(tmp_path / "fleet") as made:
        yield made


def device(door: OpenDoor, folder: Path, days: float) -> NodeIdentity:
    """A device that joined so many days ago."""
    door.shift = -days * DAY
    made = enrol(door.invite(authorised=True), folder)
    door.shift = 0.0
    return made


def test_a_look_tells_when_to_look_again(door: OpenDoor, tmp_path: Path) -> None:
    assert look(device(door, tmp_path / "pi", 1)) == Looked(DAY)
    assert look_outside(tmp_path / "pi") == Looked(DAY)


def test_what_is_due_is_renewed_and_looked_at_once_more(door: OpenDoor, tmp_path: Path) -> None:
    made = device(door, tmp_path / "pi", 22)
    before = (made.folder / "node.pem").read_bytes()
    assert look_outside(made.folder) == Looked(MINUTE, "the certificate was renewed")
    assert (made.folder / "node.pem").read_bytes() != before
    assert look(made) == Looked(DAY)


@pytest.mark.parametrize("year", [1970, 2100])
def test_the_devices_own_clock_has_no_say(
    door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, year: int
) -> None:
    """The door's clock is the true one here; ours is wherever it woke up."""
    young, old = device(door, tmp_path / "young", 10), device(door, tmp_path / "old", 25)
    truth = time.time()
    monkeypatch.setattr(time, "time", lambda: (year - 1970) * 365.25 * DAY)
    door.shift = truth - time.time()
    assert look(young) == Looked(DAY)
    assert look(old).text == "the certificate was renewed"
    assert look(old) == Looked(DAY)


def test_after_a_month_away_it_asks_to_come_back_and_goes_on_when_it_may(door: OpenDoor, tmp_path: Path) -> None:
    made = device(door, tmp_path / "pi", 45)
    looked = look(made)
    assert (looked.again, looked.warn) == (MINUTE, True)
    assert "waiting for `sojourn fleet accept pi-1`" in looked.text
    door.accept("pi-1")
    assert look(made) == Looked(MINUTE, "let in again, with a new certificate")
    assert look(made) == Looked(DAY)


def test_a_copy_and_a_shut_door_are_warned_of_and_tried_again_later(door: OpenDoor, tmp_path: Path) -> None:
    made = device(door, tmp_path / "pi", 1)
    joined = made.joined()
    look(made)
    made.remember(joined)
    looked = look(made)
    assert (looked.again, looked.warn) == (HOUR, True)
    assert "two devices seem to have the keys of pi-1" in looked.text
    made.remember(type(joined)(name="pi-1", host="127.0.0.1", port=1, stamp=bytes(16)))
    looked = look(made)
    assert (looked.again, looked.warn) == (HOUR, True)
    assert "cannot be reached" in looked.text


def test_an_agent_looks_when_it_starts_and_says_what_is_new_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = [Looked(0.0, "something", warn=True), Looked(0.0, "something", warn=True), Looked(0.0), Looked(DAY)]
    seen: list[Path] = []

    def looked(folder: Path) -> Looked:
        seen.append(folder)
        return looks[min(len(seen), len(looks)) - 1]

    monkeypatch.setattr(renewals, "look_outside", looked)
    kept = Renewals(tmp_path, first=0.0)
    wait_until(lambda: len(seen) == 4, "four looks at the door")
    kept.close()
    assert caplog.text.count("something") == 1
    assert seen == [tmp_path] * 4


def test_a_look_that_cannot_be_taken_is_a_warning(door: OpenDoor, tmp_path: Path) -> None:
    looked = look_outside(tmp_path / "nothing")
    assert (looked.again, looked.warn) == (HOUR, True)
    made = device(door, tmp_path / "pi", 1)
    (made.folder / "ca.pem").unlink()
    looked = look(made)
    assert (looked.again, looked.warn) == (HOUR, True)
    assert "ca.pem" in looked.text
