"""`sojourn edge init`: a site's settings, its broker, and its connection to the coordinator's."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.admin import credentials
from hierarchy.commands import app
from hierarchy.settings import EdgeSettings
from sojourn.brokers import fleet as folders
from sojourn.brokers.configuration import Listeners
from sojourn.brokers.fleet import FleetFile, write_bundle
from sojourn.errors import ConfigError
from sojourn.links.settings import TlsSettings, read_password
from sojourn.settings import read_settings
from tests.there import there


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a bundle made at the coordinator."""
    cloud = tmp_path / "cloud"
    made = FleetFile(fleet="field", hosts=("cloud.example",), listeners=Listeners(password=8883))
    folders.create(cloud, made, signed_here=True)
    folders.admit(cloud, "hq", "cloud", "password")
    fleet, secret = folders.admit(cloud, "s1", "edge", "password")
    write_bundle(tmp_path / "s1.tar.gz", credentials.edge_bundle(cloud, fleet, "s1", secret))
    return tmp_path / "s1.tar.gz"


def init(folder: Path, *arguments: str) -> str:
    words = ["init", *arguments, "--fleet-folder", str(folder / "fleet")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_site_with_its_own_broker_reaches_both(bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    init(site, "--bundle", str(bundle), "--host", "192.0.2.9")
    made = read_settings(str(site / "edge.toml"), {}, EdgeSettings)
    assert (made.name, made.fleet, made.cloud, made.store) == ("s1", "field", "hq", "/var/lib/sojourn-edge")
    assert (made.broker.host, made.broker.port, made.broker.tls) == ("127.0.0.1", 1883, False)
    far = made.cloud_broker
    assert far is not None
    assert (far.host, far.port) == ("cloud.example", 8883)
    assert isinstance(far.tls, TlsSettings)
    assert Path(there(far.tls.ca_file)).read_bytes() == (tmp_path / "cloud" / "ca.pem").read_bytes()
    assert None not in {read_password(far), read_password(made.broker)}
    assert read_password(far) != read_password(made.broker)
    # Devices of the site join here, and trust the same releases.
    assert folders.read(site / "fleet").release_key == folders.read(tmp_path / "cloud").release_key
    assert not (site / "fleet" / "release.key").exists()
    assert (site / "fleet" / "ca.pem").read_bytes() != (tmp_path / "cloud" / "ca.pem").read_bytes()


def test_printed_commands_use_the_fleet_folder(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "barn" / "members"
    words = ["init", "--bundle", str(bundle), "--host", "h", "--fleet-folder", str(folder)]
    output = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert f"sojourn fleet add-device NAME --fleet-folder {folder}\n" in output
    assert folders.read(folder).fleet == "field"
    assert (tmp_path / "barn" / "edge.toml").exists()


def test_new_site_has_a_password_listener_only_on_request(bundle: Path, tmp_path: Path) -> None:
    for name, flags in (("without", []), ("with", ["--password-port", "9883"])):
        init(tmp_path / name, "--bundle", str(bundle), "--host", "h", *flags)
        port = int(flags[-1]) if flags else 0
        assert folders.read(tmp_path / name / "fleet").listeners.password == port
        conf = (tmp_path / name / "fleet" / "broker" / "mosquitto.conf").read_text()
        assert conf.count("listener ") == (3 if port else 2)
        assert (f"\nlistener {port}\n" in conf) == bool(port)


def test_edge_server_uses_tls_without_a_local_port(bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    init(site, "--bundle", str(bundle), "--host", "h", "--local-port", "0", "--certificate-port", "9884")
    made = read_settings(str(site / "edge.toml"), {}, EdgeSettings)
    assert (made.broker.host, made.broker.port, made.broker.password_file) == ("localhost", 9884, None)
    assert isinstance(made.broker.tls, TlsSettings)
    assert made.broker.tls.certificate_file == str(site / "edge.pem")
    assert (site / "edge.key").exists()
    assert Path(there(made.broker.tls.ca_file)).read_bytes() == (site / "fleet" / "ca.pem").read_bytes()


def test_site_on_the_shared_broker_has_no_own_keys(bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    init(site, "--bundle", str(bundle), "--shared-broker")
    made = read_settings(str(site / "edge.toml"), {}, EdgeSettings)
    assert (made.broker.host, made.cloud_broker) == ("cloud.example", None)
    assert read_password(made.broker)
    assert not (site / "fleet").exists()


def test_coordinator_address_comes_from_flags_without_a_bundle(tmp_path: Path) -> None:
    site, password, ca = tmp_path / "site", tmp_path / "password", tmp_path / "ca"
    password.write_text("secret\n")
    ca.write_text("a certificate")
    far = ["--cloud-broker", "mq.example:8000", "--cloud-password-file", str(password), "--cloud-ca-file", str(ca)]
    init(site, "--name", "s2", "--host", "h", *far)
    made = read_settings(str(site / "edge.toml"), {}, EdgeSettings)
    assert made.cloud_broker is not None
    assert (made.cloud_broker.host, made.cloud_broker.port) == ("mq.example", 8000)
    assert read_password(made.cloud_broker) == "secret"
    assert made.cloud_broker.tls == TlsSettings(ca_file=str(site / "edge.cloud.ca.pem"))


def test_missing_flags_and_existing_files_are_rejected(bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for arguments, message in (
        ((), "--bundle or --name is missing"),
        (("--name", "s2"), "--cloud-broker is missing"),
        (("--bundle", str(bundle)), "--host or --shared-broker is missing"),
        (("--bundle", str(tmp_path / "none")), "No such file"),
        (("--name", "Not A Name", "--cloud-broker", "h", "--host", "h"), "not a valid name"),
    ):
        with pytest.raises(ConfigError, match=message):
            init(site, *arguments)
        assert not site.exists()
    write_bundle(tmp_path / "device.tar.gz", {"agent.toml": b""})
    with pytest.raises(ConfigError, match="not the bundle of an edge server"):
        init(site, "--bundle", str(tmp_path / "device.tar.gz"), "--host", "h")
    init(site, "--bundle", str(bundle), "--host", "h")
    with pytest.raises(ConfigError, match=r"edge.toml exists"):
        init(site, "--bundle", str(bundle), "--host", "h")
