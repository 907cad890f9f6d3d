"""Certificate renewal: at the start, at the time that the door requests, and with a wrong clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent import certificate_renewal
from edge_agent.certificate_renewal import DAY, HOUR, MINUTE, Renewals, RenewalStatus, check_renewal
from edge_agent.joining import check_certificate
from sojourn.joining.identity import NodeIdentity
from tests.sojourn.joining.open_door import OpenDoor, enrol, open_door
from tests.waiting import wait_until


@pytest.fixture
def door(tmp_path: Path) -> Iterator[OpenDoor]:
    with open_door(tmp_path / "fleet") as made:
        yield made


def device(door: OpenDoor, folder: Path, days: float) -> NodeIdentity:
    """Return a device that joined this many days ago."""
    door.shift = -days * DAY
    made = enrol(door.invite(authorised=True), folder)
    door.shift = 0.0
    return made


def test_renewal_check_returns_the_time_of_the_next_check(door: OpenDoor, tmp_path: Path) -> None:
    assert check_certificate(device(door, tmp_path / "pi", 1)) == RenewalStatus(DAY)
    assert check_renewal(tmp_path / "pi") == RenewalStatus(DAY)


def test_due_certificate_is_renewed_and_checked_again(door: OpenDoor, tmp_path: Path) -> None:
    made = device(door, tmp_path / "pi", 22)
    before = (made.folder / "node.pem").read_bytes()
    assert check_renewal(made.folder) == RenewalStatus(MINUTE, "the certificate was renewed")
    assert (made.folder / "node.pem").read_bytes() != before
    assert check_certificate(made) == RenewalStatus(DAY)


@pytest.mark.parametrize("year", [1970, 2100])
def test_device_clock_does_not_affect_renewal(
    door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, year: int
) -> None:
    """The door's clock is correct; the device's clock is wrong."""
    young, old = device(door, tmp_path / "young", 10), device(door, tmp_path / "old", 25)
    truth = time.time()
    monkeypatch.setattr(time, "time", lambda: (year - 1970) * 365.25 * DAY)
    door.shift = truth - time.time()
    assert check_certificate(young) == RenewalStatus(DAY)
    assert check_certificate(old).text == "the certificate was renewed"
    assert check_certificate(old) == RenewalStatus(DAY)


def test_expired_device_requests_readmission_and_resumes(door: OpenDoor, tmp_path: Path) -> None:
    made = device(door, tmp_path / "pi", 45)
    status = check_certificate(made)
    assert (status.again, status.warn) == (MINUTE, True)
    assert "waiting for `sojourn fleet accept pi-1`" in status.text
    door.accept("pi-1")
    assert check_certificate(made) == RenewalStatus(MINUTE, "joined again, with a new certificate")
    assert check_certificate(made) == RenewalStatus(DAY)


def test_copied_key_or_unreachable_join_server_warns_and_retries(door: OpenDoor, tmp_path: Path) -> None:
    made = device(door, tmp_path / "pi", 1)
    joined = made.joined()
    check_certificate(made)
    made.remember(joined)
    status = check_certificate(made)
    assert (status.again, status.warn) == (HOUR, True)
    assert "two devices seem to have the keys of pi-1" in status.text
    made.remember(type(joined)(name="pi-1", host="127.0.0.1", port=1, stamp=bytes(16)))
    status = check_certificate(made)
    assert (status.again, status.warn) == (HOUR, True)
    assert "cannot be reached" in status.text


def test_agent_checks_at_start_and_logs_each_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = [
        RenewalStatus(0.0, "something", warn=True),
        RenewalStatus(0.0, "something", warn=True),
        RenewalStatus(0.0),
        RenewalStatus(DAY),
    ]
    seen: list[Path] = []

    def status(folder: Path) -> RenewalStatus:
        seen.append(folder)
        return looks[min(len(seen), len(looks)) - 1]

    monkeypatch.setattr(certificate_renewal, "check_renewal", status)
    kept = Renewals(tmp_path, first=0.0)
    wait_until(lambda: len(seen) == 4, "four looks at the door")
    kept.close()
    assert caplog.text.count("something") == 1
    assert seen == [tmp_path] * 4


def test_failed_renewal_check_is_a_warning(door: OpenDoor, tmp_path: Path) -> None:
    status = check_renewal(tmp_path / "nothing")
    assert (status.again, status.warn) == (HOUR, True)
    made = device(door, tmp_path / "pi", 1)
    (made.folder / "ca.pem").unlink()
    status = check_certificate(made)
    assert (status.again, status.warn) == (HOUR, True)
    assert "ca.pem" in status.text
