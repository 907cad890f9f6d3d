"""Settings from a file and from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.settings import AgentSettings
from hierarchy.settings import EdgeSettings
from sojourn.errors import ConfigError
from sojourn.settings import broker_flags, read_settings, store_folder

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


def test_names_in_a_file_are_relative_to_it(file: str, tmp_path: Path) -> None:
    settings = read_settings(file, {}, AgentSettings)
    assert settings.data.path == str(tmp_path / "own.npz")
    assert settings.store == str(tmp_path / "kept")
    assert settings.broker.password_file == str(tmp_path / "secret")


def test_flags_go_before_the_file(file: str) -> None:
    flags = {"name": "pi-2", "fleet": None, "broker": broker_flags("other:1884"), "data": {"path": "here.npz"}}
    settings = read_settings(file, flags, AgentSettings)
    assert (settings.name, settings.fleet, settings.data.path) == ("pi-2", "sojourn", "here.npz")
    assert (settings.broker.host, settings.broker.port) == ("other", 1884)
    assert settings.broker.password_file is not None


def test_flags_suffice() -> None:
    settings = read_settings(None, {"name": "s1", "broker": broker_flags(None), "cloud_broker": {}}, EdgeSettings)
    assert (settings.name, settings.broker.address, settings.cloud_broker) == ("s1", "localhost:1883", None)


def test_what_is_missing_or_misspelt_is_named(file: str) -> None:
    with pytest.raises(ConfigError, match="the command line: the key 'name' is missing"):
        read_settings(None, {}, EdgeSettings)
    Path(file).write_text(FILE + "[brokr]\n")
    with pytest.raises(ConfigError, match=r"agent.toml: unknown key 'brokr'; did you mean 'broker'\?"):
        read_settings(file, {}, AgentSettings)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("pi", "pi", None), ("pi:1884", "pi", 1884), ("[::1]:1884", "::1", 1884), ("[::1]", "::1", None)],
)
def test_addresses(address: str, host: str, port: int | None) -> None:
    flags = broker_flags(address)
    assert (flags["host"], flags.get("port")) == (host, port)


@pytest.mark.parametrize("address", ["pi:", "pi:x", ":1883"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        broker_flags(address)


def test_where_a_node_keeps_things(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store_folder(None, "home", "pi-1") == tmp_path / "sojourn" / "home" / "pi-1"
    assert store_folder("elsewhere", "home", "pi-1") == Path("elsewhere")
