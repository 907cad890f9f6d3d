"""Hostile clients of the door: invalid, large, slow and frequent requests leave no trace."""

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

from sojourn.brokers import invitations
from sojourn.brokers import join_server as doors
from sojourn.brokers.join_server import client_network
from sojourn.errors import LinkError
from sojourn.joining import client
from sojourn.joining.identity import NodeIdentity
from sojourn.joining.messages import (
    MAX_BYTES,
    Authorities,
    CertificateCheck,
    Hello,
    Join,
    Rejected,
    Renew,
    Return,
    framed,
    read_answer,
    signed_part,
)
from sojourn.rate_limiter import Rate
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
    """Return whether the door closes a connection without a reply."""
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def output(door: OpenDoor, data: bytes) -> bytes:
    """Return the door's reply to these bytes, until it closes the connection."""
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
    answer = read_answer(output(door, data)[4:])
    assert isinstance(answer, Rejected)
    return answer.reason


def files_of(door: OpenDoor) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in door.folder.rglob("*") if path.is_file()}


def test_malformed_requests_are_rejected_and_leave_no_files(door: OpenDoor) -> None:
    door.invite()
    before = files_of(door)
    draw = random.Random(5)
    assert "the maximum is" in turned(door, (MAX_BYTES + 1).to_bytes(4) + b"x")
    assert "the maximum is" in turned(door, b"\0\0\0\0")
    assert "not a message" in turned(door, b"\0\0\0\1\xc0")
    assert "not a message" in turned(door, framed(Hello()).replace(b"hello", b"hullo"))
    for length in (1, 30, 300, 3_000, MAX_BYTES):
        assert "not a message" in turned(door, length.to_bytes(4) + draw.randbytes(length))
    assert "not a message" in turned(door, MAX_BYTES.to_bytes(4) + b"\x91" * MAX_BYTES)  # lists in lists in lists
    assert files_of(door) == before
    assert isinstance(read_answer(output(door, framed(Hello()))[4:]), Authorities)


def test_requests_with_invalid_signature_are_rejected(door: OpenDoor, tmp_path: Path) -> None:
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


def test_invalid_certificate_request_uses_no_invitation(door: OpenDoor, tmp_path: Path) -> None:
    token, identity = door.invite(authorised=True), NodeIdentity(tmp_path / "pi")
    genuine = identity.request("pi-1")
    for request in (b"", b"x" * 8_000, genuine[:-20] + bytes(20), genuine[:40] + b"\0" + genuine[41:]):
        asked = Join(token.secret, identity.node_key().public_bytes, request, "pi-1", "a board")
        signed = msgspec.structs.replace(asked, signature=identity.signed(signed_part(asked)))
        assert "certificate" in turned(door, framed(signed))
    (invitation,) = invitations.read(door.folder).invitations.values()
    assert invitation.uses == 1
    ask(token, tmp_path / "pi")


def test_member_request_without_client_certificate_is_rejected(door: OpenDoor, tmp_path: Path) -> None:
    identity = NodeIdentity(tmp_path / "pi")
    asked = CertificateCheck(identity.node_key().public_bytes, bytes(16), bytes(16))
    signed = msgspec.structs.replace(asked, signature=identity.signed(signed_part(asked)))
    assert "requires a certificate" in turned(door, framed(signed))


def test_silent_connections_are_closed_and_do_not_block_others(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = [socket.create_connection(("127.0.0.1", door.door.port), timeout=LIMIT) for _ in range(8)]
    held = [over_tls(door) for _ in range(8)]
    wait_until(lambda: door.met() == len(held), "the door to meet them")
    assert output(door, framed(Hello()))
    monkeypatch.setattr(doors, "SECONDS", 0.1)
    hasty = [over_tls(door) for _ in range(4)]
    for line in hasty:
        with contextlib.suppress(OSError):  # on a slow machine its time is over already
            line.sendall(b"\0\0\1")
        assert hung_up(line)
    for each in [*silent, *held, *hasty]:
        each.close()


def test_connections_per_address_are_limited(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "CONNECTIONS_OF_ADDRESS", 2)
    held = [over_tls(door) for _ in range(2)]
    wait_until(lambda: door.met() == len(held), "the door to meet both")
    assert output(door, framed(Hello())) == b""
    for line in held:
        line.close()
    wait_until(lambda: output(door, framed(Hello())), "an answer")


def test_connection_rate_per_address_is_limited(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "RATE", Rate(1e-9, 2.0))
    assert output(door, framed(Hello()))
    assert output(door, framed(Hello()))
    assert output(door, framed(Hello())) == b""


def test_ipv6_addresses_are_limited_per_64_bit_network() -> None:
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff:1") != client_network("2001:db8:0:1::1")
    assert client_network("192.0.2.1") != client_network("192.0.2.2")
    assert client_network("::ffff:192.0.2.1") == "192.0.2.1"
    assert client_network("fe80::1%eth0") == "fe80::"


def test_certificates_are_read_under_the_folder_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_unreachable_door_is_reported(tmp_path: Path) -> None:
    door = client.DoorAddress("127.0.0.1", free_ports(1)[0])
    with pytest.raises(LinkError, match="cannot be reached"):
        client.ask(door, anyone(), Hello())
