"""Tests of `sojourn fleet invite` and the commands after it, together with the commands of the device."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.admin.fleet_commands import app
from coordinator.admin.settings import CoordinatorSettings
from coordinator.rounds.device_signatures import NodeKeys
from edge_agent.commands import app as agent_app
from edge_agent.joining import about_this_machine
from edge_agent.settings import AgentSettings
from sojourn.brokers import fleet as folders
from sojourn.errors import ConfigError
from sojourn.joining.client import JoinRefused
from sojourn.joining.identity import NodeIdentity
from sojourn.joining.messages import read_token
from sojourn.links.settings import TlsSettings
from sojourn.settings import read_settings
from tests.sojourn.joining.open_door import OpenDoor, ask, open_door

Run = Callable[..., str]


@pytest.fixture
def fleet(tmp_path: Path) -> Run:
    def run(*arguments: object) -> str:
        words = [*map(str, arguments), "--fleet-folder", str(tmp_path / "fleet")]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    run("init", "--fleet", "field", "--host", "localhost", "--operator", "ada")
    return run


@pytest.fixture
def door(fleet: Run, tmp_path: Path) -> Iterator[OpenDoor]:
    with open_door(tmp_path / "fleet") as made:
        yield made


def agent(*arguments: object) -> str:
    done = CliRunner().invoke(agent_app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def invited(fleet: Run, *options: object) -> str:
    return fleet("invite", *options).split()[0]


def test_invite_and_join_set_up_blank_device(fleet: Run, door: OpenDoor, tmp_path: Path) -> None:
    fleet("add-edge", "s1", "--output", tmp_path / "s1.tar.gz")
    (tmp_path / "fleet" / "operators.pub").write_text(f"{'A' * 43}= ada\n")
    token = invited(fleet, "pi-1", "--authorised", "--data", "/srv/photos")
    output = agent("join", token, "--file", tmp_path / "pi" / "agent.toml")
    assert f"next: sojourn agent run {tmp_path / 'pi' / 'agent.toml'}" in output
    made = read_settings(str(tmp_path / "pi" / "agent.toml"), {}, AgentSettings)
    assert (made.name, made.fleet, made.edges, made.data.path) == ("pi-1", "field", ("s1",), "/srv/photos")
    identity = tmp_path / "pi" / "identity"
    assert made.identity.folder == str(identity)
    assert isinstance(made.broker.tls, TlsSettings)
    assert made.broker.tls.certificate_file == made.broker.tls.key_file == str(identity / "node.pem")
    assert (made.broker.host, made.broker.port) == ("localhost", 8884)
    assert made.release.key_file == str(identity / "release.pub")
    assert (identity / "operators.pub").read_text() == f"{'A' * 43}= ada\n"
    assert NodeIdentity(identity).has_joined
    assert not (identity / "next.key").exists()
    assert (tmp_path / "pi" / "agent.toml").stat().st_mode & 0o077 == 0


def test_coordinator_gets_node_keys_and_drops_revoked_ones(fleet: Run, door: OpenDoor, tmp_path: Path) -> None:
    settings = read_settings(str(tmp_path / "fleet" / "coordinator" / "coordinator.toml"), {}, CoordinatorSettings)
    keys = NodeKeys(Path(settings.node_keys_file or ""), settings.signed_hops)
    assert keys.now() == {}
    for name in ("pi-1", "pi-2"):
        agent("join", invited(fleet, name, "--authorised"), "--file", tmp_path / name / "agent.toml")
    public = {name: NodeIdentity(tmp_path / name / "identity").node_key().public_bytes for name in ("pi-1", "pi-2")}
    assert keys.now() == public
    assert keys.of(["pi-2", "pi-9"]) == {"pi-2": public["pi-2"]}
    assert set(tomllib.loads(fleet("keys"))["keys"]) == {"pi-1", "pi-2"}
    fleet("revoke", "pi-1", "--wait", 0)
    assert set(keys.now()) == {"pi-2"}
    fleet("remove", "pi-2", "--wait", 0)
    assert keys.now() == {}
    assert NodeKeys(None, "off", public).now() == {}


def test_foreign_node_keys_survive_fleet_changes(fleet: Run, door: OpenDoor, tmp_path: Path) -> None:
    agent("join", invited(fleet, "pi-1", "--authorised"), "--file", tmp_path / "pi-1" / "agent.toml")
    path = tmp_path / "fleet" / "coordinator" / "node-keys.toml"
    path.write_text(path.read_text() + f'elsewhere = "{"A" * 43}="\n')
    fleet("add-edge", "edge-9", "--output", tmp_path / "edge-9.tar.gz")
    assert set(NodeKeys(path).now()) == {"pi-1", "elsewhere"}
    fleet("remove", "pi-1", "--wait", 0)
    assert set(NodeKeys(path).now()) == {"elsewhere"}


def test_unreadable_node_keys_keep_previous_ones(tmp_path: Path) -> None:
    path = tmp_path / "node-keys.toml"
    path.write_text(f'[keys]\npi-1 = "{"A" * 43}="\n')
    keys = NodeKeys(path)
    assert keys.now() == {"pi-1": bytes(32)}
    path.write_text("[keys]\npi-1 = 'too short'\n")
    assert keys.now() == {"pi-1": bytes(32)}
    path.unlink()
    assert keys.now() == {}


def test_join_requests_are_listed_accepted_and_rejected(fleet: Run, door: OpenDoor, tmp_path: Path) -> None:
    token = read_token(invited(fleet, "--count", 3, "--prefix", "shed"))
    for number in range(3):
        ask(token, tmp_path / str(number), "raspberrypi")
    listed = json.loads(fleet("requests", "--json"))
    assert [each["name"] for each in listed["requests"]] == ["shed-1", "shed-2", "shed-3"]
    assert (listed["cloned"], {each["about"] for each in listed["requests"]}) == ({}, {"a board"})
    assert "shed-2" in fleet("requests")
    assert "rejected: shed-2" in fleet("reject", "shed-2")
    assert "accepted: shed-1, shed-3" in fleet("accept", "--all", "--reload", "true")
    assert "no device is waiting" in fleet("accept", "--all")
    assert folders.read(tmp_path / "fleet").named("device") == ["shed-1", "shed-3"]
    with pytest.raises(JoinRefused, match="rejected"):
        ask(token, tmp_path / "1", "raspberrypi")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("invite", "pi-1", "--count", "2"), "one device has one name"),
        (("invite", "PI"), "not a valid name"),
        (("invite", "--count", "0"), "from 1 to 1000"),
        (("invite", "--count", "1001"), "from 1 to 1000"),
        (("accept",), "give the names of devices, or --all"),
        (("accept", "pi-1", "--all"), "give the names of devices, or --all"),
        (("accept", "pi-1"), "no request from pi-1"),
        (("reject", "pi-1"), "no request from pi-1"),
        (("replace-authority", "--finish"), "not being replaced"),
    ],
)
def test_invalid_options_report_reason(fleet: Run, words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        fleet(*words)


def test_open_invitations_are_limited(fleet: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sojourn.brokers import invitations

    monkeypatch.setattr(invitations, "MAX_INVITATIONS", 2)
    fleet("invite")
    fleet("invite")
    with pytest.raises(ConfigError, match="2 invitations are open"):
        fleet("invite")
    assert "2 invitations are revoked" in fleet("uninvite")
    fleet("invite")


def test_join_does_not_overwrite_existing_settings_or_keys(fleet: Run, door: OpenDoor, tmp_path: Path) -> None:
    file = tmp_path / "pi" / "agent.toml"
    agent("join", invited(fleet, "pi-1", "--authorised"), "--file", file)
    token = invited(fleet, "pi-2", "--authorised")
    with pytest.raises(ConfigError, match="exists already"):
        agent("join", token, "--file", file)
    with pytest.raises(ConfigError, match="already contains the keys of pi-1: on a copied card use --new-keys"):
        agent("join", token, "--file", file, "--force")
    before = NodeIdentity(file.parent / "identity").node_key().public
    agent("join", token, "--file", file, "--force", "--new-keys")
    assert NodeIdentity(file.parent / "identity").node_key().public != before
    assert read_settings(str(file), {}, AgentSettings).name == "pi-2"


def test_unaccepted_device_resumes_waiting_with_same_token(fleet: Run, door: OpenDoor, tmp_path: Path) -> None:
    token, file = invited(fleet, "pi-1"), tmp_path / "pi" / "agent.toml"
    with pytest.raises(ConfigError, match="pi-1 has not been accepted yet: run the same command again"):
        agent("join", token, "--file", file, "--wait", 0)
    assert not file.exists()
    fleet("accept", "pi-1")
    assert "joined field as pi-1" in agent("join", token, "--file", file, "--wait", 0)


def test_fleet_without_node_keys_gets_no_key_files(fleet: Run, tmp_path: Path) -> None:
    """No bundle contains a node key, and the coordinator knows none."""
    fleet("add-device", "pi-1", "--output", tmp_path / "pi-1.tar.gz")
    assert not (tmp_path / "fleet" / "coordinator" / "node-keys.toml").exists()
    assert "node_key" not in (tmp_path / "fleet" / "fleet.toml").read_text()
    assert "door" not in (tmp_path / "fleet" / "fleet.toml").read_text()
    assert not (tmp_path / "fleet" / "joining.json").exists()


def test_machine_description_is_short() -> None:
    assert 0 < len(about_this_machine()) <= 200


def test_immediate_authority_replacement_trusts_only_new_one(fleet: Run, door: OpenDoor, tmp_path: Path) -> None:
    agent("join", invited(fleet, "pi-1", "--authorised"), "--file", tmp_path / "pi" / "agent.toml")
    before = (tmp_path / "fleet" / "ca.pem").read_bytes()
    output = fleet("replace-authority", "--at-once")
    assert "members that need a new token (sojourn fleet invite NAME --replace): pi-1" in output
    after = (tmp_path / "fleet" / "ca.pem").read_bytes()
    assert (after.count(b"BEGIN CERTIFICATE"), after == before) == (1, False)
    assert (tmp_path / "fleet" / "broker" / "ca.pem").read_bytes() == after
    assert not (tmp_path / "fleet" / "old-ca.key").exists()


def test_overlap_trusts_both_authorities_and_tokens_pin_one(fleet: Run, door: OpenDoor, tmp_path: Path) -> None:
    old = read_token(invited(fleet)).authority
    fleet("replace-authority")
    with pytest.raises(ConfigError, match="already being replaced"):
        fleet("replace-authority")
    assert read_token(invited(fleet)).authority == old
    assert (tmp_path / "fleet" / "ca.pem").read_bytes().count(b"BEGIN CERTIFICATE") == 2
    assert (tmp_path / "fleet" / "broker" / "crl.pem").read_bytes().count(b"BEGIN X509 CRL") == 2
    output = agent("join", invited(fleet, "pi-1", "--authorised"), "--file", tmp_path / "pi" / "agent.toml")
    assert "joined field as pi-1" in output
    fleet("replace-authority", "--finish")
    assert read_token(invited(fleet)).authority != old
    assert (tmp_path / "fleet" / "broker" / "crl.pem").read_bytes().count(b"BEGIN X509 CRL") == 1
