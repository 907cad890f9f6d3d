"""What strangers do at a door: nonsense, too much, too slowly, too often. Nothing of it stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sojourn.brokers import door as doors
from sojourn.brokers import joining_file
from sojourn.brokers.door import AddressRates, network_of
from sojourn.errors import LinkError
from sojourn.joining import asking
from sojourn.joining.identity import NodeIdentity
from sojourn.joining.words import (
    MOST_BYTES,
    Authorities,
    CertificateCheck,
    Hello,
    Join,
    Renew,
    Return,
    Turned,
    framed,
    read_answer,
    signed_part,
)
from tests.ports import free_ports
from tests.sojourn.joining.open_door import OpenDoor, ask, open_door
from tests.waiting import LIMIT, wait_until


@pytest.fixture
def door(tmp_path: Path) -> Iterator[OpenDoor]:
    with open_door(tmp_path / "fleet") as made:
        yield made


def anyone() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def over_tls(door: OpenDoor) -> ssl.SSLSocket:
    return anyone().wrap_socket(socket.create_connection(("127.0.0.1", door.door.port), timeout=LIMIT))


def hung_up(line: socket.socket) -> bool:
    """Whether the door ends a connection, in whatever way, without a word."""
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def said(door: OpenDoor, data: bytes) -> bytes:
    """What the door answers to these bytes, until it hangs up."""
    with over_tls(door) as line:
        line.sendall(data)
        found = b""
        try:
            while more := line.recv(1 << 16):
                found += more
        except OSError:
            pass
        return found


def turned(door: OpenDoor, data: bytes) -> str:
    answer = read_answer(said(door, data)[4:])
    assert isinstance(answer, Turned)
    return answer.reason


def files_of(door: OpenDoor) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in door.folder.rglob("*") if path.is_file()}


def test_nonsense_is_turned_away_and_leaves_nothing(door: OpenDoor) -> None:
    door.invite()
    before = files_of(door)
    draw = random.Random(5)
    assert "at most" in turned(door, (MOST_BYTES + 1).to_bytes(4) + b"x")
    assert "at most" in turned(door, b"\0\0\0\0")
    assert "not something" in turned(door, b"\0\0\0\1\xc0")
    assert "not something" in turned(door, framed(Hello()).replace(b"hello", b"hullo"))
    for length in (1, 30, 300, 3_000, MOST_BYTES):
        assert "not something" in turned(door, length.to_bytes(4) + draw.randbytes(length))
    assert "not something" in turned(door, MOST_BYTES.to_bytes(4) + b"\x91" * MOST_BYTES)  # lists in lists in lists
    assert files_of(door) == before
    assert isinstance(read_answer(said(door, framed(Hello()))[4:]), Authorities)


def test_requests_that_are_not_signed_by_their_key_are_turned_away(door: OpenDoor, tmp_path: Path) -> None:
    token, identity = door.invite(authorised=True), NodeIdentity(tmp_path / "pi")
    key, request = identity.node_key().public_bytes, identity.request("pi-1")
    before = files_of(door)
    for asked in (
        Join(token.secret, key, request, "pi-1", "a board"),
        CertificateCheck(key, bytes(16), bytes(16)),
        Renew(key, request),
        Return(key, request, "a board"),
    ):
        assert "not signed" in turned(door, framed(asked))
        for signed in (
            msgspec.structs.replace(asked, signature=identity.signed(b"something else")),
            msgspec.structs.replace(asked, signature=identity.signed(signed_part(asked)), node_key=b"k" * 32),
        ):
            assert "not signed" in turned(door, framed(signed))
    assert files_of(door) == before


def test_a_request_for_a_certificate_that_proves_nothing_uses_no_invitation(door: OpenDoor, tmp_path: Path) -> None:
    token, identity = door.invite(authorised=True), NodeIdentity(tmp_path / "pi")
    genuine = identity.request("pi-1")
    for request in (b"", b"x" * 8_000, genuine[:-20] + bytes(20), genuine[:40] + b"\0" + genuine[41:]):
        asked = Join(token.secret, identity.node_key().public_bytes, request, "pi-1", "a board")
        signed = msgspec.structs.replace(asked, signature=identity.signed(signed_part(asked)))
        assert "certificate" in turned(door, framed(signed))
    (invitation,) = joining_file.read(door.folder).invitations.values()
    assert invitation.uses == 1
    ask(token, tmp_path / "pi")


def test_what_members_ask_is_not_answered_without_a_certificate(door: OpenDoor, tmp_path: Path) -> None:
    identity = NodeIdentity(tmp_path / "pi")
    asked = CertificateCheck(identity.node_key().public_bytes, bytes(16), bytes(16))
    signed = msgspec.structs.replace(asked, signature=identity.signed(signed_part(asked)))
    assert "with a certificate" in turned(door, framed(signed))


def test_who_says_nothing_is_hung_up_on_and_others_are_served_meanwhile(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [socket.create_connection(("127.0.0.1", door.door.port), timeout=LIMIT) for _ in range(8)]
    held = [over_tls(door) for _ in range(8)]
    wait_until(lambda: door.met() == len(held), "the door to meet them")
    assert said(door, framed(Hello()))
    monkeypatch.setattr(doors, "SECONDS", 0.1)
    hasty = [over_tls(door) for _ in range(4)]
    for line in hasty:
        with contextlib.suppress(OSError):  # on a slow machine its time is over already
            line.sendall(b"\0\0\1")
        assert hung_up(line)
    for each in [*silent, *held, *hasty]:
        each.close()


def test_one_address_cannot_take_all_places(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "CONNECTIONS_OF_ADDRESS", 2)
    held = [over_tls(door) for _ in range(2)]
    wait_until(lambda: door.met() == len(held), "the door to meet both")
    assert said(door, framed(Hello())) == b""
    for line in held:
        line.close()
    wait_until(lambda: said(door, framed(Hello())), "an answer")


def test_an_address_that_comes_too_often_has_to_wait_and_others_need_not() -> None:
    now = [0.0]
    rates = AddressRates(lambda: now[0])
    assert all(rates.may("192.0.2.1") for _ in range(500))
    assert not rates.may("192.0.2.1")
    assert rates.may("192.0.2.2")
    now[0] = 1.0
    assert [rates.may("192.0.2.1") for _ in range(51)] == [True] * 50 + [False]
    for number in range(10_000):
        rates.may(str(number))
    assert len(rates._buckets) == doors.ADDRESSES


def test_one_host_has_a_whole_network_of_addresses() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == "fe80::"


def test_certificates_are_read_while_no_command_replaces_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, locked = doors.server_context, list[bool]()

    def reading(folder: Path) -> ssl.SSLContext:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked.append(False)
        except BlockingIOError:
            locked.append(True)
        finally:
            os.close(handle)
        return read(folder)

    monkeypatch.setattr(doors, "server_context", reading)
    with open_door(tmp_path / "fleet"):
        assert locked == [True]


def test_a_door_that_is_not_ours_is_told_apart(tmp_path: Path) -> None:
    door = asking.DoorAddress("127.0.0.1", free_ports(1)[0])
    with pytest.raises(LinkError, match="cannot be reached"):
        asking.ask(door, anyone(), Hello())
