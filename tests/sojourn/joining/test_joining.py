"""Joining at a real door: tokens that count and that do not, acceptance, names, renewal, copies, a month away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from sojourn.brokers import fleet as folders
from sojourn.brokers import joining, joining_file
from sojourn.brokers.certificates import Authority
from sojourn.errors import ConfigError, LinkError
from sojourn.joining import asking
from sojourn.joining.files import CERTIFICATE, JOINED
from sojourn.joining.identity import NodeIdentity
from sojourn.joining.words import Hello, RequestNoted, Welcome
from tests.sojourn.joining.open_door import DAY, FLEET, OpenDoor, ask, enrol, open_door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[OpenDoor]:
    with open_door(tmp_path / "fleet") as made:
        yield made


def certificate_of(identity: NodeIdentity) -> x509.Certificate:
    return x509.load_pem_x509_certificate((identity.folder / CERTIFICATE).read_bytes())


def test_a_device_is_let_in_when_an_operator_accepts_it_and_not_before(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(name="pi-1", data="/srv/photos")
    assert isinstance(ask(token, tmp_path / "pi"), RequestNoted)
    assert isinstance(ask(token, tmp_path / "pi"), RequestNoted)
    assert door.fleet().members == {}
    assert [each.name for each in joining_file.read(door.folder).waiting] == ["pi-1"]
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


def test_the_keys_never_leave_the_device(door: OpenDoor, tmp_path: Path) -> None:
    identity = enrol(door.invite(authorised=True), tmp_path / "pi")
    kept = b"".join(path.read_bytes() for path in door.folder.rglob("*") if path.is_file())
    secret = (identity.folder / "node.key").read_text().splitlines()[1].encode()
    private = (identity.folder / CERTIFICATE).read_text().split("PRIVATE KEY-----")[1].split()[0].encode()
    assert secret not in kept
    assert private not in kept
    assert [path.stat().st_mode & 0o077 for path in identity.folder.iterdir()] == [0] * 4


def test_the_certificate_names_the_device_binds_its_key_and_ends_in_thirty_days(door: OpenDoor, tmp_path: Path) -> None:
    identity = enrol(door.invite(authorised=True), tmp_path / "pi", "shed")
    made = certificate_of(identity)
    assert made.subject.rfc4514_string() == "CN=shed"
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        f"sojourn-node-key:{identity.node_key().public}"
    ]
    left = made.not_valid_after_utc.timestamp() - door.now()
    assert 29.9 * DAY < left <= 30 * DAY


def test_a_token_counts_once_and_a_repeated_question_is_no_second_use(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(authorised=True)
    first = ask(token, tmp_path / "one")
    assert ask(token, tmp_path / "one") == first
    with pytest.raises(asking.TurnedAway, match="was used already"):
        ask(token, tmp_path / "two", "pi-2")
    assert list(door.fleet().members) == ["pi-1"]


def test_a_late_token_is_refused_but_who_asked_in_time_may_still_come(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(uses=2)
    assert isinstance(ask(token, tmp_path / "one"), RequestNoted)
    door.shift = 2 * DAY
    with pytest.raises(asking.TurnedAway, match="the token has ended"):
        ask(token, tmp_path / "two", "pi-2")
    door.accept()
    assert isinstance(ask(token, tmp_path / "one"), Welcome)


def test_a_token_with_another_fingerprint_says_nothing_to_the_door(door: OpenDoor, tmp_path: Path) -> None:
    token = msgspec.structs.replace(door.invite(), authority=b"x" * 16)
    with pytest.raises(LinkError, match="its fingerprint is another"):
        ask(token, tmp_path / "pi")
    assert joining_file.read(door.folder).requests == {}


def test_a_door_that_shows_a_certificate_of_nobody_is_not_spoken_to(door: OpenDoor) -> None:
    """It may show the right authority, which is public; it cannot have a certificate of it."""
    token = door.invite()
    other = Authority.create("another").certificate
    with pytest.raises(LinkError, match="not vouched for"):
        asking.ask(asking.DoorAddress(token.host, token.port), asking.trusting(other.decode()), Hello())


def test_unknown_and_withdrawn_invitations_are_refused(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite()
    with pytest.raises(asking.TurnedAway, match="nobody was invited"):
        ask(msgspec.structs.replace(token, secret=b"0" * 16), tmp_path / "pi")
    with folders.alone(door.folder):
        assert joining.uninvite(door.folder) == 1
    with pytest.raises(asking.TurnedAway, match="nobody was invited"):
        ask(token, tmp_path / "pi")


def test_who_is_rejected_is_told_so(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite()
    ask(token, tmp_path / "pi")
    with pytest.raises(ConfigError, match="nobody asks as pi-9"):
        door.reject("pi-9")
    assert door.reject("pi-1") == ["pi-1"]
    with pytest.raises(asking.TurnedAway, match="rejected"):
        ask(token, tmp_path / "pi")
    assert door.fleet().members == {}


def test_boards_of_one_image_get_names_and_keys_of_their_own(door: OpenDoor, tmp_path: Path) -> None:
    """All of them have the same host name, and the same token on their card."""
    token = door.invite(uses=4, prefix="shed", authorised=True)
    boards = [enrol(token, tmp_path / str(number), "raspberrypi") for number in range(4)]
    assert [each.joined().name for each in boards] == ["shed-1", "shed-2", "shed-3", "shed-4"]
    assert len({each.node_key().public for each in boards}) == 4
    assert len({member.serial for member in door.fleet().members.values()}) == 4
    with pytest.raises(asking.TurnedAway, match="was used already"):
        ask(token, tmp_path / "fifth", "raspberrypi")


def test_without_names_in_the_token_devices_bring_their_own_and_none_is_given_twice(
    door: OpenDoor, tmp_path: Path
) -> None:
    token = door.invite(uses=3)
    names = [answer.name for number in range(3) if (answer := ask(token, tmp_path / str(number), "raspberrypi"))]
    assert names == ["raspberrypi", "raspberrypi-2", "raspberrypi-3"]


def test_a_device_that_takes_the_place_of_another_ends_its_keys(door: OpenDoor, tmp_path: Path) -> None:
    old = enrol(door.invite(name="pi-1", authorised=True), tmp_path / "old")
    with pytest.raises(ConfigError, match="is a member already"):
        door.invite(name="pi-1")
    asking.check(old)
    new = enrol(door.invite(name="pi-1", authorised=True, replaces=True), tmp_path / "new")
    asking.check(new)  # and nobody takes it for a copy
    assert list(door.fleet().revoked.values()) == ["pi-1"]
    with pytest.raises(asking.TurnedAway, match="revoked, or removed"):
        asking.check(old)


def test_a_certificate_is_renewed_when_two_thirds_are_over_and_not_before(door: OpenDoor, tmp_path: Path) -> None:
    door.shift = -19 * DAY
    young = enrol(door.invite(authorised=True), tmp_path / "young", "young")
    door.shift = -21 * DAY
    old = enrol(door.invite(authorised=True), tmp_path / "old", "old")
    door.shift = 0.0
    valid = asking.check(young)
    assert not valid.due
    assert 0.9 * DAY < valid.again <= 1 * DAY
    with pytest.raises(asking.TurnedAway, match="good for some time yet"):
        asking.renew(young)
    before = certificate_of(old)
    assert asking.check(old).due
    asking.renew(old)
    after = certificate_of(old)
    assert after.not_valid_after_utc > before.not_valid_after_utc
    assert after.public_key() != before.public_key()
    assert not asking.check(old).due
    member = door.fleet().members["old"]
    assert member.serials == [f"{after.serial_number:x}", f"{before.serial_number:x}"]


def test_a_lost_answer_to_a_renewal_strands_nobody(door: OpenDoor, tmp_path: Path) -> None:
    door.shift = -25 * DAY
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    door.shift = 0.0
    shutil.copytree(device.folder, tmp_path / "before")
    asking.check(device)
    asking.renew(device)
    shutil.rmtree(device.folder)
    shutil.copytree(tmp_path / "before", device.folder)
    asking.renew(device)
    assert len(door.fleet().members["pi-1"].serials) == 3
    for _ in range(joining.MOST_FORMER - 3):
        shutil.copy(tmp_path / "before" / CERTIFICATE, device.folder / CERTIFICATE)
        asking.renew(device)
    shutil.copy(tmp_path / "before" / CERTIFICATE, device.folder / CERTIFICATE)
    with pytest.raises(asking.TurnedAway, match="too many certificates"):
        asking.renew(device)


def test_revoking_ends_every_certificate_that_is_still_good(door: OpenDoor, tmp_path: Path) -> None:
    door.shift = -25 * DAY
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    door.shift = 0.0
    asking.renew(device)
    with folders.alone(door.folder):
        folders.revoke(door.folder, "pi-1")
        joining.forget(door.folder, "pi-1")
    assert len(door.fleet().revoked) == 2
    assert door.fleet().node_keys == {}
    with pytest.raises(asking.TurnedAway, match="revoked"):
        asking.check(device)
    with pytest.raises(asking.TurnedAway, match="revoked"):
        asking.come_back(device, "a board")
    with pytest.raises(asking.TurnedAway, match="was revoked, as pi-1"):
        ask(door.invite(), device.folder)


def test_a_copy_of_a_device_that_has_joined_is_noticed_when_both_have_come(door: OpenDoor, tmp_path: Path) -> None:
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    asking.check(device)
    shutil.copytree(device.folder, tmp_path / "copy")
    asking.check(device)
    with pytest.raises(asking.TurnedAway, match="two devices seem to have the keys of pi-1"):
        asking.check(NodeIdentity(tmp_path / "copy"))
    with pytest.raises(asking.TurnedAway, match="two devices"):
        asking.check(device)  # nobody can tell which of the two is the copy
    seen = joining_file.read(door.folder).seen["pi-1"]
    assert seen.doubted
    assert door.accept("pi-1") == ["pi-1"]
    asking.check(device)
    assert not joining_file.read(door.folder).seen["pi-1"].doubted
    with pytest.raises(asking.TurnedAway, match="two devices"):
        asking.check(NodeIdentity(tmp_path / "copy"))


def test_a_copy_made_before_the_first_look_is_noticed_too(door: OpenDoor, tmp_path: Path) -> None:
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    shutil.copytree(device.folder, tmp_path / "copy")
    asking.check(NodeIdentity(tmp_path / "copy"))
    with pytest.raises(asking.TurnedAway, match="two devices"):
        asking.check(device)


def test_an_answer_that_is_lost_makes_no_copy_of_a_device(
    door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    asking.check(device)
    before = (device.folder / JOINED).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(asking, "_check_authorities", lambda _: (_ for _ in ()).throw(LinkError("cut off")))
        with pytest.raises(LinkError):
            asking.check(device)
    # As if the device had written down what it offers, and never heard of the answer.
    offered = msgspec.structs.replace(
        msgspec.json.decode(before, type=type(device.joined())), next=device.joined().stamp
    )
    device.remember(offered)
    asking.check(device)
    assert not joining_file.read(door.folder).seen["pi-1"].doubted


def test_after_a_month_away_the_key_asks_and_the_operator_lets_it_in(door: OpenDoor, tmp_path: Path) -> None:
    door.shift = -40 * DAY
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    door.shift = 0.0
    before = certificate_of(device)
    with pytest.raises(asking.CertificateRefused):
        asking.check(device)
    for _ in range(3):
        waiting = asking.come_back(device, "a board")
        assert waiting is not None
        assert waiting.name == "pi-1"
    assert [each.returns for each in joining_file.read(door.folder).waiting] == [True]
    door.accept("pi-1")
    assert asking.come_back(device, "a board") is None
    assert certificate_of(device).serial_number != before.serial_number
    asking.check(device)
    assert door.fleet().members["pi-1"].node_key == device.node_key().public


def test_a_strangers_key_cannot_come_back_as_somebody(door: OpenDoor, tmp_path: Path) -> None:
    enrol(door.invite(authorised=True), tmp_path / "pi")
    stranger = NodeIdentity(tmp_path / "stranger")
    stranger.node_key()
    for name in (CERTIFICATE, JOINED, "ca.pem"):
        shutil.copy(tmp_path / "pi" / name, stranger.folder / name)
    with pytest.raises(asking.TurnedAway, match="not the key"):
        asking.check(stranger)  # with the certificate and its key, but without the node's own
    with pytest.raises(asking.TurnedAway, match="no member has this key"):
        asking.come_back(stranger, "a board")
    assert joining_file.read(door.folder).waiting == []


def test_a_member_with_a_bundle_has_no_business_at_the_door(door: OpenDoor, tmp_path: Path) -> None:
    device = enrol(door.invite(authorised=True), tmp_path / "pi")
    with folders.alone(door.folder):
        _, secret = folders.admit(door.folder, "old", "device", "certificate")
    (device.folder / CERTIFICATE).write_bytes(secret.files["pem"] + secret.files["key"])
    with pytest.raises(asking.TurnedAway, match="not the key"):
        asking.check(device)


def test_who_was_interrupted_between_two_writes_is_a_member_when_it_asks_again(door: OpenDoor, tmp_path: Path) -> None:
    token = door.invite(authorised=True)
    ask(token, tmp_path / "pi")
    fleet = msgspec.structs.replace(door.fleet(), members={})
    folders.write(door.folder, fleet, {})
    assert isinstance(ask(token, tmp_path / "pi"), Welcome)
    assert list(door.fleet().members) == ["pi-1"]


def test_a_removed_device_may_join_again_and_its_name_is_free(door: OpenDoor, tmp_path: Path) -> None:
    enrol(door.invite(authorised=True), tmp_path / "pi")
    with folders.alone(door.folder):
        folders.remove(door.folder, "pi-1")
        joining.forget(door.folder, "pi-1")
    assert isinstance(ask(door.invite(authorised=True), tmp_path / "pi"), Welcome)
    assert door.fleet().members["pi-1"].node_key == NodeIdentity(tmp_path / "pi").node_key().public


def test_a_hundred_devices_ask_and_are_accepted_with_one_write(
    door: OpenDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, written = door.invite(uses=100, prefix="board"), list[int]()
    authority = asking.authority_of(token)
    for number in range(100):
        asking.join(token, authority, NodeIdentity(tmp_path / str(number)), "raspberrypi", "a board")
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
