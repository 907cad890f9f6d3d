"""Tests of `sojourn fleet`, from an empty folder to a bundle that an agent can use."""

from __future__ import annotations

import stat
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.admin.fleet_commands import app
from coordinator.admin.settings import CoordinatorSettings
from edge_agent.settings import AgentSettings
from hierarchy.settings import EdgeSettings
from sojourn.brokers import fleet as folders
from sojourn.brokers.fleet import read_bundle, write_bundle
from sojourn.errors import ConfigError
from sojourn.links.settings import TlsSettings, read_password
from sojourn.protocol.signing import Signer, read_public, read_publics
from sojourn.settings import read_settings


@pytest.fixture
def fleet(tmp_path: Path):
    """Return a function that runs a command of `sojourn fleet` on a new fleet."""

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, "--fleet-folder", str(tmp_path / "fleet")], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    run("init", "--fleet", "field", "--host", "broker.example", "--host", "192.0.2.1", "--operator", "ada")
    return run


def unpacked(file: Path, folder: Path) -> Path:
    folder.mkdir()
    with tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_init_writes_coordinator_with_broker_and_operators(fleet, tmp_path: Path) -> None:
    path = tmp_path / "fleet" / "coordinator" / "coordinator.toml"
    made = read_settings(str(path), {}, CoordinatorSettings)
    assert (made.name, made.fleet, made.operators) == ("cloud", "field", ("ada",))
    assert (made.broker.host, made.broker.port, made.broker.tls) == ("127.0.0.1", 1883, False)
    assert read_password(made.broker)
    signer = Signer.load(tmp_path / "fleet" / "release.key")
    assert made.release_key_file is not None
    assert read_public(made.release_key_file) == signer.public
    assert set(folders.password_hashes(tmp_path / "fleet")) == {"ada", "cloud"}
    with pytest.raises(ConfigError, match="already contains a fleet"):
        fleet("init", "--host", "elsewhere")


@pytest.fixture
def with_passwords(fleet, tmp_path: Path):
    """A fleet with a listener for passwords."""
    path = tmp_path / "fleet" / "fleet.toml"
    path.write_text(path.read_text().replace("password = 0\n", "password = 8883\n"))
    fleet("renew-broker")
    assert "\nlistener 8883\n" in (tmp_path / "fleet" / "broker" / "mosquitto.conf").read_text()
    return fleet


def test_password_option_needs_password_listener(fleet, tmp_path: Path) -> None:
    assert "listener 8883" not in (tmp_path / "fleet" / "broker" / "mosquitto.conf").read_text()
    with pytest.raises(ConfigError, match="no listener for passwords"):
        fleet("add-device", "pi-1", "--password", "--output", str(tmp_path / "1.tar.gz"))
    assert "pi-1" not in folders.read(tmp_path / "fleet").members
    with pytest.raises(ConfigError, match="set --local-port"):
        CliRunner().invoke(app, ["init", "--host", "h", "--local-port", "0"], catch_exceptions=False)


def test_password_bundle_contains_everything_an_agent_needs(with_passwords, tmp_path: Path) -> None:
    bundle = str(tmp_path / "pi-1.tar.gz")
    output = with_passwords("add-device", "pi-1", "--password", "--data", "/srv/cats", "--output", bundle)
    assert stat.S_IMODE((tmp_path / "pi-1.tar.gz").stat().st_mode) == 0o600
    device = unpacked(tmp_path / "pi-1.tar.gz", tmp_path / "device")
    made = read_settings(str(device / "agent.toml"), {}, AgentSettings)
    assert (made.name, made.fleet, made.data.path) == ("pi-1", "field", "/srv/cats")
    assert made.store == "/var/lib/sojourn-agent"
    assert (made.broker.host, made.broker.port) == ("broker.example", 8883)
    password = read_password(made.broker)
    assert password is not None
    assert len(password) >= 32
    assert password not in output
    assert isinstance(made.broker.tls, TlsSettings)
    assert made.broker.tls.ca_file is not None
    assert Path(made.broker.tls.ca_file).read_bytes() == (tmp_path / "fleet" / "ca.pem").read_bytes()
    signer = Signer.load(tmp_path / "fleet" / "release.key")
    assert (device / "agent.release.pub").read_text() == f"{signer.public}\n"


def test_password_is_printed_only_on_request(with_passwords, tmp_path: Path) -> None:
    bundle = str(tmp_path / "a.tar.gz")
    output = with_passwords("add-device", "pi-1", "--password", "--show-password", "--output", bundle)
    assert read_bundle(tmp_path / "a.tar.gz")["agent.password"].decode().strip() in output


def test_bundle_contains_keys_of_job_signers(fleet, tmp_path: Path) -> None:
    fleet("add-device", "pi-0", "--output", str(tmp_path / "before.tar.gz"))
    assert "agent.operators.pub" not in read_bundle(tmp_path / "before.tar.gz")
    key = Signer.generate(tmp_path / "ann.key").public
    (tmp_path / "ann.pub").write_text(key)
    fleet("operators", "add", "ann", "--public", str(tmp_path / "ann.pub"), "--role", "owner")
    fleet("add-device", "pi-1", "--output", str(tmp_path / "pi-1.tar.gz"))
    folder = unpacked(tmp_path / "pi-1.tar.gz", tmp_path / "pi-1")
    made = read_settings(str(folder / "agent.toml"), {}, AgentSettings)
    assert made.mandate.keys_file is not None
    assert read_publics(made.mandate.keys_file) == {key: "ann"}


def test_certificate_bundle_has_no_password(fleet, tmp_path: Path) -> None:
    fleet("add-device", "pi-2", "--output", str(tmp_path / "pi-2.tar.gz"))
    device = unpacked(tmp_path / "pi-2.tar.gz", tmp_path / "device")
    made = read_settings(str(device / "agent.toml"), {}, AgentSettings)
    assert (made.broker.port, made.broker.password_file) == (8884, None)
    assert {each.name for each in device.iterdir()} == {
        "agent.toml",
        "agent.pem",
        "agent.key",
        "agent.ca.pem",
        "agent.release.pub",
    }
    assert "pi-2" not in folders.password_hashes(tmp_path / "fleet")


def test_edge_bundle_names_coordinator_and_broker(fleet, tmp_path: Path) -> None:
    fleet("add-edge", "s1", "--output", str(tmp_path / "s1.tar.gz"))
    edge = unpacked(tmp_path / "s1.tar.gz", tmp_path / "edge")
    made = read_settings(str(edge / "edge.toml"), {}, EdgeSettings)
    assert (made.name, made.cloud, made.broker.host, made.broker.port) == ("s1", "cloud", "broker.example", 8884)
    assert "user s1\n" in (tmp_path / "fleet" / "broker" / "acl").read_text()


def test_device_bundle_lists_trusted_edge_servers(fleet, tmp_path: Path) -> None:
    def edges_of(name: str) -> tuple[str, ...]:
        device = unpacked(tmp_path / f"{name}.tar.gz", tmp_path / name)
        return read_settings(str(device / "agent.toml"), {}, AgentSettings).edges

    assert "the device accepts any" in fleet("add-device", "pi-0", "--output", str(tmp_path / "pi-0.tar.gz"))
    assert edges_of("pi-0") == ()
    assert "pi-0: these accept it only if 's1'" in fleet("add-edge", "s1", "--output", str(tmp_path / "s1.tar.gz"))
    assert "accepts any" not in fleet("add-device", "pi-1", "--output", str(tmp_path / "pi-1.tar.gz"))
    assert edges_of("pi-1") == ("s1",)
    assert "pi-0, pi-1: these accept" in fleet("add-edge", "s2", "--output", str(tmp_path / "s2.tar.gz"))
    fleet("add-device", "pi-1", "--renew", "--output", str(tmp_path / "again.tar.gz"))
    assert edges_of("again") == ("s1", "s2")


def test_existing_bundle_is_not_overwritten_and_nothing_changes(fleet, tmp_path: Path) -> None:
    (tmp_path / "there.tar.gz").touch()
    for output in ("there.tar.gz", "no/where.tar.gz"):
        with pytest.raises(ConfigError):
            fleet("add-device", "pi-1", "--output", str(tmp_path / output))
    assert "pi-1" not in folders.read(tmp_path / "fleet").members


def test_members_are_listed_revoked_and_removed(with_passwords, tmp_path: Path) -> None:
    fleet = with_passwords
    fleet("add-device", "pi-1", "--password", "--output", str(tmp_path / "1.tar.gz"))
    fleet("add-device", "pi-2", "--output", str(tmp_path / "2.tar.gz"))
    output = fleet("revoke", "pi-1")
    assert "kill -HUP" in output
    assert "no broker of this fleet is running" in output
    listed = fleet("list")
    assert "may connect" in next(line for line in listed.splitlines() if "pi-2" in line)
    assert "revoked" in next(line for line in listed.splitlines() if "pi-1" in line)
    fleet("remove", "pi-1")
    fleet("remove", "pi-2")
    assert "pi-" not in fleet("list")
    assert list(folders.read(tmp_path / "fleet").revoked.values()) == ["pi-2"]


def test_broker_host_changes_and_members_stay(fleet, tmp_path: Path) -> None:
    fleet("add-device", "pi-1", "--output", str(tmp_path / "1.tar.gz"))
    before = (tmp_path / "fleet" / "broker" / "server.pem").read_bytes()
    assert "other.example" in fleet("renew-broker", "--host", "other.example")
    assert (tmp_path / "fleet" / "broker" / "server.pem").read_bytes() != before
    assert folders.read(tmp_path / "fleet").named("device") == ["pi-1"]
    assert set(folders.password_hashes(tmp_path / "fleet")) == {"ada", "cloud"}
    fleet("add-device", "pi-2", "--output", str(tmp_path / "2.tar.gz"))
    assert b'host = "other.example"' in read_bundle(tmp_path / "2.tar.gz")["agent.toml"]


def test_foreign_bundle_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    write_bundle(file, {"agent.toml": b"x"})
    assert read_bundle(file) == {"agent.toml": b"x"}
    for name in ("../evil", "/etc/passwd", "a/b", ".hidden"):
        write_bundle(file, {name: b"x"})
        with pytest.raises(ConfigError, match="not a Sojourn bundle"):
            read_bundle(file)
    write_bundle(file, {"large": bytes(2 << 20)})
    with pytest.raises(ConfigError, match="not a Sojourn bundle"):
        read_bundle(file)
    write_bundle(file, {"agent.toml": bytes(range(256)) * 100})
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ConfigError, match="not a complete bundle"):
        read_bundle(file)
    file.write_text("hello")
    with pytest.raises(ConfigError, match="not a complete bundle"):
        read_bundle(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_bundle(tmp_path / "none")
