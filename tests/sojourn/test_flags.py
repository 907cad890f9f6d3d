"""Settings from a file and from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.admin.settings import CoordinatorSettings
from edge_agent.settings import AgentSettings
from hierarchy.settings import EdgeSettings
from sojourn.errors import ConfigError
from sojourn.links.settings import BrokerSettings, TlsSettings
from sojourn.settings import broker_flags, broker_table, read_settings, store_folder
from tests.there import there

FILE = """
name = "pi-1"
store = "kept"
[broker]
host = "broker.example"
password_file = "secret"
[data]
path = "own.npz"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "agent.toml"
    path.write_text(FILE)
    return str(path)


def test_paths_in_a_file_are_relative_to_it(file: str, tmp_path: Path) -> None:
    settings = read_settings(file, {}, AgentSettings)
    assert settings.data.path == str(tmp_path / "own.npz")
    assert settings.store == str(tmp_path / "kept")
    assert settings.broker.password_file == str(tmp_path / "secret")


def test_flags_override_the_file(file: str) -> None:
    flags = {"name": "pi-2", "fleet": None, "broker": broker_flags("other:1884"), "data": {"path": "here.npz"}}
    settings = read_settings(file, flags, AgentSettings)
    assert (settings.name, settings.fleet, settings.data.path) == ("pi-2", "sojourn", "here.npz")
    assert (settings.broker.host, settings.broker.port) == ("other", 1884)
    assert settings.broker.password_file is not None


def test_flags_suffice_without_a_file() -> None:
    settings = read_settings(None, {"name": "s1", "broker": broker_flags(None), "cloud_broker": {}}, EdgeSettings)
    assert (settings.name, settings.broker.address, settings.cloud_broker) == ("s1", "localhost:1883", None)


def test_missing_and_misspelled_keys_are_named(file: str) -> None:
    with pytest.raises(ConfigError, match="the command line: the key 'name' is missing: set --name, or use a settings"):
        read_settings(None, {}, EdgeSettings)
    Path(file).write_text(FILE + "[brokr]\n")
    with pytest.raises(ConfigError, match=r"agent.toml: unknown key 'brokr'; did you mean 'broker'\?"):
        read_settings(file, {}, AgentSettings)


@pytest.mark.parametrize(
    ("address", "table"),
    [
        ("pi", {"host": "pi"}),
        ("pi:1884", {"host": "pi", "port": 1884}),
        ("[::1]:1884", {"host": "::1", "port": 1884}),
        ("[::1]", {"host": "::1"}),
        ("fe80::1", {"host": "fe80::1"}),
        ("mqtt://pi", {"host": "pi", "tls": False}),
        ("mqtt://pi:1884/", {"host": "pi", "port": 1884, "tls": False}),
        ("mqtts://vm.example.org:8884", {"host": "vm.example.org", "port": 8884, "tls": True}),
        ("MQTTS://vm", {"host": "vm", "tls": True}),
    ],
)
def test_broker_addresses_are_parsed(address: str, table: dict[str, object]) -> None:
    assert broker_table(address) == table


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("pi:", "write host, host:port like localhost:1883"),
        ("pi:x", "write host"),
        (":1883", "write host"),
        ("", "write host"),
        ("pi:0", "write host"),
        ("pi:65536", "write host"),
        ("a b", "write host"),
        ("mqtt://pi/topic", "write host"),
        ("http://pi", "the scheme http:// is not supported"),
        ("ssl://pi:8883", "mqtts://host:8883"),
        ("me:secret@pi", "username and password_file"),
    ],
)
def test_invalid_address_is_rejected_with_remedy(address: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match="is not a broker address") as caught:
        broker_flags(address)
    assert remedy in str(caught.value)


def test_text_may_replace_a_table_in_every_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('name = "pi-1"\nbroker = "localhost:1884"\ndata = "photos"')
    agent = read_settings(str(file), {"broker": broker_flags(None, "me")}, AgentSettings)
    assert (agent.broker.address, agent.broker.username) == ("localhost:1884", "me")
    assert agent.data.path == str(tmp_path / "photos")
    file.write_text('name = "edge-1"\nbroker = "pi"\ncloud_broker = "mqtts://vm"')
    edge = read_settings(str(file), {}, EdgeSettings)
    assert (edge.broker.address, there(edge.cloud_broker).address) == ("pi:1883", "vm:8883")
    file.write_text('broker = "mqtts://vm:8884"')
    assert read_settings(str(file), {}, CoordinatorSettings).broker == BrokerSettings(host="vm", port=8884, tls=True)


def test_invalid_address_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text('name = "edge-1"\nbroker = "http://pi"')
    with pytest.raises(ConfigError, match=r"edge\.toml: 'http://pi' is not a broker address"):
        read_settings(str(file), {}, EdgeSettings)


def test_address_with_tls_keeps_tls_settings_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('name = "pi-1"\ndata = "x.npz"\nbroker = { host = "a", tls = { ca_file = "ca.pem" } }')
    settings = read_settings(str(file), {"broker": broker_flags("mqtts://b")}, AgentSettings)
    assert (settings.broker.host, settings.broker.tls) == ("b", TlsSettings(ca_file=str(tmp_path / "ca.pem")))
    plain = read_settings(str(file), {"broker": broker_flags("mqtt://b")}, AgentSettings)
    assert plain.broker.tls is False


def test_default_store_folder_follows_xdg_data_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store_folder(None, "home", "pi-1") == tmp_path / "sojourn" / "home" / "pi-1"
    assert store_folder("elsewhere", "home", "pi-1") == Path("elsewhere")
