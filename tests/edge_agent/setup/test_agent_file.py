"""`sojourn agent init`: its questions and checks, and that it overwrites a file only with --force."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from edge_agent.settings import AgentSettings
from edge_agent.setup.agent_file import own_name, settings_of, table_of, write
from edge_agent.setup.commands import agent_flags
from sojourn.brokers.local_broker import start_broker
from sojourn.errors import ConfigError
from sojourn.links.settings import LocalBroker, TlsSettings
from sojourn.settings import read_file
from tests import forked


def run(folder: Path, *arguments: str, output: str = "") -> CompletedProcess[str]:
    return forked.run("agent", "init", str(folder / "agent.toml"), *arguments, typed=output)


@pytest.fixture
def data(tmp_path) -> str:
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 4)), y=np.arange(20) % 3)
    return str(tmp_path / "data.npz")


@pytest.fixture
def broker(tmp_path):
    started = start_broker(LocalBroker(kind="mosquitto"), tmp_path / "broker")
    yield f"{started.host}:{started.port}"
    started.stop()


def test_flags_answer_every_question(tmp_path, data, broker) -> None:
    flags = ("--name", "pi-7", "--broker", broker, "--data", data, "--hours", "22:00-06:00", "--metered", "wwan0")
    more = ("--memory", "300", "--cpu-share", "0.5", "--battery", "20", "--threads", "2", "--username", "seven")
    done = run(tmp_path, "--yes", *flags, *more)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "agent.toml"
    assert f"next: sojourn agent preflight {path}" in done.stdout
    found = read_file(path, AgentSettings)
    assert (found.name, found.fleet, found.broker.address, found.threads) == ("pi-7", "sojourn", broker, 2)
    assert (found.data.path, found.broker.username, found.store) == (data, "seven", None)
    limits = found.limits
    assert (limits.hours, limits.metered_interfaces, limits.memory) == (("22:00-06:00",), ("wwan0",), 300)
    assert (limits.cpu_share, limits.battery, limits.throttle_at, limits.stop_at) == (0.5, 20, 70, 80)


def test_missing_flags_are_asked_interactively(tmp_path, data, broker) -> None:
    done = run(tmp_path, output=f"pi-9\n\n{broker}\n\n\n{data}\n")
    assert done.returncode == 0, done.stderr
    found = read_file(tmp_path / "agent.toml", AgentSettings)
    assert (found.name, found.fleet, found.broker.address, found.data.path) == ("pi-9", "sojourn", broker, data)
    assert "The broker, host or host:port [localhost]" in done.stderr


def test_existing_file_is_kept_unless_forced(tmp_path, data, broker) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("mine")
    flags = ("--yes", "--broker", broker, "--data", data)
    done = run(tmp_path, *flags)
    assert (done.returncode, path.read_text()) == (2, "mine")
    assert "give --force to replace it" in done.stderr
    assert run(tmp_path, *flags, "--force").returncode == 0
    assert tomllib.loads(path.read_text())["name"] == own_name()


def test_failed_checks_are_reported_and_nothing_is_written(tmp_path) -> None:
    flags = ("--broker", "127.0.0.1:1", "--data", str(tmp_path / "none.npz"))
    done = run(tmp_path, "--yes", *flags)
    assert done.returncode == 1
    assert "none.npz does not exist" in done.stderr
    assert "no broker listens at 127.0.0.1:1" in done.stderr
    assert not (tmp_path / "agent.toml").exists()
    done = run(tmp_path, "--name", "a", "--fleet", "f", "--ca-file", "", "--password-file", "", *flags, output="y\n")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "agent.toml").exists()
    assert run(tmp_path, "--yes", *flags, "--no-check", "--force").returncode == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--data is required with --yes"),
        (("--data", "x.npz", "--name", "Not A Name"), "not a valid name"),
        (("--data", "x.npz", "--hours", "noon"), "not a span"),
        (("--data", "x.npz", "--broker", "here:there"), "is not a broker address"),
    ],
)
def test_invalid_flags_are_rejected_and_nothing_is_written(tmp_path, flags, words) -> None:
    done = run(tmp_path, "--yes", *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "agent.toml").exists()


def test_ca_file_enables_tls_and_paths_become_absolute(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = agent_flags(name="pi", data="data", password_file="word", broker="host")
    found = settings_of(table_of(flags, {}, ca_file="ca.pem"))
    assert found.broker.address == "host:8883"
    assert isinstance(found.broker.tls, TlsSettings)
    assert found.broker.tls.ca_file == str(tmp_path / "ca.pem")
    assert (found.broker.password_file, found.data.path) == (str(tmp_path / "word"), str(tmp_path / "data"))
    assert settings_of(table_of(agent_flags(name="pi", data="data"), {})).broker.tls is False


def test_host_name_becomes_a_valid_device_name(monkeypatch) -> None:
    for host, expected in (("Pi_Zero.local", "pi-zero"), ("--", "device"), ("x" * 80, "x" * 63)):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        assert own_name() == expected


def test_file_created_meanwhile_is_not_overwritten(tmp_path) -> None:
    (tmp_path / "a.toml").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        write(tmp_path / "a.toml", {}, force=False)
    write(tmp_path / "new" / "a.toml", {"name": "pi"}, force=False)
    assert (tmp_path / "new" / "a.toml").read_text() == 'name = "pi"\n'
