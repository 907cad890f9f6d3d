"""Joining at a real door: valid and invalid tokens, acceptance, names, renewal, copies, and expired members."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from sojourn.brokers import fleet as folders
from sojourn.brokers import invitations
from sojourn.brokers.certificates import Authority
from sojourn.errors import ConfigError, LinkError
from sojourn.joining import client
from sojourn.joining.identity import CERTIFICATE, JOINED, NodeIdentity
from sojourn.joining.messages import Hello, RequestPending, Welcome
from tests.sojourn.joining.open_door import DAY, FLEET, OpenDoor, ask, enrol, open_door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[OpenDoor]:
    with open_door(tmp_path / "fleet") as made:
        yield made


def certificate_of(identity: NodeIdentity) -> x509.Certificate:
    return x509.load_pem_x509_certificate((identity.folder / CERTIFICATE).read_bytes())


def test_device_joins_only_after_operator_accepts(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(name="pi-1", data="/srv/photos")
    assert isinstance(ask(token, tmp_path / "pi"), RequestPending)
    assert isinstance(ask(token, tmp_path / "pi"), RequestPending)
    assert door.fleet().members == {}
    assert [each.name for each in invitations.read(door.folder).waiting] == ["pi-1"]
    assert door.accept("pi-1") == ["pi-1"]
    welcome = ask(token, tmp_path / "pi")
    assert isinstance(welcome, Welcome)
    fleet = door.fleet()
    assert (welcome.name, welcome.fleet, welcome.host, welcome.port) == ("pi-1", FLEET, "localhost", 8884)
    assert (welcome.keys, welcome.data) == ({"release": fleet.release_key}, "/srv/photos")
    member = fleet.members["pi-1"]
    assert member.node_key == NodeIdentity(tmp_path / "pi").node_key().public
    assert (tmp_path / "fleet" / "coordinator" / "node-keys.toml").exists() is False  # this folder has no coordinator
    assert fleet.node_keys == {"pi-1": member.node_key}


def test_private_keys_never_leave_the_device(door: OpenDoor, tmp_path: Path) -> None:
    identity = enrol(door.invite(authorised=True), tmp_path / "pi")
    kept = b"".join(path.read_bytes() for path in door.folder.rglob("*") if path.is_file())
    secret = (identity.folder / "node.key").read_text().splitlines()[1].encode()
    private = (identity.folder / CERTIFICATE).read_text().split("PRIVATE KEY-----")[1].split()[0].encode()
    assert secret not in kept
    assert private not in kept
    assert [path.stat().st_mode & 0o077 for path in identity.folder.iterdir()] == [0] * 4


def test_certificate_binds_name_and_key_for_thirty_days(door: OpenDoor, tmp_path: Path) -> None:
    identity = enrol(door.invite(authorised=True), tmp_path / "pi", "shed")
    made = certificate_of(identity)
    assert made.subject.rfc4514_string() == "CN=shed"
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        f"sojourn-node-key:{identity.node_key().public}"
    ]
    left = made.not_valid_after_utc.timestamp() - door.now()
    assert 29.9 * DAY < left <= 30 * DAY


def test_token_is_single_use_but_repeated_request_is_idempotent(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(authorised=True)
    first = ask(token, tmp_path / "one")
    assert ask(token, tmp_path / "one") == first
    with pytest.raises(client.JoinRefused, match="was already used"):
        ask(token, tmp_path / "two", "pi-2")
    assert list(door.fleet().members) == ["pi-1"]


def test_expired_token_admits_only_devices_that_asked_in_time(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(uses=2)
    assert isinstance(ask(token, tmp_path / "one"), RequestPending)
    door.shift = 2 * DAY
    with pytest.raises(client.JoinRefused, match="the token expired"):
        ask(token, tmp_path / "two", "pi-2")
    door.accept()
    assert isinstance(ask(token, tmp_path / "one"), Welcome)


def test_fingerprint_mismatch_stops_before_the_request(door: OpenDoor, tmp_path: Path) -> None:
    token = msgspec.structs.replace(door.invite(), authority=b"x" * 16)
    with pytest.raises(LinkError, match="does not match the token's fingerprint"):
        ask(token, tmp_path / "pi")
    assert invitations.read(door.folder).requests == {}


def test_door_with_untrusted_certificate_is_rejected(door: OpenDoor) -> None:
    """It can present the right authority, which is public, but has no certificate of it."""
    token = door.invite()
    other = Authority.create("another").certificate
    with pytest.raises(LinkError, match="is not from the fleet's authority"):
        client.ask(client.DoorAddress(token.host, token.port), client.trusting(other.decode()), Hello())


def test_unknown_and_withdrawn_invitations_are_rejected(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite()
    with pytest.raises(client.JoinRefused, match="this token is unknown"):
        ask(msgspec.structs.replace(token, secret=b"0" * 16), tmp_path / "pi")
    with folders.locked(door.folder):
        assert invitations.uninvite(door.folder) == 1
    with pytest.raises(client.JoinRefused, match="this token is unknown"):
        ask(token, tmp_path / "pi")


def test_rejected_device_is_notified(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite()
    ask(token, tmp_path / "pi")
    with pytest.raises(ConfigError, match="no request from pi-9"):
        door.reject("pi-9")
    assert door.reject("pi-1") == ["pi-1"]
    with pytest.raises(client.JoinRefused, match="rejected"):
        ask(token, tmp_path / "pi")
    assert door.fleet().members == {}


def test_boards_of_one_image_get_distinct_names_and_keys(door: OpenDoor, tmp_path: Path) -> None:
    """All have the same host name, and the same token on their SD card."""
    token = door.invite(uses=4, prefix="shed", authorised=True)
    boards = [enrol(token, tmp_path / str(number), "raspberrypi") for number in range(4)]
    assert [each.joined().name for each in boards] == ["shed-1", "shed-2", "shed-3", "shed-4"]
    assert len({each.node_key().public for each in boards}) == 4
    assert len({member.serial for member in door.fleet().members.values()}) == 4
    with pytest.raises(client.JoinRefused, match="was already used"):
        ask(token, tmp_path / "fifth", "raspberrypi")


def test_duplicate_host_names_get_unique_suffixes(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(uses=3)
    names = [answer.name for number in range(3) if (answer := ask(token, tmp_path / str(number), "raspberrypi"))]
    assert names == ["raspberrypi", "raspberrypi-2", "raspberrypi-3"]


def test_replacement_device_revokes_keys_of_its_predecessor(door: OpenDoor, tmp_path: Path) -> None:
    old = enrol(door.invite(name="pi-1", authorised=True), tmp_path / "old")
    with pytest.raises(ConfigError, match="is already a member"):
        door.invite(name="pi-1")
    client.check(old)
    new = enrol(door.invite(name="pi-1", authorised=True, replaces=True), tmp_path / "new")
    client.check(new)  # and it is not reported as a copy
    assert list(door.fleet().revoked.values()) == ["pi-1"]
    with pytest.raises(client.JoinRefused, match="revoked or removed"):
        client.check(old)


def test_certificate_is_renewed_after_two_thirds_of_its_life(door: OpenDoor, tmp_path: Path) -> None:
    door.shift = -19 * DAY
    young = enrol(door.invite(authorised=True), tmp_path / "young", "young")
    door.shift = -21 * DAY
    old = enrol(door.invite(authorised=True), tmp_path / "old", "old")
    door.shift = 0.0
    valid = client.check(young)
    assert not valid.due
    assert 0.9 * DAY < valid.again <= 1 * DAY
    with pytest.raises(client.JoinRefused, match="not due for renewal"):
        client.renew(young)
    before = certificate_of(old)
    assert client.check(old).due
    client.renew(old)
    after = certificate_of(old)
    assert after.not_valid_after_utc > before.not_valid_after_utc
    assert after.public_key() != before.public_key()
    assert not client.check(old).due
    member = door.fleet().members["old"]
    assert member.serials == [f"{after.serial_number:x}", f"{before.serial_number:x}"]


def test_lost_renewal_response_can_be_retried_within_a_limit(door: OpenDoor, tmp_path: Path) -> None:
    door.shift = -25 * DAY
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    door.shift = 0.0
    shutil.copytree(device.folder, tmp_path / "before")
    client.check(device)
    client.renew(device)
    shutil.rmtree(device.folder)
    shutil.copytree(tmp_path / "before", device.folder)
    client.renew(device)
    assert len(door.fleet().members["pi-1"].serials) == 3
    for _ in range(invitations.MAX_VALID_CERTIFICATES - 3):
        shutil.copy(tmp_path / "before" / CERTIFICATE, device.folder / CERTIFICATE)
        client.renew(device)
    shutil.copy(tmp_path / "before" / CERTIFICATE, device.folder / CERTIFICATE)
    with pytest.raises(client.JoinRefused, match="too many valid certificates"):
        client.renew(device)


def test_revoking_ends_every_valid_certificate(door: OpenDoor, tmp_path: Path) -> None:
    door.shift = -25 * DAY
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    door.shift = 0.0
    client.renew(device)
    with folders.locked(door.folder):
        folders.revoke(door.folder, "pi-1")
        invitations.forget(door.folder, "pi-1")
    assert len(door.fleet().revoked) == 2
    assert door.fleet().node_keys == {}
    with pytest.raises(client.JoinRefused, match="revoked"):
        client.check(device)
    with pytest.raises(client.JoinRefused, match="revoked"):
        client.come_back(device, "a board")
    with pytest.raises(client.JoinRefused, match="was revoked, as pi-1"):
        ask(door.invite(), device.folder)


def test_copy_of_joined_device_is_detected(door: OpenDoor, tmp_path: Path) -> None:
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    client.check(device)
    shutil.copytree(device.folder, tmp_path / "copy")
    client.check(device)
    with pytest.raises(client.JoinRefused, match="two devices seem to have the keys of pi-1"):
        client.check(NodeIdentity(tmp_path / "copy"))
    with pytest.raises(client.JoinRefused, match="two devices"):
        client.check(device)  # the door cannot distinguish the copy
    seen = invitations.read(door.folder).seen["pi-1"]
    assert seen.cloned
    assert door.accept("pi-1") == ["pi-1"]
    client.check(device)
    assert not invitations.read(door.folder).seen["pi-1"].cloned
    with pytest.raises(client.JoinRefused, match="two devices"):
        client.check(NodeIdentity(tmp_path / "copy"))


def test_copy_made_before_first_check_is_detected(door: OpenDoor, tmp_path: Path) -> None:
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    shutil.copytree(device.folder, tmp_path / "copy")
    client.check(NodeIdentity(tmp_path / "copy"))
    with pytest.raises(client.JoinRefused, match="two devices"):
        client.check(device)


def test_lost_check_response_is_not_mistaken_for_a_copy(
    door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    client.check(device)
    before = (device.folder / JOINED).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(client, "_check_authorities", lambda _: (_ for _ in ()).throw(LinkError("cut off")))
        with pytest.raises(LinkError):
            client.check(device)
    # As if the device had stored the stamp that it sent, but the reply had been lost.
    offered = msgspec.structs.replace(
        msgspec.json.decode(before, type=type(device.joined())), next=device.joined().stamp
    )
    device.remember(offered)
    client.check(device)
    assert not invitations.read(door.folder).seen["pi-1"].cloned


def test_device_with_expired_certificate_returns_by_its_key(door: OpenDoor, tmp_path: Path) -> None:
    door.shift = -40 * DAY
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    door.shift = 0.0
    before = certificate_of(device)
    with pytest.raises(client.CertificateRefused):
        client.check(device)
    for _ in range(3):
        waiting = client.come_back(device, "a board")
        assert waiting is not None
        assert waiting.name == "pi-1"
    assert [each.returns for each in invitations.read(door.folder).waiting] == [True]
    door.accept("pi-1")
    assert client.come_back(device, "a board") is None
    assert certificate_of(device).serial_number != before.serial_number
    client.check(device)
    assert door.fleet().members["pi-1"].node_key == device.node_key().public


def test_unknown_key_cannot_return_as_a_member(door: OpenDoor, tmp_path: Path) -> None:
    enrol(door.invite(authorised=True), tmp_path / "pi")
    stranger = NodeIdentity(tmp_path / "stranger")
    stranger.node_key()
    for name in (CERTIFICATE, JOINED, "ca.pem"):
        shutil.copy(tmp_path / "pi" / name, stranger.folder / name)
    with pytest.raises(client.JoinRefused, match="not the key"):
        client.check(stranger)  # with the certificate and its key, but without the node's own
    with pytest.raises(client.JoinRefused, match="no member has this key"):
        client.come_back(stranger, "a board")
    assert invitations.read(door.folder).waiting == []


def test_member_with_issued_bundle_cannot_use_the_door(door: OpenDoor, tmp_path: Path) -> None:
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    with folders.locked(door.folder):
        _, secret = folders.admit(door.folder, "old", "device", "certificate")
    (device.folder / CERTIFICATE).write_bytes(secret.files["pem"] + secret.files["key"])
    with pytest.raises(client.JoinRefused, match="not the key"):
        client.check(device)


def test_interrupted_join_is_completed_by_the_next_request(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(authorised=True)
    ask(token, tmp_path / "pi")
    fleet = msgspec.structs.replace(door.fleet(), members={})
    folders.write(door.folder, fleet, {})
    assert isinstance(ask(token, tmp_path / "pi"), Welcome)
    assert list(door.fleet().members) == ["pi-1"]


def test_removed_device_may_join_again_under_its_name(door: OpenDoor, tmp_path: Path) -> None:
    enrol(door.invite(authorised=True), tmp_path / "pi")
    with folders.locked(door.folder):
        folders.remove(door.folder, "pi-1")
        invitations.forget(door.folder, "pi-1")
    assert isinstance(ask(door.invite(authorised=True), tmp_path / "pi"), Welcome)
    assert door.fleet().members["pi-1"].node_key == NodeIdentity(tmp_path / "pi").node_key().public


def test_hundred_devices_are_accepted_with_one_write(
    door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, written = door.invite(uses=100, prefix="board"), list[int]()
    authority = client.fetch_authority(token)
    for number in range(100):
        client.join(token, authority, NodeIdentity(tmp_path / str(number)), "raspberrypi", "a board")
    truth = folders.write

    def write(*arguments: Any) -> None:
        written.append(len(arguments[1].members))
        truth(*arguments)

    monkeypatch.setattr(folders, "write", write)
    assert len(door.accept()) == 100
    assert written == [100]
    assert len(set(door.fleet().node_keys.values())) == 100
    for number in (0, 99):
        assert isinstance(ask(token, tmp_path / str(number), "raspberrypi"), Welcome)
